"""Builds one part of a store: reads its text, tokenizes it, splits off held-out documents and writes the result."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.corpora import duplicates, hits
from bert_jax.corpora.columns import Column, spans_of
from bert_jax.corpora.manifest import SPLITS
from bert_jax.corpora.part_writer import DOCUMENTS, SENTENCES, SHARD, PartWriter, column_ending
from bert_jax.corpora.parts import Part
from bert_jax.corpora.source import Skipped, Source
from bert_jax.corpora.store import column_name, shard_name
from bert_jax.corpora.workplace import Workplace
from bert_jax.records import Document
from bert_jax.storage import files
from bert_jax.text.learn import IDEOGRAPH
from bert_jax.text.tokenizer import Tokenizer

STAGE = "tokens"
BATCH_BYTES = 2 << 20  # bytes of text tokenized at a time
EXTREMES = 3  # how many of the lowest and the highest draws are kept; from them, an error suggests a better fraction
LISTED = 100  # how many held-out documents the manifest names
EXAMPLES = 3  # how many places are kept for each reason to skip


class _Tokenized(NamedTuple):
    """A tokenized document, ready to be written to the store."""

    name: str
    heldout_draw: float  # in [0, 1), from the document's hash; held out if below ``heldout_fraction``
    num_bytes: int
    text_hits: dict[str, dict[str, int]]  # counts of personal data and of wrong encodings
    num_empty: int  # number of sentences without a token, which are left out
    lengths: np.ndarray  # int64 [S], the number of tokens of each sentence, at least 1
    tokens: np.ndarray  # int32 [sum(lengths)]
    columns: dict[str, np.ndarray]  # the values [sum(lengths)] of each column


@dataclasses.dataclass(frozen=True)
class PartJob:
    """Job that builds one part and writes to the shared work folder: a shard per split, lengths, and facts.

    The lengths are those of sentences and documents; the facts are the counts and hashes that the manifest needs.
    """

    source: Source
    tokenizer: Tokenizer
    workplace: Workplace
    num_parts: int
    heldout_fraction: float
    block_tokens: int
    dtype: str
    drop_duplicates: bool = False  # leave out the documents that ``duplicates.mark`` has marked
    columns: tuple[Column, ...] = ()
    listed: int = LISTED  # how many held-out documents are named; 0 for a private corpus

    def __call__(self, part: Part) -> None:
        self.workplace.once(STAGE, part, lambda folder: self._make(part, folder))

    def _make(self, part: Part, folder: Path) -> dict[str, Any]:
        dtypes = {column.name: np.dtype(column.annotator.dtype) for column in self.columns}
        dtype = np.dtype(self.dtype)
        writers = {split: PartWriter(folder, split, dtype, self.block_tokens, dtypes) for split in SPLITS}
        dropped: collections.Counter[str] = collections.Counter()
        skipped: dict[str, dict[str, Any]] = {}
        draws: list[float] = []
        heldout: list[str] = []
        counts: dict[str, Any] = {"documents": 0, "bytes": 0, "text_hits": {}}
        items = (item for piece in part.pieces for item in self.source.read(piece))
        documents = _documents(items, skipped)
        if self.drop_duplicates:
            documents = duplicates.without(documents, np.load(self.workplace.get(duplicates.marks_name(part), folder)))
        for document in tokenize(documents, self.tokenizer, self.columns):
            counts["documents"] += 1
            counts["bytes"] += document.num_bytes
            counts["text_hits"] = hits.add(counts["text_hits"], document.text_hits)
            dropped["empty_sentences"] += document.num_empty
            dropped["empty_documents"] += not len(document.lengths)
            if len(document.lengths):
                draws = extremes([*draws, document.heldout_draw])
                split = "heldout" if document.heldout_draw < self.heldout_fraction else "train"
                if split == "heldout" and len(heldout) < self.listed:
                    heldout.append(document.name)
                writers[split].write(document.tokens, document.lengths, document.columns)
        splits = {split: writer.close() for split, writer in writers.items()}
        facts = {"dropped": dict(dropped), "skipped": skipped, "draws": draws, "heldout": heldout}
        for split, own in splits.items():
            self._publish(part, split, folder, own)
        return {**counts, **facts, "splits": splits}

    def _publish(self, part: Part, split: str, folder: Path, facts: dict[str, Any]) -> None:
        """Move the files of a split to the shared work folder, and add the shards' manifest entries to ``facts``."""
        shard = shard_name(split, part.number, self.num_parts)
        facts["file"] = self._put(folder / f"{split}.{SHARD}", shard)
        for name, column in facts["columns"].items():
            column["file"] = self._put(folder / f"{split}.{column_ending(name)}", column_name(name, shard))
        for ending in (SENTENCES, DOCUMENTS):
            self.workplace.put(folder / f"{split}.{ending}", lengths_name(part, split, ending))

    def _put(self, file: Path, name: str) -> dict[str, Any]:
        """Move a file to the shared work folder and return its manifest entry."""
        facts = {"name": name, "bytes": file.stat().st_size, "sha256": files.sha256(file)}
        self.workplace.put(file, name)
        return facts


