"""The reader ``mrpc``: reads Microsoft's paraphrase corpus, with GLUE's dev split."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

from bert_jax.errors import UserError
from bert_jax.examples.delimited import Options as TableOptions
from bert_jax.examples.delimited import Reader as TableReader
from bert_jax.examples.reading import Bad, Record, need, text_lines

SPLITS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True)
class Options:
    """No options: one folder has the files of the corpus and GLUE's ``dev_ids.tsv``."""


class Reader:
    """Reads the rows of ``msr_paraphrase_train.txt`` and ``msr_paraphrase_test.txt``.

    The rows of ``msr_paraphrase_train.txt`` that ``dev_ids.tsv`` names are the split ``dev``; its other rows are the
    split ``train``. The columns are ``Quality``, ``#1 ID``, ``#2 ID``, ``#1 String`` and ``#2 String``.
    """

    named_splits = True

    def __init__(self, options: Options = Options()) -> None:
        self._table = TableReader(TableOptions(delimiter="\t", quoting="off"))

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the rows of the split that the last part of ``path`` names.

        Raises ``UserError`` for an unknown split or a missing file.
        """
        folder, split = os.path.split(path)
        if split not in SPLITS:
            raise UserError(f"config.data.splits has {split!r}; the format mrpc has {', '.join(SPLITS)}")
        if split == "test":
            yield from self._table.read(need(os.path.join(folder, "msr_paraphrase_test.txt")))
            return
        ids = {tuple(line.split("\t")) for _, line in text_lines(need(os.path.join(folder, "dev_ids.tsv")))}
        for row in self._table.read(need(os.path.join(folder, "msr_paraphrase_train.txt"))):
            if isinstance(row, Bad) or ((row.get("#1 ID"), row.get("#2 ID")) in ids) == (split == "dev"):
                yield row
