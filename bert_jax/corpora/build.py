"""Documents to the store: tokenize, split off held-out documents, write blocks, offsets and manifest."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

import bert_jax
from bert_jax import files
from bert_jax.corpora.split_writer import SplitWriter
from bert_jax.corpora.store import DATASET_NAME, FORMAT_VERSION, MANIFEST, SPLITS
from bert_jax.errors import UserError
from bert_jax.records import Document
from bert_jax.text.tokenizer import Tokenizer

BATCH_BYTES = 2 << 20  # of text tokenized at a time
LIBRARIES = ("array-record", "numpy", "sentencex", "tensorflow-datasets", "tokenizers")
Progress = Callable[[int, int, int], None]  # documents, bytes of text, tokens so far


class Source(Protocol):
    """Where documents come from: ``corpora.text_files.Source`` and its like."""

    def documents(self) -> Iterator[Document]: ...

    def fingerprint(self) -> str: ...

    def describe(self) -> dict[str, Any]: ...


class Tokenized(NamedTuple):
    """A document as the store keeps it."""

    heldout_draw: float  # in [0, 1), from the hash of the document: held out if below the fraction
    num_bytes: int
    num_empty: int  # sentences without a token, left out
    lengths: np.ndarray  # int64 [S], all at least 1
    tokens: np.ndarray  # int32 [sum(lengths)]


def build(
    source: Source,
    tokenizer: Tokenizer,
    output: str | os.PathLike[str],
    *,
    heldout_fraction: float = 0.05,
    block_tokens: int = 4096,
    num_workers: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the store of ``source`` to ``output`` and return its manifest.

    A document is held out by the hash of its name and text, whatever the other documents. Memory is bounded by the
    longest document and a few batches. ``num_workers`` processes tokenize (0: this one); the store is the same.

    Raises:
      UserError: bad source, nothing to train on or to hold out, no second document to draw next sentences from,
        ``output`` not empty, full disk. Then nothing is left at ``output``.
    """
    if not 0 < heldout_fraction < 1:
        raise UserError(f"heldout_fraction is {heldout_fraction}; a number between 0 and 1 is needed, such as 0.05")
    if block_tokens < 1:
        raise UserError(f"block_tokens is {block_tokens}; at least 1 is needed, 4096 is good")
    facts = {"source": source.describe(), "source_fingerprint": source.fingerprint()}
    dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    with files.whole_directory(output) as folder, contextlib.ExitStack() as stack:
        writers = {s: stack.enter_context(SplitWriter(folder, s, dtype, block_tokens)) for s in SPLITS}
        dropped = {"empty_sentences": 0, "empty_documents": 0}
        draws: list[float] = []  # the lowest and the highest three
        num_documents = num_bytes = num_tokens = 0
        for document in _tokenized(source.documents(), tokenizer, num_workers):
            num_documents, num_bytes = num_documents + 1, num_bytes + document.num_bytes
            num_tokens += len(document.tokens)
            dropped["empty_sentences"] += document.num_empty
            dropped["empty_documents"] += not len(document.lengths)
            if len(document.lengths):
                draws = sorted([*draws, document.heldout_draw])
                draws = draws[:3] + draws[-3:] if len(draws) > 6 else draws
                writers["heldout" if document.heldout_draw < heldout_fraction else "train"].write(
                    document.tokens, document.lengths
                )
            if progress:
                progress(num_documents, num_bytes, num_tokens)
        _check(writers, heldout_fraction, draws)
        splits = {name: writer.close() for name, writer in writers.items()}
        _write_tfds_metadata(folder, dtype, splits)
        manifest = {
            "format_version": FORMAT_VERSION,
            "fingerprint": _hash([tokenizer.sha256, *(splits[name]["fingerprint"] for name in SPLITS)]),
            "tokenizer_sha256": tokenizer.sha256,
            "vocab_size": tokenizer.size,
            "lowercase": tokenizer.lowercase,
            "dtype": dtype.name,
            "block_tokens": block_tokens,
            "heldout_fraction": heldout_fraction,
            "text_bytes": num_bytes,
            "dropped": dropped,
            "splits": splits,
            **facts,
            "versions": _versions(),
            "files": {
                path.name: {"bytes": path.stat().st_size, "sha256": files.sha256(path)}
                for path in sorted(folder.iterdir())
            },
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
    return manifest


def _tokenized(documents: Iterable[Document], tokenizer: Tokenizer, num_workers: int) -> Iterator[Tokenized]:
    """Tokenized documents in the order of ``documents``, with a bounded number of batches in flight."""
    batches = _batches(documents)
    if num_workers == 0:
        for batch in batches:
            yield from _tokenize(tokenizer, batch)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of libraries in a broken state
    with concurrent.futures.ProcessPoolExecutor(num_workers, context, _start_worker, (tokenizer,)) as pool:
        waiting: collections.deque[concurrent.futures.Future[list[Tokenized]]] = collections.deque()
        for batch in batches:
            waiting.append(pool.submit(_tokenize_in_worker, batch))
            if len(waiting) > 2 * num_workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document.sentences))
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _tokenize(tokenizer: Tokenizer, batch: list[Document]) -> list[Tokenized]:
    encoded = tokenizer.encode_batch([sentence for document in batch for sentence in document.sentences])
    result = []
    start = 0
    for document in batch:
        sentences = encoded[start : start + len(document.sentences)]
        start += len(document.sentences)
        lengths = np.array([len(s) for s in sentences], np.int64)
        tokens = np.concatenate([np.zeros(0, np.int32), *sentences])
        text = "\n".join(document.sentences).encode("utf-8", "replace")
        name = document.id.encode("utf-8", "surrogateescape")
        draw = int.from_bytes(hashlib.sha256(name + b"\0" + text).digest()[:8], "big") / 2**64
        result.append(Tokenized(draw, len(text), int((lengths == 0).sum()), lengths[lengths > 0], tokens))
    return result


