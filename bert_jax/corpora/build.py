"""Builds a store: workers make its shards, which are then put together.

An unfinished store is kept in the folder ``OUTPUT.partial`` (on an object store: in ``OUTPUT`` itself, which has no
marker file ``COMMITTED`` yet). If a build is interrupted, the same command makes only the shards that are missing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bert_jax
from bert_jax.configuration import check_fields
from bert_jax.corpora import duplicates, engine
from bert_jax.corpora.columns import Column
from bert_jax.corpora.hits import text_hits
from bert_jax.corpora.manifest import MANIFEST, SPLITS, fingerprint, seal
from bert_jax.corpora.privacy import redact
from bert_jax.corpora.shard_job import DOCUMENTS, EXAMPLES, FACTS, SENTENCES, ShardJob, extremes, lengths_name
from bert_jax.corpora.source import Shard, Source, shards_of
from bert_jax.corpora.store import DATASET_NAME, boundaries_name
from bert_jax.corpora.workplace import Workplace, open_workplace
from bert_jax.errors import UserError
from bert_jax.storage import files
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.workdir import file_formats

FEWEST_DOCUMENTS = 4  # 2 to train on and 2 to hold out: next-sentence prediction draws from another document
_LIBRARIES = ("array-record", "numpy", "sentencex", "tensorflow-datasets", "tokenizers")
_COUNTS = ("num_documents", "num_sentences", "num_tokens")
Facts = dict[str, Any]
Progress = Callable[[int, int, int], None]  # documents, bytes of text, tokens so far


@dataclasses.dataclass(frozen=True)
class BuildConfig:
    """The settings of a build. The first four decide the content of the store."""

    heldout_fraction: float = 0.05  # the share of the documents to hold out, chosen by their hash
    block_tokens: int = 4096  # the number of tokens of a record
    part_bytes: int = 0  # the bytes of text in a shard; 0 means chosen by the size of the corpus
    duplicates: duplicates.Duplicates = "keep"  # "exact" drops documents that repeat an earlier one
    num_workers: int = 0  # processes on this machine; 0 means one per core
    beam_options: tuple[str, ...] = ()  # flags of an Apache Beam runner on a cluster
    where: str = "config.corpus"  # the path of the keys that describe the source, for messages
    private: bool = False  # whether names, places and descriptions of the text are hidden (``corpora.privacy``)

    def __post_init__(self) -> None:
        share, number = "a number between 0 and 1 is needed, such as 0.05", "at least 0 is needed"
        check_fields(self, "config.corpus", share, "heldout_fraction", sound=lambda value: 0 < value < 1)
        check_fields(self, "config.corpus", number, "part_bytes", "num_workers", sound=lambda value: value >= 0)

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the content of the store."""
        return {name: getattr(self, name) for name in ("heldout_fraction", "block_tokens", "part_bytes", "duplicates")}


def build(
    source: Source,
    tokenizer: Tokenizer,
    output: str | os.PathLike[str],
    config: BuildConfig = BuildConfig(),
    progress: Progress = lambda *counts: None,
    columns: Sequence[Column] = (),
) -> Facts:
    """Write the store of ``source`` to ``output`` and return its manifest.

    Whether a document is held out depends only on the hash of its name and text (``shard_job``). Memory is bounded by
    the longest document and a few batches per worker. The bytes of the store do not depend on the number of workers.

    Args:
      columns: the columns to write in addition to the tokens.

    Raises:
      UserError: the source is bad, there is nothing to train on or to hold out, there is no second document to draw
        next sentences from, ``output`` is not empty, or the disk is full. After an error nothing is left at ``output``;
        after a full disk, the finished shards stay in ``OUTPUT.partial`` for the next try.
    """
    files.check_new(output)  # checked before any slow work
    described = {**redact(source.describe()), "private": True} if config.private else source.describe()
    facts = {"source": described, "source_fingerprint": source.fingerprint()}
    shards = shards_of(source.pieces(), config.part_bytes)
    dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    identity: list[Any] = [file_formats.CORPUS.number, facts, config.identity(), tokenizer.sha256, _versions()]
    identity += [[column.name, column.identity()] for column in columns]
    target = os.fspath(files.as_path(output))
    root = target if files.is_remote(target) else f"{target}.partial"
    with open_workplace(root, target, hashlib.sha256(json.dumps(identity).encode()).hexdigest()) as workplace:
        run = functools.partial(
            engine.run, shards=shards, num_workers=config.num_workers, beam_options=config.beam_options
        )
        repeated = {}
        if config.duplicates != "keep":
            repeated = duplicates.mark(source, workplace, shards, run)
        job = ShardJob(
            source,
            tokenizer,
            workplace,
            len(shards),
            config.heldout_fraction,
            config.block_tokens,
            dtype.name,
            drop_duplicates=bool(repeated),
            columns=tuple(columns),
            private=config.private,
        )
        work = functools.partial(_once, workplace, job)
        run(work, done=_adding(progress, work))
        written = [work(shard) for shard in shards]
        _check(written, config)
        splits = {split: _join_split(split, written) for split in SPLITS}
        beside = {column.name: _join_column(column, written) for column in columns}
        manifest: Facts = {
            file_formats.KEY: file_formats.CORPUS.number,
            "fingerprint": fingerprint(tokenizer.sha256, splits, beside),
            "tokenizer_sha256": tokenizer.sha256,
            "vocab_size": tokenizer.size,
            **tokenizer.case._asdict(),
            "dtype": dtype.name,
            **config.identity(),
            "documents": sum(shard["documents"] for shard in written),
            "text_bytes": sum(shard["bytes"] for shard in written),
            "dropped": _dropped(written) | repeated,
            "skipped": _skipped(written),
            "text_hits": {
                "encoding": {name: sum(s["text_hits"][name] for s in written) for name in text_hits(b"")},
                "losses": [sum(counts) for counts in zip(*(s["losses"] for s in written), strict=True)],
            },
            "splits": splits,
            "columns": beside,
            **facts,
            "versions": _versions(),
        }
        return _assemble(workplace, target, shards, written, manifest)


