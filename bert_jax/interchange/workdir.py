"""Exports the model of a run as a Hugging Face directory, and imports models into new workdirs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.checkpoints.saving import save_params
from bert_jax.errors import UserError
from bert_jax.interchange.architectures import HeadClass, of_facts
from bert_jax.interchange.card import model_card
from bert_jax.interchange.conversion import Report
from bert_jax.interchange.family import family_with
from bert_jax.interchange.hugging_face import export_model, exported_vectors, licence_of
from bert_jax.interchange.loading import read_model
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.heads import Pooling
from bert_jax.program import program
from bert_jax.reporting.curves import read_curves
from bert_jax.reporting.formats import is_number
from bert_jax.reporting.loggers.base import metrics_of
from bert_jax.reporting.run_log import read_records
from bert_jax.storage import files, hub, reading
from bert_jax.storage.replacing import Directory
from bert_jax.text.case import NOT_SAID, Case
from bert_jax.workdir.run_record import write_run


def export_trained(
    trained: TrainedModel,
    output: str | os.PathLike[str],
    architecture: str | None = None,
    pooling: Pooling | None = None,
    into: Directory = files.whole_directory,
) -> Report:
    """Write the model of a workdir as a Hugging Face directory, with the class that fits its task; return the report.

    Args:
      architecture: another class to export, such as "BertModel", which leaves out the heads.
      pooling: the pooling for sentence-transformers. If None, see ``hugging_face.exported_vectors``.
      into: how ``output`` is written: as a new folder, or in place of an older one (``replaced_directory``).

    Raises:
      UserError: for the reasons of ``export_model``; or transformers does not have the class; or the model lacks a part
        that the class needs.
    """
    workdir = trained.workdir or trained.source
    head = trained.head or of_facts(trained.facts, trained.params)  # raises: transformers has no class
    alone = f"{head.family.name}Model"
    if (words := trained.facts.get("differs")) and architecture != alone:
        raise UserError(
            f"transformers has no class for the model of {workdir}: it {words}; --as={alone} writes the encoder alone"
        )
    if architecture and architecture != head.architecture:
        head = HeadClass(architecture)
        family_with(architecture)  # raises for an unknown class before anything is read
        trained = trained.with_parts(head.parts)
    exported, facts = dataclasses.replace(trained, head=head), trained.facts
    metrics = _newest_metrics(workdir, trained.step)
    baselines = reading.read_object(files.as_path(workdir) / "baselines.json") or {}
    curves, has_vectors = _curves(workdir), bool(exported_vectors(exported, pooling))
    card = model_card(exported, metrics, baselines, has_vectors, parent_of(facts), bool(curves))
    report = export_model(exported, output, card, pooling, into, curves)
    title, notes = f"{report.title}, step {trained.step:,} of {workdir}", (*report.notes, *_not_said(exported, workdir))
    return dataclasses.replace(report, title=title, notes=notes)


def _not_said(exported: TrainedModel, workdir: str) -> list[str]:
    """Return a note if the files of transformers do not say how a model writes, although they have its head."""
    head, facts = exported.head, exported.facts
    assert head is not None
    said = exported.config.causal and not facts.get("task")  # it goes on with a prompt
    heads = ("ForMaskedLM", "ForPreTraining", head.family.causal)
    if said or not facts.get("writes") or head.ending not in heads:
        return []
    return [
        f"these files do not say how the model writes; {program()} generate --workdir={workdir} writes as it learned to"
    ]


def _newest_metrics(workdir: str, step: int) -> dict[str, float]:
    """Return the figures of the evaluations at ``step``, by name.

    If the split is not "eval", the name of a figure begins with the name of the split.
    """
    figures: dict[str, float] = {}
    for record in read_records(workdir):
        if record["step"] == step and record["split"].startswith(("eval", "dev")):
            start = "" if record["split"] == "eval" else f"{record['split']} "
            figures |= {start + name: value for name, value in metrics_of(record).items() if is_number(value)}
    return figures


def _curves(workdir: str) -> str:
    """Return the curves of a run as an SVG; "" if there is no record of its training."""
    try:
        drawn = read_curves(workdir)
    except UserError:
        return ""
    return drawn.svg() if drawn.charts else ""


def parent_of(facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return source and licence of the model from which a model was started or imported; None without such a model."""
    run = facts.get("run") or {}
    source = (run.get("identity") or {}).get("init")
    return (
        facts.get("parent")
        or run.get("parent")
        or ({"source": source, "licence": licence_of(source)} if source else None)
    )


def import_into_workdir(directory: str, workdir: str, given: Case = NOT_SAID) -> Report:
    """Write a model into a new workdir, as its only checkpoint (step 0), and return the report.

    The workdir appears whole or not at all. Parts that the model lacks stay missing.

    Args:
      directory: see ``read_model``.
      given: the case of its text, if its files do not say it (``--lowercase``).

    Raises:
      UserError: the directory holds no readable model, or one whose files contradict ``given``; the workdir is not
        empty, or the disk is full.
    """
    place = files.as_target(workdir)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{workdir} is {'not empty' if place.is_dir() else 'a file'}; give a new --workdir")
    files.check_writable(workdir, folder=True)
    directory = hub.pinned(directory)
    imported = read_model(directory, given, "--")
    given.check(imported.tokenizer.case, directory, "--")
    tokenizer, facts = imported.tokenizer, imported.facts
    run = {"run_id": None, "name": Path(workdir).name, "imported_from": os.fspath(directory), "facts": facts}
    with files.whole_directory(workdir) as folder:
        tokenizer.save(folder / tokenizer.file_name)
        save_params(str(folder), imported.params, facts, name=workdir)
        write_run(str(folder), run)
    assert imported.report is not None
    title = imported.report.title.replace("read ", "imported ", 1)
    return dataclasses.replace(imported.report, title=f"{title}, into {workdir}")
