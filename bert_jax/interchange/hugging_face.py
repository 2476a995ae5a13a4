"""Writes and reads Hugging Face model directories without torch or transformers."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.interchange.architectures import Head, config_fields, of_config, pretraining_class
from bert_jax.interchange.card import CARD, digests_in, weights_section
from bert_jax.interchange.comparison import check_outputs
from bert_jax.interchange.conversion import Report, leaf, read_params, written_tensors
from bert_jax.interchange.family import family_described, family_of
from bert_jax.interchange.json_files import read_json, write_json
from bert_jax.interchange.pooling import Pooling, write_pooling
from bert_jax.interchange.tensors import MAX_SHARD_BYTES, WEIGHTS, present_names, read_tensors, write_tensors
from bert_jax.interchange.tokenizer_files import read_tokenizer, write_tokenizer
from bert_jax.models.config import ModelConfig
from bert_jax.storage import files, reading
from bert_jax.storage.checksums import CHECKSUMS, first_damage, write_checksums
from bert_jax.storage.replacing import Directory
from bert_jax.text.tokenizer import Tokenizer

__all__ = ["WEIGHTS", "Imported", "export_model", "import_model"]


@dataclasses.dataclass(frozen=True)
class Imported:
    """A model that was read from a Hugging Face directory or from an original TensorFlow checkpoint."""

    params: dict[str, Any]  # one subtree per layer, float32; without missing parts
    config: ModelConfig
    tokenizer: Tokenizer
    head: Head
    report: Report
    licence: str | None = None  # the licence that the model card names

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of tensors that the model's class needs but the file lacks."""
        return self.report.missing

    @property
    def unused(self) -> tuple[str, ...]:
        """The names of tensors in the file that the model's class does not use."""
        return self.report.unused


def export_model(
    params: Any,
    config: ModelConfig,
    tokenizer: Tokenizer,
    output: str | os.PathLike[str],
    card: str,
    head: Head | None = None,
    pooling: Pooling | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    into: Directory = files.whole_directory,
) -> Report:
    """Write a Hugging Face directory and return the report. The directory appears whole or not at all.

    It holds config.json, the tensors, the tokenizer's files, a list of their sha256, and the model card. Before it
    appears, the directory is read again: the tensors must equal those in memory bit by bit, and a numpy model of these
    tensors must give the same outputs as our modules.

    Args:
      params: the unrolled tree of the model; parts that the class of ``head`` does not have are left out.
      card: the text of the model card, without its last section.
      head: if None, the head of a pretrained model that has the parts of ``params``.
      pooling: how sentence-transformers is to pool the vectors of an encoder without head ("BertModel"). If None, no
        files for sentence-transformers are written.
      into: how ``output`` is written: as a new folder, or in place of an older one (``replaced_directory``).

    Raises:
      UserError: ``output`` exists already, the disk is full, a part is missing, or the outputs differ.
    """
    head = head or Head(pretraining_class(family_of(config.encoder), params))
    if pooling and head.ending != "Model":
        raise UserError(
            f"only an encoder without heads can have pooling files, this is a {head.architecture}; add "
            f"--as={head.family.name}Model"
        )
    config = dataclasses.replace(config, layers="unrolled")
    tensors, report = written_tensors(params, config, head, tokenizer.pad_id)
    with into(output) as folder:
        write_tensors(folder, tensors, output, max_shard_bytes)
        described = config_fields(head) | head.family.to_config(config, tokenizer.pad_id)
        write_json(folder / "config.json", described)
        write_tokenizer(folder, config, tokenizer)
        if pooling:
            write_pooling(folder, config, pooling)
        # Only the files that an import reads get checksums. The files for pooling, which lie in a subfolder, get none,
        # and neither does the card, which people may edit.
        digests = write_checksums(folder, sorted(path.name for path in folder.iterdir() if path.is_file()))
        (folder / CARD).write_text(card + weights_section(digests), encoding="utf-8")
        checked = _check_written(folder, params, config, head)
    return dataclasses.replace(
        report, title=f"exported to {output}: {head.architecture}, {_count(tensors)} parameters", notes=(checked,)
    )