def lengths_name(part: Part, split: str, ending: str) -> str:
    """Return the name, in the work folder, of a part's file of lengths, from which the corpus's offsets are made.

    Args:
      ending: ``SENTENCES`` or ``DOCUMENTS``.
    """
    return f"parts/{part.name}.{split}.{ending}"


def extremes(draws: list[float]) -> list[float]:
    """Return ``draws``, ascending; if there are many, only the ``EXTREMES`` lowest and highest."""
    draws = sorted(draws)
    return draws[:EXTREMES] + draws[-EXTREMES:] if len(draws) > 2 * EXTREMES else draws


def _documents(items: Iterable[Document | Skipped], skipped: dict[str, dict[str, Any]]) -> Iterator[Document]:
    """Yield the documents among ``items``, and count the skipped items by reason in ``skipped``."""
    for item in items:
        if isinstance(item, Document):
            yield item
        else:
            facts = skipped.setdefault(item.reason, {"count": 0, "examples": []})
            facts["count"] += 1
            facts["examples"] = [*facts["examples"], item.where][:EXAMPLES]


def tokenize(
    documents: Iterable[Document], tokenizer: Tokenizer, columns: Sequence[Column] = ()
) -> Iterator[_Tokenized]:
    """Yield the documents in order, tokenized in batches of about ``BATCH_BYTES``."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document.sentences))
        if size >= BATCH_BYTES:
            yield from _tokenize(tokenizer, batch, columns)
            batch, size = [], 0
    yield from _tokenize(tokenizer, batch, columns)


def _in_running_text(sentences: Sequence[str], joiner: str) -> list[str]:
    """Return ``sentences`` with ``joiner`` put before each, except the first and any that begins with an ideograph."""
    return [text if i == 0 or IDEOGRAPH.match(text) else joiner + text for i, text in enumerate(sentences)]


def _tokenize(tokenizer: Tokenizer, batch: list[Document], columns: Sequence[Column]) -> Iterator[_Tokenized]:
    texts = [text for document in batch for text in _in_running_text(document.sentences, tokenizer.joiner)]
    encoded = tokenizer.encode_batch(texts)
    spans = [spans_of(tokenizer, *pair) for pair in zip(texts, encoded, strict=True)] if columns else []
    values = {column.name: column.values(texts, spans) for column in columns}
    start = 0
    for document in batch:
        here = slice(start, start + len(document.sentences))
        start = here.stop
        sentences = encoded[here]
        lengths = np.array([len(s) for s in sentences], np.int64)
        tokens = np.concatenate([np.zeros(0, np.int32), *sentences])
        text = "\n".join(document.sentences).encode("utf-8", "replace")
        name = document.id.encode("utf-8", "surrogateescape")
        draw = int.from_bytes(hashlib.sha256(name + b"\0" + text).digest()[:8], "big") / 2**64
        beside = {key: np.concatenate([np.zeros(0, np.uint8), *made[here]]) for key, made in values.items()}
        empty = int((lengths == 0).sum())
        shown = name.decode("utf-8", "replace")
        yield _Tokenized(shown, draw, len(text), hits.text_hits(text), empty, lengths[lengths > 0], tokens, beside)
