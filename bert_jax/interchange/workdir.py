"""Loads trained models from run folders, exports them, and imports models into new run folders."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.checkpoints.remote_steps import unmarked_steps
from bert_jax.checkpoints.restoring import BEST, FROZEN, read_params, saved_steps, steps_folder
from bert_jax.checkpoints.saving import save_params
from bert_jax.corpora.manifest import MANIFEST
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.prepare import CorpusConfig
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.interchange.architectures import Head, of_facts
from bert_jax.interchange.card import ParentModel, model_card
from bert_jax.interchange.conversion import Report
from bert_jax.interchange.family import family_with
from bert_jax.interchange.hugging_face import Imported, export_model, import_model, licence_of
from bert_jax.interchange.original import import_original, is_original
from bert_jax.interchange.pooling import Pooling
from bert_jax.interchange.tensors import MAX_SHARD_BYTES
from bert_jax.models.config import ModelConfig
from bert_jax.models.layers import unstack_layers
from bert_jax.models.model import config_of, recorded
from bert_jax.reporting.formats import is_number
from bert_jax.reporting.loggers.base import metrics_of
from bert_jax.reporting.run_log import read_records
from bert_jax.reporting.run_record import write_run
from bert_jax.storage import files, reading
from bert_jax.storage.replacing import Directory
from bert_jax.text import added_tokens
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model from a run, with its tokenizer and the facts saved with its checkpoint."""

    params: Any  # numpy tree, layers unrolled
    config: ModelConfig
    tokenizer: Tokenizer
    facts: dict[str, Any]  # config, fingerprints, run id, task and labels
    step: int

    @property
    def head(self) -> Head:
        """The model's head, as transformers describes it."""
        return of_facts(self.facts, self.params)


def load_trained(workdir: str, step: int | None = None) -> TrainedModel:
    """Return the model of a run at ``step``.

    Args:
      step: if None, the step of the best evaluation if the run chose one, else the newest step.

    Raises:
      UserError: there is no checkpoint, or the vocabulary is not the one that the model was trained with.
    """
    params, facts, step = read_chosen(workdir, step)
    file = tokenizers.find(workdir)
    tokenizer = tokenizers.load(file, facts["lowercase"])
    if tokenizer.sha256 != facts["vocabulary_sha256"]:
        raise UserError(f"{file} is not the vocabulary that step {step} was trained with; put the old one back")
    config = config_of(facts["model"])
    if config.layers == "scanned":
        params, config = unstack_layers(params), dataclasses.replace(config, layers="unrolled")
    return TrainedModel(params, config, tokenizer, facts, step)


def read_chosen(workdir: str, step: int | None) -> tuple[Any, dict[str, Any], int]:
    """Return (parameters, facts, step) of a checkpoint. The parameters include the parts that were not trained.

    Args:
      step: if None, the step of the best evaluation if the run chose one, else the newest step.
    """
    best, frozen = (str(files.as_path(workdir) / name) for name in (BEST, FROZEN))
    params, facts, step = read_params(best if step is None and _holds_steps(best) else workdir, step)
    if _holds_steps(frozen):
        params = {**read_params(frozen)[0], **params}
    return params, facts, step


def _holds_steps(workdir: str) -> bool:
    """Return whether steps were saved into ``workdir``, even if they have lost the marks that they are complete."""
    return bool(saved_steps(workdir) or unmarked_steps(steps_folder(workdir)))


def export_workdir(
    workdir: str,
    output: str | os.PathLike[str],
    step: int | None = None,
    architecture: str | None = None,
    pooling: Pooling | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    into: Directory = files.whole_directory,
) -> Report:
    """Write a checkpoint as a Hugging Face directory, with the class that fits its task, and return the report.

    Args:
      step: if None, the step of the best evaluation if the run chose one, else the newest step.
      architecture: another class to export, such as "BertModel", which leaves out the heads.
      pooling: the pooling for sentence-transformers. If None, a model of the task "sentence_embeddings" gets the
        pooling that it was trained with; other models get no files for sentence-transformers.
      into: how ``output`` is written: as a new folder, or in place of an older one (``replaced_directory``).

    Raises:
      UserError: for the reasons of ``load_trained`` and ``export_model``; or transformers does not have the class; or
        the model lacks a part that the class needs.
    """
    trained = load_trained(workdir, step)
    if trained.config.causal or "bilstm" in trained.params:
        found = "reads from left to right" if trained.config.causal else "has a BiLSTM"
        raise UserError(f"the model of {workdir} {found} and cannot be exported: transformers has no class for it")
    added_tokens.check(trained.tokenizer, added_tokens.kept(workdir, trained.tokenizer), workdir)
    head = trained.head
    if architecture and architecture != head.architecture:
        head = Head(architecture)
        family_with(architecture)  # raises for an unknown class before anything is read
    task = trained.facts.get("task") or {}
    if pooling is None and task.get("name") == "sentence_embeddings" and head.ending == "Model":
        pooling = task.get("pooling", "mean")
    baselines = reading.read_object(files.as_path(workdir) / "baselines.json") or {}
    card = model_card(
        trained.facts,
        newest_metrics(workdir, trained.step),
        trained.step,
        baselines,
        corpus_splits(workdir, trained.facts),
        head,
        pooling,
        parent_of(trained.facts),
    )
    report = export_model(
        trained.params, trained.config, trained.tokenizer, output, card, head, pooling, max_shard_bytes, into
    )
    return dataclasses.replace(report, title=f"{report.title}, step {trained.step:,} of {workdir}")


