"""Builds a store: workers make its parts, which are then put together.

An unfinished store is kept in the folder ``OUTPUT.partial`` (on an object store: in ``OUTPUT`` itself, which has no
marker file ``COMMITTED`` yet). If a build is interrupted, the same command builds only the parts that are missing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import bert_jax
from bert_jax.corpora import duplicates, engine, hits, part_job
from bert_jax.corpora.assembly import join_columns, join_splits, write_offsets, write_tfds_metadata
from bert_jax.corpora.card import CARD, write_card
from bert_jax.corpora.columns import Column
from bert_jax.corpora.manifest import HELDOUT_DOCUMENTS, MANIFEST, SPLITS, fingerprint, sealed
from bert_jax.corpora.part_job import PartJob, extremes
from bert_jax.corpora.parts import Part, group
from bert_jax.corpora.privacy import is_private, private_manifest
from bert_jax.corpora.source import Source
from bert_jax.corpora.workplace import Workplace, working
from bert_jax.errors import UserError
from bert_jax.storage import file_formats, files
from bert_jax.text.tokenizer import Tokenizer

FEWEST_DOCUMENTS = 4  # 2 to train on and 2 to hold out: next-sentence prediction draws from another document
LIBRARIES = ("array-record", "numpy", "sentencex", "tensorflow-datasets", "tokenizers")
Facts = dict[str, Any]
Progress = Callable[[int, int, int], None]  # documents, bytes of text, tokens so far


@dataclasses.dataclass(frozen=True)
class BuildConfig:
    """The settings of a build. All but the last three decide the content of the store."""

    heldout_fraction: float = 0.05  # the share of the documents to hold out, chosen by their hash
    block_tokens: int = 4096  # the number of tokens of a record
    part_bytes: int = 0  # the bytes of text in a shard; 0 means chosen by the size of the corpus
    duplicates: duplicates.Kind = "keep"  # "exact" and "near" drop documents that repeat an earlier one
    num_workers: int = 0  # processes on this machine; 0 means one per core
    beam_options: tuple[str, ...] = ()  # flags of an Apache Beam runner on a cluster
    where: str = "config.corpus"  # the path of the keys that describe the source, for messages

    def __post_init__(self) -> None:
        if not 0 < self.heldout_fraction < 1:
            raise UserError(
                f"config.corpus.heldout_fraction is {self.heldout_fraction}; a number between 0 and 1 is needed, such"
                " as 0.05"
            )
        duplicates.check(self.duplicates)
        if self.block_tokens < 1:
            raise UserError(f"config.corpus.block_tokens is {self.block_tokens}; at least 1 is needed, 4096 is good")
        if self.part_bytes < 0:
            raise UserError(
                f"config.corpus.part_bytes is {self.part_bytes}; at least 0 is needed: 0 means by the corpus's size"
            )
        if self.num_workers < 0:
            raise UserError(
                f"config.corpus.num_workers is {self.num_workers}; at least 0 is needed: 0 means one per core"
            )

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the content of the store."""
        free = ("num_workers", "beam_options", "where")
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in free}


