"""The reader ``parallel_lines``: reads sentences from one file and their tags from another, line by line."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator

from bert_jax.errors import UserError
from bert_jax.examples.reading import Bad, Record, need, plain_name, text_lines
from bert_jax.examples.tags import Scheme, to_iob2


@dataclasses.dataclass(frozen=True)
class Options:
    """The scheme of the tags, and how to find their file: ``tags`` replaces ``sentences`` in the file's name."""

    sentences: str = "sentences"  # a part of the name of the file with the sentences
    tags: str = "tags"  # what replaces it in the name of the file with the tags
    scheme: Scheme = "auto"  # of the tags: auto, or its name


class Reader:
    """Reads sentences as records ``{"words", "tags"}``, with tags in IOB2. Words, and tags, are separated by one space.

    The path of a split is the path of its file of sentences.
    """

    named_splits = False

    def __init__(self, options: Options = Options()) -> None:
        self._options = options

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the sentences of ``path``; lines that are blank in both files are skipped."""
        pairs = itertools.zip_longest(text_lines(path), text_lines(self._beside(path)))
        for number, (left, right) in enumerate(pairs, 1):
            where = f"{path}:{number}"
            if left is None or right is None:
                yield Bad(where, "is in only one of the two files, of sentences and of tags")
                return
            words, tags = left[1].strip(" ").split(" "), right[1].strip(" ").split(" ")
            if words != [""] or tags != [""]:
                yield Record({"words": words, "tags": to_iob2(tags, self._options.scheme)}, where)

    def _beside(self, path: str) -> str:
        folder, name = os.path.split(plain_name(path))
        if self._options.sentences not in name:
            raise UserError(
                f"the name of {path} has no {self._options.sentences!r} to replace by {self._options.tags!r}; set"
                " config.data.options.sentences and tags"
            )
        return need(os.path.join(folder, name.replace(self._options.sentences, self._options.tags)))
