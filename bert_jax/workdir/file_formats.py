"""The numbers of the formats that this version writes, and the line that refuses a file of another version."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.storage import files

KEY = "format"  # under which a file has the number of its format
EXPORT = "hugging_face"  # the folder in a workdir with the run's export


@dataclasses.dataclass(frozen=True)
class _Format:
    """The format of a kind of file. A change raises the number if the code would read older files differently."""

    number: int
    last: str  # the last commit that reads lower numbers

    def check(self, content: Mapping[str, Any], what: object, advice: str) -> None:
        """Raise ``UserError`` unless ``content``, read from ``what``, has this number; ``advice``: what to do then."""
        number = content.get(KEY)
        if number == self.number:
            return
        if isinstance(number, int) and number > self.number:
            raise UserError(
                f"{what} was written by a newer version (format {number}, this one reads {self.number}); take that one"
            )
        had = "without a format" if number is None else f"format {number}"
        raise UserError(
            f"{what} was written by an older version ({had}, this one reads {self.number}); the last commit that reads "
            f"it is {self.last}: {advice}"
        )


WORKDIR = _Format(2, "bbd49a63")  # of run.json and of the facts of every step
CORPUS = _Format(3, "cf58cc3")  # of manifest.json
GRID = _Format(2, "a2c18cd0")  # of what ablate and sweep keep of each run


def check_workdir(content: Mapping[str, Any], workdir: str | os.PathLike[str]) -> None:
    """Raise ``UserError`` unless ``content``, which ``workdir`` has, is of this version's format."""
    export = files.as_path(workdir) / EXPORT
    start = f"go on with that commit, or start from the run's export (--init={export})"
    make = f"go on with that commit, or start from what it exports (`bert-jax export --workdir={workdir} --output=DIR`)"
    WORKDIR.check(content, workdir, start if (export / "config.json").exists() else make)
