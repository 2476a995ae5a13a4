"""Counts the words of a corpus part by part, so that a vocabulary can be learned from the counts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence

from bert_jax.corpora import engine
from bert_jax.corpora.parts import Part, group
from bert_jax.corpora.source import Source, documents
from bert_jax.corpora.workplace import Workplace, working
from bert_jax.storage import files
from bert_jax.text import learn

STAGE = "words"


@dataclasses.dataclass(frozen=True)
class _CountJob:
    """Job that counts the words of one part and writes the counts to the shared work folder."""

    source: Source
    workplace: Workplace
    lowercase: bool

    def __call__(self, part: Part) -> None:
        read = documents(self.source, part.pieces)
        sentences = (sentence for document in read for sentence in document.sentences)
        self.workplace.once(STAGE, part, lambda _: learn.count_words(sentences, self.lowercase))


def count_words(
    source: Source,
    lowercase: bool,
    output: str | os.PathLike[str],
    part_bytes: int,
    num_workers: int = 0,
    beam_options: Sequence[str] = (),
) -> Counter[str]:
    """Return the word counts of ``source`` (see ``text.learn.count_words``), whatever the number of workers.

    Args:
      output: the path of the vocabulary to be made later. Finished counts are kept in ``OUTPUT.partial``, so that an
        interrupted run can continue.

    Raises:
      UserError: text cannot be read, or the disk is full.
    """
    parts = group(source.pieces(), part_bytes)
    identity = [source.fingerprint(), lowercase, part_bytes]
    target = os.fspath(files.as_path(output))
    with working(f"{target}.partial", target, hashlib.sha256(json.dumps(identity).encode()).hexdigest()) as workplace:
        engine.run(_CountJob(source, workplace, lowercase), parts, num_workers, beam_options)
        workplace.raise_failures()
        words = learn.merge(workplace.facts(STAGE, part) for part in parts)
        workplace.remove()
    return words
