"""A trained model out of a run's folder: what exports, fill-mask and new runs start from."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax import configuration, files
from bert_jax.corpora.store import MANIFEST
from bert_jax.errors import UserError
from bert_jax.interchange.card import model_card
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.models.bert import fresh_params
from bert_jax.models.config import ModelConfig
from bert_jax.models.layers import unstack_layers
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.checkpoints import BEST, read_params, save_params, saved_steps
from bert_jax.training.formats import is_number
from bert_jax.training.loggers.base import metrics_of
from bert_jax.training.run import write_run
from bert_jax.training.run_log import read_records
from bert_jax.training.state import overlay


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    params: Any  # numpy tree, layers unrolled
    config: ModelConfig
    tokenizer: Tokenizer
    facts: dict[str, Any]  # saved with the checkpoint: config, fingerprints, run id
    step: int


def load_trained(workdir: str, step: int | None = None) -> TrainedModel:
    """The newest checkpoint of ``workdir``, or that of ``step``.

    Raises:
      UserError: no checkpoint, or a vocabulary that is not the one it was trained with.
    """
    params, facts, step = read_chosen(workdir, step)
    file = tokenizers.find(workdir)
    tokenizer = tokenizers.load(file, facts["lowercase"])
    if tokenizer.sha256 != facts["vocabulary_sha256"]:
        raise UserError(f"{file} is not the vocabulary that step {step} was trained with; put the old one back")
    config = configuration.build(ModelConfig, facts["model"], "model")
    if config.layers == "scanned":
        params, config = unstack_layers(params), dataclasses.replace(config, layers="unrolled")
    return TrainedModel(params, config, tokenizer, facts, step)


def read_chosen(workdir: str, step: int | None) -> tuple[Any, dict[str, Any], int]:
    """``read_params`` of ``step``, of the best evaluation where a run chose one, or of the newest step; with the parts
    of the model that were not trained."""
    best, frozen = (str(files.as_path(workdir) / name) for name in (BEST, "frozen"))
    params, facts, step = read_params(best if step is None and saved_steps(best) else workdir, step)
    if saved_steps(frozen):
        params = {**read_params(frozen)[0], **params}
    return params, facts, step


def export_workdir(workdir: str, output: str | os.PathLike[str], step: int | None = None) -> str:
    """Write a checkpoint as a Hugging Face directory; a line that says what was written."""
    trained = load_trained(workdir, step)
    metrics = files.as_path(workdir) / "metrics.jsonl"
    records = read_records(metrics) if metrics.exists() else []
    evaluations = [r for r in records if r["split"] == "eval" and r["step"] == trained.step]
    newest = (
        {name: value for name, value in metrics_of(evaluations[-1]).items() if is_number(value)} if evaluations else {}
    )
    baselines = read_object(files.as_path(workdir) / "baselines.json")
    card = model_card(trained.facts, newest, trained.step, baselines, corpus_splits(workdir, trained.facts))
    export_model(trained.params, trained.config, trained.tokenizer, output, card)
    return f"exported step {trained.step:,} to {output}: BertForPreTraining, its outputs checked after writing"


def corpus_splits(workdir: str, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the manifest of the corpus that a run was trained on says of its splits; empty if it is gone."""
    config = facts.get("run", {}).get("config") or {}
    path = (config.get("corpus") or {}).get("path") or files.as_path(workdir) / "corpus"
    manifest = read_object(files.as_path(path) / MANIFEST)
    return manifest.get("splits", {}) if manifest.get("fingerprint") == facts.get("corpus_fingerprint") else {}


def read_object(path: Any) -> dict[str, Any]:
    """A JSON object; empty for a file that is missing or spoilt."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def import_into_workdir(directory: str, workdir: str) -> str:
    """Make a workdir with one checkpoint, step 0, of a Hugging Face directory; a report of what was found.

    Raises:
      UserError: the directory holds no BERT, or the workdir is not empty.
    """
    imported = import_model(directory)
    tokenizer = imported.tokenizer
    fresh = fresh_params(imported.config)
    params = jax.tree.map(np.asarray, overlay(imported.params, fresh))
    facts = {
        "model": dataclasses.asdict(imported.config),
        "lowercase": tokenizer.lowercase,
        "vocabulary_sha256": tokenizer.sha256,
        "corpus_fingerprint": None,
    }
    if files.as_path(workdir).exists() and any(files.as_path(workdir).iterdir()):
        raise UserError(f"{workdir} is not empty; give a new --workdir")
    tokenizer.save(files.as_path(workdir) / tokenizer.file_name)
    write_run(
        workdir, {"run_id": None, "name": Path(workdir).name, "imported_from": os.fspath(directory), "facts": facts}
    )
    save_params(workdir, params, facts)
    lines = [
        f"imported {directory} into {workdir}: {sum(x.size for x in jax.tree.leaves(imported.params)):,} parameters"
    ]
    lines += [f"  fresh, for want of a tensor: {name}" for name in imported.missing]
    lines += [f"  left out, without a place here: {name}" for name in imported.unused]
    return "\n".join(lines)