def build(
    source: Source,
    tokenizer: Tokenizer,
    output: str | os.PathLike[str],
    config: BuildConfig = BuildConfig(),
    progress: Progress | None = None,
    remarks: Mapping[str, str] | None = None,
    columns: Sequence[Column] = (),
) -> dict[str, Any]:
    """Write the store of ``source`` to ``output`` and return its manifest.

    Whether a document is held out depends only on the hash of its name and text (``part_job``). Memory is bounded by
    the longest document and a few batches per worker. The bytes of the store do not depend on the number of workers.

    Args:
      remarks: further entries of the manifest and the data card (license, notes).
      columns: the columns to write in addition to the tokens.

    Raises:
      UserError: the source is bad, there is nothing to train on or to hold out, there is no second document to draw
        next sentences from, ``output`` is not empty, or the disk is full. After an error nothing is left at ``output``;
        after a full disk, the finished parts stay in ``OUTPUT.partial`` for the next try.
    """
    files.check_new(output)  # checked before any slow work
    facts = {"source": source.describe(), "source_fingerprint": source.fingerprint()}
    parts = group(source.pieces(), config.part_bytes)
    dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    identity: list[Any] = [file_formats.CORPUS.number, facts, config.identity(), tokenizer.sha256, _versions()]
    identity += [[column.name, column.identity()] for column in columns]
    target = os.fspath(files.as_path(output))
    root = target if files.is_remote(target) else f"{target}.partial"
    with working(root, target, hashlib.sha256(json.dumps(identity).encode()).hexdigest()) as workplace:
        run = functools.partial(_run, workplace, parts, config)
        repeated = {}
        if config.duplicates != "keep":
            run(duplicates.FingerprintJob(source, workplace, config.duplicates))
            repeated = duplicates.mark(workplace, parts, config.duplicates)
        job = PartJob(
            source,
            tokenizer,
            workplace,
            len(parts),
            config.heldout_fraction,
            config.block_tokens,
            dtype.name,
            drop_duplicates=bool(repeated),
            columns=tuple(columns),
            listed=0 if is_private(facts) else part_job.LISTED,
        )
        run(job, _Watch(workplace, parts, progress))
        made = [workplace.facts(part_job.STAGE, part) for part in parts]
        _check(made, config)
        splits, beside = join_splits(made), join_columns(columns, made)
        manifest: Facts = {
            file_formats.KEY: file_formats.CORPUS.number,
            "fingerprint": fingerprint(tokenizer.sha256, splits, beside),
            "tokenizer_sha256": tokenizer.sha256,
            "vocab_size": tokenizer.size,
            "lowercase": tokenizer.lowercase,
            "dtype": dtype.name,
            **config.identity(),
            "documents": sum(part["documents"] for part in made),
            "text_bytes": sum(part["bytes"] for part in made),
            "dropped": _dropped(made) | repeated,
            "skipped": _skipped(made),
            "text_hits": _hits(made),
            HELDOUT_DOCUMENTS: [name for part in made for name in part.get("heldout", ())][: part_job.LISTED],
            **(remarks or {}),
            "splits": splits,
            "columns": beside,
            **facts,
            "versions": _versions(),
        }
        return _assemble(workplace, target, parts, made, manifest)


def _run(
    workplace: Workplace,
    parts: Sequence[Part],
    config: BuildConfig,
    work: engine.Work,
    tick: Callable[[], None] = lambda: None,
) -> None:
    engine.run(work, parts, config.num_workers, config.beam_options, tick)
    workplace.raise_failures()


def _assemble(workplace: Workplace, output: str, parts: Sequence[Part], made: list[Facts], manifest: Facts) -> Facts:
    """Write the store's other files beside the shards (manifest last), move all to ``output``, return the manifest."""
    finished = [part["splits"][split] for split in SPLITS for part in made]
    shards = [facts["file"] for facts in finished]
    shards += [column["file"] for facts in finished for column in facts["columns"].values()]
    sizes = {split: sum(part["splits"][split]["file"]["bytes"] for part in made) for split in SPLITS}
    with workplace.scratch() as folder:
        written = write_offsets(workplace, parts, manifest["splits"], folder)
        (folder / "tfds").mkdir()
        written += write_tfds_metadata(folder / "tfds", np.dtype(manifest["dtype"]), manifest["splits"], sizes)
        described = [{"name": p.name, "bytes": p.stat().st_size, "sha256": files.sha256(p)} for p in written]
        listing = sorted(shards + described, key=lambda facts: facts["name"])
        manifest["files"] = {f["name"]: {"bytes": f["bytes"], "sha256": f["sha256"]} for f in listing}
        manifest = sealed(manifest)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
        digests = {name: facts["sha256"] for name, facts in manifest["files"].items()}
        digests[MANIFEST] = files.sha256(folder / MANIFEST)
        # The manifest does not list the card, because ``bert-jax inspect`` may rewrite the card later.
        shown = private_manifest(manifest) if is_private(manifest) else manifest
        (folder / CARD).write_text(write_card(shown), "utf-8")
        digests[CARD] = files.sha256(folder / CARD)
        for path in [*written, folder / CARD, folder / MANIFEST]:
            workplace.put(path, path.name)
    workplace.become(output, digests)
    return manifest