def _once(workplace: Workplace, job: ShardJob, shard: Shard) -> Facts:
    """Return the facts of a shard. Raises ``UserError`` if another version of this code recorded other facts."""
    facts = workplace.once("tokens", job, shard)
    if facts.keys() != FACTS:
        advice = "remove it, and give" if files.is_remote(workplace.root) else "give"
        raise UserError(
            f"{workplace.root} was begun by another version of bert_jax, which recorded other facts; {advice} the same "
            "command again, which then begins anew"
        )
    return facts


def _adding(progress: Progress, facts_of: Callable[[Shard], Facts]) -> Callable[[Shard], None]:
    """Return a function that adds the counts of a shard to sums, and calls ``progress`` with the sums."""
    total = np.zeros(3, np.int64)

    def add(shard: Shard) -> None:
        facts = facts_of(shard)
        tokens = sum(split["num_tokens"] for split in facts["splits"].values())
        total[:] += (facts["documents"], facts["bytes"], tokens)
        progress(*total.tolist())

    return add


def _assemble(
    workplace: Workplace, output: str, shards: Sequence[Shard], written: list[Facts], manifest: Facts
) -> Facts:
    """Write the store's other files beside the shards (manifest last), move all to ``output``, return the manifest."""
    of_splits = [shard["splits"][split] for split in SPLITS for shard in written]
    entries = [facts["file"] for facts in of_splits]
    entries += [column["file"] for facts in of_splits for column in facts["columns"].values()]
    with workplace.scratch() as folder:
        paths = _write_offsets(workplace, shards, manifest["splits"], folder)
        (folder / "tfds").mkdir()
        sizes = {split: sum(shard["splits"][split]["file"]["bytes"] for shard in written) for split in SPLITS}
        paths += _write_tfds_metadata(folder / "tfds", np.dtype(manifest["dtype"]), manifest["splits"], sizes)
        entries += [{"name": p.name, "bytes": p.stat().st_size, "sha256": files.sha256(p)} for p in paths]
        entries.sort(key=lambda entry: entry["name"])
        manifest["files"] = {e["name"]: {"bytes": e["bytes"], "sha256": e["sha256"]} for e in entries}
        manifest = seal(manifest)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
        digests = {entry["name"]: entry["sha256"] for entry in entries} | {MANIFEST: files.sha256(folder / MANIFEST)}
        for path in [*paths, folder / MANIFEST]:
            workplace.put(path, path.name)
    workplace.become(output, digests)
    return manifest


def _check(written: Sequence[Facts], config: BuildConfig) -> None:
    """Raise ``UserError`` if the corpus or a split has too few documents: next-sentence prediction draws from two."""
    counts = {split: sum(shard["splits"][split]["num_documents"] for shard in written) for split in SPLITS}
    total = sum(counts.values())
    name = "the corpus" if config.where == "config.corpus" else config.where.rpartition(".")[2]
    begin, options = f"{name} has {total} document{'s' * (total != 1)} with text", f"{config.where}.options"
    skipped = ", ".join(f"{facts['count']:,} x {reason}" for reason, facts in _skipped(written).items())
    left_out = f" (left out: {skipped})" if skipped else ""
    if total == 0:
        raise UserError(f"{name} is empty: no document has text{left_out}; check {options}")
    if total < FEWEST_DOCUMENTS:
        raise UserError(
            f"{begin}{left_out}; at least {FEWEST_DOCUMENTS} are needed, 2 to train on and 2 to hold out: add files, or"
            f" cut them: --{options}.document_boundary=pages (text_files; or blank_line, line)"
        )
    draws = extremes([draw for shard in written for draw in shard["draws"]])
    for split, count in counts.items():
        if count < 2:
            second_and_third = sorted(draws, reverse=split == "train")[1:3]
            raise UserError(
                f"{begin}, and heldout_fraction={config.heldout_fraction} puts {count} of them into the split"
                f" {split!r}, which needs 2: cut files into more documents with --{options}.document_boundary=pages"
                " (text_files; or blank_line, line, title), add files, or write"
                f" --config.corpus.heldout_fraction={sum(second_and_third) / 2:.4f}"
            )


