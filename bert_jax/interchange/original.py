"""Reads checkpoints as Google released them: ``bert_model.ckpt.*``, ``bert_config.json`` and ``vocab.txt``."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interchange.architectures import HeadClass, of_config
from bert_jax.interchange.conversion import read_params
from bert_jax.interchange.family import family_of
from bert_jax.interchange.json_files import read_json
from bert_jax.interchange.tensor_bundle import read_bundle
from bert_jax.interchange.tensors import check_finite, current_names
from bert_jax.interchange.tokenizer_files import read_tokenizer
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.storage import files
from bert_jax.text import settings
from bert_jax.text.case import KEYS, NOT_SAID, Case

CONFIG, CHECKPOINT = "bert_config.json", "bert_model.ckpt"

# Endings of variables that belong to the optimizer, not to the model.
_OPTIMIZER = ("/adam_m", "/adam_v", "global_step")
_ENDINGS = {
    "kernel": "weight", "gamma": "weight", "beta": "bias", "output_weights": "weight", "output_bias": "bias"
}  # fmt: skip


def is_original(directory: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds an original TensorFlow checkpoint but no Hugging Face model."""
    folder = files.as_path(directory)
    return (folder / CONFIG).exists() and not (folder / "config.json").exists()


def import_original(directory: str | os.PathLike[str], given: Case = NOT_SAID, keys: str | None = None) -> TrainedModel:
    """Return the model in a checkpoint of google-research/bert.

    The model may be pretrained, or fine-tuned by run_classifier.py or run_squad.py.

    Args:
      given: the case of the model's text (``do_lower_case``), which no file of the checkpoint records. If it is not
        given, the folder's name has to say it ("uncased" or "cased").
      keys: the beginning of the flags that give the case, for messages; None if there are no such flags.

    Raises:
      UserError: nothing says the case; files are missing, damaged or do not fit together.
    """
    where = str(directory)
    with files.download(directory) as folder:
        family = family_of("bert")
        config = family.from_config(read_json(folder / CONFIG), where, CONFIG)
        said = settings.beside(folder / CONFIG).switch("do_lower_case")
        if said is None and given.lowercase is None:
            given = given._replace(lowercase=_lowercase_of(os.path.basename(os.path.abspath(where)), where, keys))
        tokenizer = read_tokenizer(folder, config, where, given)
        prefix = _prefix(folder, where)
        stored = read_bundle(prefix)
        raw = {name: array for name, array in stored.items() if not name.endswith(_OPTIMIZER)}
        check_finite(raw, where)
        known = {entry.theirs for entry in family.entries(config.num_layers)}
        originals = {current_name(name): name for name in raw if current_name(name) in known}
        renamed = {name: raw[old].T if old.endswith("/kernel") else raw[old] for name, old in originals.items()}
        unknown = {name: array for name, array in raw.items() if name not in originals.values()}
        tensors = current_names(family, renamed | unknown, where)
        head = _head(tensors, where)
        params, report = read_params(tensors, config, head, where)
    names_read = tuple(originals[name] for name in report.tensors)
    count = sum(array.size for array in raw.values())
    case = "lower-case" if tokenizer.lowercase else "cased"
    notes = [f"the vocabulary is read as {case}"]
    if len(raw) < len(stored):
        notes.insert(0, f"skipped: {len(stored) - len(raw)} tensors of the optimizer")
    title = f"read {where}/{prefix.name}: {head.architecture}, {count:,} parameters"
    report = dataclasses.replace(report, title=title, tensors=names_read, notes=tuple(notes))
    return TrainedModel(where, params, config, tokenizer, head, report=report)


def current_name(variable: str) -> str:
    """Return the name in transformers of a variable of google-research/bert.

    Kernels of output layers (``output_weights``) are stored as transformers has them; all other kernels are transposed.
    """
    variable = re.sub("^output_", "classifier/output_", variable.replace("cls/squad/", "qa_outputs/"))
    module, _, last = variable.replace("layer_", "layer.").replace("/", ".").rpartition(".")
    return f"{module}.{_ENDINGS.get(last, f'{last}.weight' if last.endswith('_embeddings') else last)}"


def _lowercase_of(name: str, where: str, keys: str | None) -> bool:
    """Return whether a folder's name contains "uncased".

    Raises ``UserError`` if the name contains neither "uncased" nor "cased".
    """
    if "uncased" in name.lower():
        return True
    if "cased" in name.lower():
        return False
    first = "" if keys else f"import it first (`bert-jax import --input={where} --workdir=NEW`), and "
    yes, no = ("True", "False") if keys == KEYS else ("true", "false")
    flag = f"{keys or '--'}lowercase"
    raise UserError(
        f"nothing in {where} says whether its text was lower-cased (do_lower_case), and its name has neither uncased "
        f"nor cased: {first}add {flag}={yes} (as the Chinese model) or {flag}={no}"
    )


def _head(tensors: Mapping[str, Any], where: str) -> HeadClass:
    head = of_config(family_of("bert"), {"num_labels": 1}, tensors, where)
    return HeadClass() if head.architecture in ("BertModel", "BertForMaskedLM") else head


def _prefix(folder: Path, where: str) -> Path:
    """Return the path of the only checkpoint in a folder, without the endings ".index" and ".data-..."."""
    checkpoints = sorted(path.name.removesuffix(".index") for path in folder.glob("*.index"))
    if CHECKPOINT in checkpoints:
        return folder / CHECKPOINT
    if len(checkpoints) != 1:
        what = f"several checkpoints: {', '.join(checkpoints)}" if checkpoints else f"no {CHECKPOINT}.index"
        raise UserError(f"{where} has {what}; leave one checkpoint there, with its .index and .data files")
    return folder / checkpoints[0]
