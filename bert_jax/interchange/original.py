"""Reads checkpoints as Google released them: ``bert_model.ckpt.*``, ``bert_config.json`` and ``vocab.txt``."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interchange import names
from bert_jax.interchange.architectures import Head, of_config
from bert_jax.interchange.comparison import check_outputs
from bert_jax.interchange.conversion import Report, read_params
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import Imported
from bert_jax.interchange.json_files import read_json
from bert_jax.interchange.reference import OriginalNames, reference_outputs
from bert_jax.interchange.tensor_bundle import read_bundle
from bert_jax.interchange.tensors import check_finite, present_names
from bert_jax.interchange.tokenizer_files import read_tokenizer
from bert_jax.storage import files

CONFIG, CHECKPOINT = "bert_config.json", "bert_model.ckpt"


def is_original(directory: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds an original TensorFlow checkpoint but no Hugging Face model."""
    folder = files.as_path(directory)
    return (folder / CONFIG).exists() and not (folder / "config.json").exists()


def import_original(directory: str | os.PathLike[str], lowercase: bool | None = None) -> Imported:
    """Return the model in a checkpoint of google-research/bert.

    The model may be pretrained, or fine-tuned by run_classifier.py or run_squad.py.

    Args:
      lowercase: whether the tokenizer lower-cases text (``do_lower_case``), which no file of the checkpoint records. If
        None, the folder's name has to say it ("uncased" or "cased").

    Raises:
      UserError: ``lowercase`` is None and the folder's name says neither; files are missing, damaged or do not fit
        together.
    """
    where = str(directory)
    if lowercase is None:
        lowercase = lowercase_of(os.path.basename(os.path.abspath(where)), where)
    with files.downloaded(directory) as folder:
        family = family_of("bert")
        config = family.from_config(read_json(folder / CONFIG), where, CONFIG)
        tokenizer = read_tokenizer(folder, config, where, lowercase)
        prefix = _prefix(folder, where)
        stored = read_bundle(prefix)
        raw = {name: array for name, array in stored.items() if not name.endswith(names.OPTIMIZER)}
        check_finite(raw, where)
        tensors = present_names(family, names.from_original(raw, family.entries(config.num_layers)), where)
        head = _head(tensors, where)
        read = read_params(tensors, config, head, where)
        reference = functools.partial(reference_outputs, OriginalNames(raw))
        checked = check_outputs(reference, read.params, config, head, "nothing was imported")
    back = {entry.theirs: entry.original for entry in family.entries(config.num_layers)}
    moved = tuple((entry._replace(theirs=entry.original), raw[entry.original].shape) for entry, _ in read.moved)
    count = sum(array.size for array in raw.values())
    case = "lower-case" if lowercase else "cased"
    notes = [f"the vocabulary is read as {case}", checked]
    if len(raw) < len(stored):
        notes.insert(0, f"skipped: {len(stored) - len(raw)} tensors of the optimizer")
    report = Report(
        f"read {where}/{prefix.name}: {head.architecture}, {count:,} parameters",
        moved,
        tuple(back[name] for name in read.missing),
        read.unused,
        tuple(notes),
    )
    return Imported(read.params, config, tokenizer, head, report)


def lowercase_of(name: str, where: str) -> bool:
    """Return whether a folder's name contains "uncased".

    Raises ``UserError`` if the name contains neither "uncased" nor "cased".
    """
    if "uncased" in name.lower():
        return True
    if "cased" in name.lower():
        return False
    raise UserError(
        f"nothing in {where} says whether its text was lower-cased (do_lower_case), and its name has neither uncased "
        "nor cased: add --lowercase=true (as the Chinese model) or --lowercase=false"
    )


def _head(tensors: Mapping[str, Any], where: str) -> Head:
    head = of_config(family_of("bert"), {"num_labels": 1}, tensors, where)
    return Head() if head.architecture in ("BertModel", "BertForMaskedLM") else head


def _prefix(folder: Path, where: str) -> Path:
    """Return the path of the only checkpoint in a folder, without the endings ".index" and ".data-..."."""
    found = sorted(path.name.removesuffix(".index") for path in folder.glob("*.index"))
    if CHECKPOINT in found:
        return folder / CHECKPOINT
    if len(found) != 1:
        what = f"several checkpoints: {', '.join(found)}" if found else f"no {CHECKPOINT}.index"
        raise UserError(f"{where} has {what}; leave one checkpoint there, with its .index and .data files")
    return folder / found[0]