def _dropped(written: Sequence[Facts]) -> dict[str, int]:
    names = ("empty_documents", "empty_sentences")
    return {name: sum(shard["dropped"].get(name, 0) for shard in written) for name in names}


def _skipped(written: Sequence[Facts]) -> dict[str, Facts]:
    """Return, for each reason to skip text, its ``count`` and ``examples`` (the first places where it occurred)."""
    skipped: dict[str, Facts] = {}
    for shard in written:
        for reason, facts in shard["skipped"].items():
            total = skipped.setdefault(reason, {"count": 0, "examples": []})
            total["count"] += facts["count"]
            total["examples"] = [*total["examples"], *facts["examples"]][:EXAMPLES]
    return dict(sorted(skipped.items()))


def _versions() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"python": platform.python_version(), "bert_jax": bert_jax.__version__, **versions}


def _join_split(split: str, written: Sequence[Facts]) -> Facts:
    """Return the entry of a split in the manifest, from the facts of the shards."""
    shards = [facts["splits"][split] for facts in written]
    content = "\n".join(shard["fingerprint"] for shard in shards if shard["num_documents"])
    return {
        **{name: sum(shard[name] for shard in shards) for name in _COUNTS},
        "num_words": sum(facts["words"][split] for facts in written),
        "fingerprint": hashlib.sha256(content.encode()).hexdigest(),
        "shards": [
            {"name": shard["file"]["name"], "num_blocks": shard["num_blocks"], "num_tokens": shard["num_tokens"]}
            for shard in shards
        ],
    }


def _join_column(column: Column, written: Sequence[Facts]) -> Facts:
    """Return the entry of a column in the manifest, from the facts of the shards."""
    shards = [shard["splits"][split] for split in SPLITS for shard in written]
    values = [facts["columns"][column.name]["fingerprint"] for facts in shards if facts["num_documents"]]
    identity = column.identity()
    return {**identity, "fingerprint": hashlib.sha256(json.dumps([identity, values]).encode()).hexdigest()}


def _write_offsets(
    workplace: Workplace, shards: Sequence[Shard], splits: dict[str, dict[str, Any]], folder: Path
) -> list[Path]:
    """Write the offset arrays of each split to ``folder``, shard by shard in bounded memory; return their paths."""
    written = []
    for split, facts in splits.items():
        for ending, name, count in (
            (SENTENCES, boundaries_name(split, "sentence_offsets"), facts["num_sentences"]),
            (DOCUMENTS, boundaries_name(split, "document_starts"), facts["num_documents"]),
        ):
            path = folder / name
            offsets = np.lib.format.open_memmap(path, "w+", np.int64, (count + 1,))
            offsets[0] = filled = total = 0
            for shard in shards:
                copy = workplace.get(lengths_name(shard, split, ending), folder)
                lengths = np.load(copy, mmap_mode="r")
                np.cumsum(lengths, out=offsets[filled + 1 : filled + 1 + len(lengths)])
                offsets[filled + 1 : filled + 1 + len(lengths)] += total
                filled += len(lengths)
                total = int(offsets[filled])
                if copy.parent == folder:
                    copy.unlink()
            offsets.flush()
            written.append(path)
    return written


def _write_tfds_metadata(
    folder: Path, dtype: np.dtype, splits: dict[str, dict[str, Any]], num_bytes: dict[str, int]
) -> list[Path]:
    """Write ``dataset_info.json`` and ``features.json``, so that TFDS can read the store without TensorFlow.

    Args:
      folder: an empty folder.
      num_bytes: split -> the total size of its shards.

    Returns:
      The paths of the two files.
    """
    import tensorflow_datasets as tfds

    for facts in splits.values():
        for shard in facts["shards"]:
            (folder / shard["name"]).touch()  # TFDS now checks that files of these names exist
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
                num_bytes=num_bytes[name],
                filename_template=template,
            )
            for name, facts in splits.items()
        ],
        version="1.0.0",
        check_data=False,
        description="Blocks of tokens; sentence and document boundaries are in the .npy files beside them.",
    )
    return [folder / "dataset_info.json", folder / "features.json"]