def newest_metrics(workdir: str, step: int) -> dict[str, float]:
    """Return the figures of the evaluations at ``step``, by name.

    For a split other than "eval", the name of a figure begins with the name of the split.
    """
    path = files.as_path(workdir) / "metrics.jsonl"
    figures: dict[str, float] = {}
    for record in read_records(path) if path.exists() else []:
        if record["step"] == step and record["split"].startswith(("eval", "dev")):
            start = "" if record["split"] == "eval" else f"{record['split']} "
            figures |= {start + name: value for name, value in metrics_of(record).items() if is_number(value)}
    return figures


def parent_of(facts: Mapping[str, Any]) -> ParentModel | None:
    """Return the model from which this model was started or imported, with its licence; None if there is none."""
    if facts.get("parent"):
        return ParentModel(facts["parent"]["source"], facts["parent"].get("licence"))
    source = ((facts.get("run") or {}).get("identity") or {}).get("init")
    return ParentModel(source, licence_of(source)) if source else None


def corpus_splits(workdir: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts for each split of each part of the run's corpus, which is called "" if it has no parts.

    A part of a mixture also has its ``share`` of the rows. The result is {} if the corpus is gone or changed.
    """
    config = (facts.get("run", {}).get("config") or {}).get("corpus") or {}
    folder, fingerprint = (
        files.as_path(config.get("path") or files.as_path(workdir) / "corpus"),
        facts.get("corpus_fingerprint"),
    )
    if not (parts := config.get("parts")):
        manifest = reading.read_object(folder / MANIFEST) or {}
        return {"": manifest.get("splits", {})} if manifest.get("fingerprint") == fingerprint else {}
    try:
        stores = {name: Corpus(part.get("path") or folder / name) for name, part in sorted(parts.items())}
    except UserError:
        return {}
    weights = {name: parts[name].get("weight") for name in stores}
    mixture = Mixture.of(stores, weights, config.get("temperature", CorpusConfig.temperature))
    if mixture.fingerprint != fingerprint:
        return {}
    return {name: {**one.manifest["splits"], "share": mixture.shares[name]} for name, one in stores.items()}


def read_model(directory: str, lowercase: bool | None = None) -> Imported:
    """Return the model in a Hugging Face directory, or in a directory with an original TensorFlow checkpoint.

    Args:
      lowercase: see ``import_original``; allowed only for a TensorFlow checkpoint.

    Raises:
      UserError: for the reasons of ``import_model`` and ``import_original``, or ``lowercase`` is given for a Hugging
        Face directory.
    """
    reading.check_plain(files.as_path(directory))
    if is_original(directory):
        return import_original(directory, lowercase)
    if lowercase is not None:
        raise UserError(f"--lowercase goes with a TensorFlow checkpoint; the files of {directory} say it: leave it out")
    return import_model(directory)


def import_into_workdir(directory: str, workdir: str, lowercase: bool | None = None) -> Report:
    """Write a model into a new workdir, as its only checkpoint (step 0), and return the report.

    The workdir appears whole or not at all. Parts that the model lacks stay missing.

    Args:
      directory, lowercase: see ``read_model``.

    Raises:
      UserError: the directory holds no readable model, the workdir is not empty, or the disk is full.
    """
    place = files.as_path(workdir)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{workdir} is {'not empty' if place.is_dir() else 'a file'}; give a new --workdir")
    files.check_writable(workdir, folder=True)
    imported = read_model(directory, lowercase)
    tokenizer, head = imported.tokenizer, imported.head
    facts = {
        "model": recorded(imported.config),
        "lowercase": tokenizer.lowercase,
        "vocabulary_sha256": tokenizer.sha256,
        "corpus_fingerprint": None,
        "head": dataclasses.asdict(head),
        "task": {"name": head.task} if head.task else None,
        "labels": list(head.labels),
        "parent": {"source": os.fspath(directory), "licence": imported.licence},
    }
    run = {"run_id": None, "name": Path(workdir).name, "imported_from": os.fspath(directory), "facts": facts}
    with files.whole_directory(workdir) as folder:
        tokenizer.save(folder / tokenizer.file_name)
        save_params(str(folder), imported.params, facts, name=workdir)
        write_run(str(folder), run)
    title = imported.report.title.replace("read ", "imported ", 1)
    return dataclasses.replace(imported.report, title=f"{title}, into {workdir}")