class _Watch:
    """Reports to ``progress`` how much text the finished parts hold."""

    def __init__(self, workplace: Workplace, parts: Sequence[Part], progress: Progress | None) -> None:
        self._workplace, self._progress = workplace, progress
        self._pending = list(parts)
        self._counts = (0, 0, 0)

    def __call__(self) -> None:
        if self._progress is None:
            return
        finished = [part for part in self._pending if self._workplace.finished(part_job.STAGE, part)]
        for facts in (self._workplace.facts(part_job.STAGE, part) for part in finished):
            documents, num_bytes, tokens = self._counts
            new = sum(split["num_tokens"] for split in facts["splits"].values())
            self._counts = (documents + facts["documents"], num_bytes + facts["bytes"], tokens + new)
        self._pending = [part for part in self._pending if part not in finished]
        self._progress(*self._counts)


def _check(made: Sequence[Facts], config: BuildConfig) -> None:
    """Raise ``UserError`` if the corpus or a split has too few documents: next-sentence prediction draws from two."""
    found = {split: sum(part["splits"][split]["num_documents"] for part in made) for split in SPLITS}
    total = sum(found.values())
    name = "the corpus" if config.where == "config.corpus" else config.where.rpartition(".")[2]
    begin, options = f"{name} has {total} document{'s' * (total != 1)} with text", f"{config.where}.options"
    share = config.heldout_fraction
    skipped = ", ".join(f"{facts['count']:,} x {reason}" for reason, facts in _skipped(made).items())
    left_out = f" (left out: {skipped})" if skipped else ""
    if total == 0:
        raise UserError(f"{name} is empty: no document has text{left_out}; check {options}")
    if total < FEWEST_DOCUMENTS:
        raise UserError(
            f"{begin}{left_out}; at least {FEWEST_DOCUMENTS} are needed, 2 to train on and 2 to hold out: add files, or"
            f" see in {options} what ends a document (text_files: document_boundary='blank_line', or 'line')"
        )
    draws = extremes([draw for part in made for draw in part["draws"]])
    for split, count in found.items():
        if count < 2:
            third = sorted(draws, reverse=split == "train")[1:3]
            raise UserError(
                f"{begin}, and heldout_fraction={share} puts {count} of them into the split {split!r}, which"
                f" needs 2; --config.corpus.heldout_fraction={sum(third) / 2:.4f} does, and so do more documents"
                f" (text_files: more files, or --{options}.document_boundary=blank_line, line or title)"
            )


def _dropped(made: Sequence[Facts]) -> dict[str, int]:
    names = ("empty_documents", "empty_sentences")
    return {name: sum(part["dropped"].get(name, 0) for part in made) for name in names}


def _hits(made: Sequence[Facts]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for part in made:
        total = hits.add(total, part["text_hits"])
    return total


def _skipped(made: Sequence[Facts]) -> dict[str, Facts]:
    """Return, for each reason to skip text, its ``count`` and ``examples`` (the first places where it occurred)."""
    skipped: dict[str, Facts] = {}
    for part in made:
        for reason, facts in part["skipped"].items():
            total = skipped.setdefault(reason, {"count": 0, "examples": []})
            total["count"] += facts["count"]
            total["examples"] = [*total["examples"], *facts["examples"]][: part_job.EXAMPLES]
    return dict(sorted(skipped.items()))


def _versions() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), "bert_jax": bert_jax.__version__, **versions}