_tokenizer: Tokenizer  # of a worker process


def _start_worker(tokenizer: Tokenizer) -> None:
    global _tokenizer
    os.environ["RAYON_NUM_THREADS"] = "1"  # the processes are the parallelism
    _tokenizer = tokenizer


def _tokenize_in_worker(batch: list[Document]) -> list[Tokenized]:
    return _tokenize(_tokenizer, batch)


def _check(writers: dict[str, SplitWriter], heldout_fraction: float, draws: list[float]) -> None:
    """Raise ``UserError`` if the corpus cannot serve: next-sentence prediction draws from a second document.

    Args:
      draws: of the documents, ascending; of more than six, the lowest and the highest three.
    """
    found = {name: writer.num_documents for name, writer in writers.items()}
    total = sum(found.values())
    told = f"the corpus has {total} document{'s' * (total != 1)} with text"
    if total == 0:
        raise UserError("the corpus is empty: no document has text; check corpus.paths or corpus.packages")
    if total < 4:
        raise UserError(
            f"{told}; at least 4 are needed, 2 to train on and 2 to hold out: add files, or set"
            " corpus.document_boundary='blank_line'"
        )
    if sum(writer.num_long_documents for writer in writers.values()) < 2:
        raise UserError(
            f"{told}, fewer than 2 of them with 2 sentences or more; next-sentence prediction needs them: check the"
            " corpus.format (one sentence a line, or free text) and corpus.document_boundary"
        )
    for split, count in found.items():
        if count < 2:
            third = sorted(draws, reverse=split == "train")[1:3]
            raise UserError(
                f"{told}, and heldout_fraction={heldout_fraction} puts {count} of them into the split {split!r}, which"
                f" needs 2; heldout_fraction={sum(third) / 2:.4f} does, and so do more documents"
            )


def _write_tfds_metadata(folder: Path, dtype: np.dtype, splits: dict[str, dict[str, Any]]) -> None:
    """``dataset_info.json`` and ``features.json``, with which TFDS reads the folder without TensorFlow."""
    import tensorflow_datasets as tfds

    template = tfds.core.ShardedFileTemplate(data_dir=folder, dataset_name=DATASET_NAME, filetype_suffix="array_record")
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=tfds.features.FeaturesDict(
            {"tokens": tfds.features.Tensor(shape=(None,), dtype=dtype, encoding=tfds.features.Encoding.BYTES)}
        ),
        split_infos=[
            tfds.core.SplitInfo(
                name=name,
                shard_lengths=[shard["num_blocks"] for shard in facts["shards"]],
                num_bytes=sum((folder / shard["name"]).stat().st_size for shard in facts["shards"]),
                filename_template=template,
            )
            for name, facts in splits.items()
        ],
        version="1.0.0",
        check_data=False,
        description="Blocks of tokens; sentence and document boundaries are in the .npy files beside them.",
    )


def _versions() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), "bert_jax": bert_jax.__version__, **versions}


def _hash(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