def _check_written(folder: Path, params: Any, config: ModelConfig, head: Head) -> str:
    advice = "nothing was written"
    written = _import_local(
        folder, str(folder), f"{advice}; train again with a lower learning rate if the loss diverged"
    )
    kept = {name: tree for name, tree in params.items() if name in head.parts}
    for path, found in jax.tree_util.tree_leaves_with_path(written.params):
        name = "/".join(str(key.key) for key in path)
        mine = leaf(kept, name)
        if mine is None or not np.array_equal(np.asarray(mine, np.float32), found):
            raise UserError(f"the exported model differs from the trained one ({name}); {advice}")
    config = dataclasses.replace(config, dtype="float32", remat="none")
    if (jax.tree.structure(written.params), written.head, written.config) != (jax.tree.structure(kept), head, config):
        raise UserError(f"the exported model has other parts, labels or sizes than the trained one; {advice}")
    return written.report.notes[-1]


def import_model(directory: str | os.PathLike[str]) -> Imported:
    """Return the model in a Hugging Face directory. The model may be of any family and have any head of that family.

    Raises:
      UserError: there is no such model, its weights exist only as a pickle, the tensors do not fit the config, or a
        file is damaged or does not match its sha256 in ``SHA256SUMS`` (without that file, in the model card).
    """
    with files.downloaded(directory) as folder:
        return _import_local(folder, str(directory), "nothing was imported")


def _import_local(folder: Path, where: str, advice: str) -> Imported:
    listed = (folder / CHECKSUMS).exists()
    if damage := listed_damage(folder) if listed else _damage_by_card(folder):
        remedy = f"remove {CHECKSUMS}" if listed else f"remove the sha256 from {CARD}"
        raise UserError(
            f"{where}: {damage}; copy the whole folder again, or {remedy} if somebody changed it on purpose"
        )
    described = read_json(folder / "config.json")
    family = family_described(described, where)
    config = family.from_config(described, where)
    tokenizer = read_tokenizer(folder, config, where)
    raw = read_tensors(folder, where)
    tensors, folded = family.folded(present_names(family, raw, where), described, where)
    head = of_config(family, described, tensors, where)
    read = read_params(tensors, config, head, where, tokenizer.pad_id)
    checked = check_outputs(functools.partial(family.outputs, raw), read.params, config, head, advice)
    title = f"read {where}: {head.architecture}, {_count(tensors)} parameters"
    notes = (*([f"labels: {', '.join(head.labels)}"] if head.labels else []), *folded, checked)
    report = Report(title, read.moved, read.missing, read.unused, notes)
    return Imported(read.params, config, tokenizer, head, report, licence_of(folder))


def listed_damage(folder: Path | epath.Path) -> str | None:
    """Return a description of the first damage found by a folder's list of sha256; None if nothing is damaged.

    A list that does not name the config and the weights counts as damaged.

    Raises:
      OSError: the folder or its list is missing.
    """
    weights = [path.name for path in folder.iterdir() if path.name.endswith(".safetensors")]
    return first_damage(folder, wanted=["config.json", *(weights or [WEIGHTS])])


def export_damage(folder: Path | epath.Path) -> str | None:
    """Return a description of the damage to an exported folder, found by its list of sha256; None if it is intact."""
    try:
        return listed_damage(folder)
    except FileNotFoundError:
        return f"{CHECKSUMS} is missing" if folder.exists() else "it is missing"
    except NotADirectoryError:
        return "it is not a folder"


def _damage_by_card(folder: Path) -> str | None:
    """Return a description of the first weight file that does not match its sha256 in the model card; None if all
    match."""
    try:
        digests = digests_in(reading.read_text(folder / CARD))
    except (OSError, ValueError):
        return None
    changed = (n for n, digest in digests.items() if (folder / n).exists() and files.sha256(folder / n) != digest)
    return next((f"{name} is damaged: its sha256 is not that of {CARD}" for name in changed), None)


def _count(tensors: dict[str, np.ndarray]) -> str:
    return f"{sum(array.size for array in tensors.values()):,}"


def licence_of(folder: str | os.PathLike[str]) -> str | None:
    """Return the licence in the front matter of a folder's model card; None if there is none."""
    try:
        lines = reading.read_text(files.as_path(folder) / CARD).splitlines()
    except (OSError, ValueError):
        return None
    if not lines or lines[0].strip() != "---":
        return None
    front = lines[1 : 1 + next((i for i, line in enumerate(lines[1:]) if line.strip() == "---"), 0)]
    for line in front:
        key, _, value = line.partition(":")
        if key.strip() == "license":
            return value.partition(" #")[0].strip().strip("'\"") or None
    return None
