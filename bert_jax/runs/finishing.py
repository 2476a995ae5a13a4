"""Writes what every finished run leaves: its report, and its newest model as a Hugging Face directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.interchange.family import families, family_of
from bert_jax.interchange.hugging_face import export_damage
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.interchange.workdir import export_trained
from bert_jax.losses import distillation
from bert_jax.models.config import ModelConfig
from bert_jax.program import program
from bert_jax.reporting.loggers.base import metrics_of
from bert_jax.reporting.measures import comparison_lines, in_order
from bert_jax.reporting.observer import Observer
from bert_jax.reporting.report import write_report
from bert_jax.storage import files, reading
from bert_jax.storage.replacing import replaced_directory
from bert_jax.training.experiment import Experiment
from bert_jax.workdir import file_formats

# What helps where a model is not better than every baseline.
LONGER_PRETRAINING = (
    "not better than every baseline: train longer first (the same command with --extend and more steps), then take a "
    "larger model or more text"
)
_HIGH_RATE = "5e-4"  # as typed; what a small model without pretraining needs in fine-tuning


def better_start(identity: Mapping[str, Any]) -> str:
    """Return advice, not yet followed, for a fine-tuned model that is not better than every baseline."""
    fresh = identity["init"] is None or identity["weights"] == "fresh"
    low = identity["schedule"].get("peak_learning_rate", 0.0) < float(_HIGH_RATE)
    steps = ["begin with a pretrained model (--init)"] if fresh else []
    steps += [f"a higher rate for a small model (--learning_rate={_HIGH_RATE})"] if low else []
    return (
        f"not better than every baseline: in a new workdir, {', '.join(steps + ['more epochs or more labelled rows'])}"
    )


def report_at_the_end(
    observer: Observer,
    cure: str,
    step: int = sys.maxsize,
    main: str = "",
    errors: Mapping[str, float] | None = None,
) -> str:
    """Write the report, with the status that the run will have once it has ended; return the report's path.

    The user reads how the newest evaluation until ``step`` compares with the evaluation of step 0 and with the
    baselines, the metric ``main`` first. If a baseline is not beaten, ``cure`` follows: what helps. ``errors``:
    metric -> its standard error (``measures.compare``).
    """
    evaluations = observer.evaluations(step)
    baselines = reading.read_object(files.as_path(observer.workdir) / "baselines.json") or {}
    if evaluations:
        first, last = evaluations[0], evaluations[-1]
        untrained = metrics_of(first) if first["step"] == 0 < last["step"] else None
        metrics = in_order(metrics_of(last), observer.titles)
        for line in comparison_lines(metrics, baselines, cure, untrained, errors, main):
            observer.note(line)
    with observer.showing("reporting"):
        return write_report(observer.workdir, {**observer.state(), "state": "finished"})


def about(task: Any, experiment: Experiment, facts: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return what the first sentence of the report says of a run; ``sizes`` is how much there is to train on.

    Only the parameters of the model count, without its teacher and the encoders that train it.
    """
    encoder, shapes = facts["model"]["encoder"], jax.eval_shape(task.init, jax.random.key(0))
    beside = {*facts.get("encoders", ()), distillation.PROJECTION, distillation.FROZEN}
    counted = [tree for variables in shapes for name, tree in variables.items() if name not in beside]
    phases = enumerate(experiment.phases.phases)
    return {
        "family": families()[encoder].title if encoder in families() else encoder,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(counted)),
        "steps_per_epoch": {phase.kind: experiment.steps_per_epoch(task, i) for i, phase in phases},
        **sizes,
    }


def export_newest(observer: Observer, trained: TrainedModel | None = None) -> epath.Path:
    """Export the run's model into the folder ``hugging_face`` of the workdir, unless that is done; return the folder.

    An older export stays in place until the new one is complete.

    Args:
      trained: the model of the workdir, if it is loaded already.
    """
    workdir = observer.workdir
    model, record = files.as_path(workdir) / file_formats.EXPORT, files.as_path(workdir) / "exported.json"
    newest = json.dumps({"step": max(saved_steps(workdir))}).encode()
    exported = reading.has_content(record, newest)
    damage = export_damage(model) if exported else None
    if damage:
        observer.note(f"{model} is not as it was exported: {damage}; it is written anew")
    if damage or not exported:
        with observer.showing("exporting"):
            report = export_trained(trained or load(workdir), model, into=replaced_directory)
        observer.note(report.line)
        files.write_bytes(record, newest)
    return model


def without_class(model: ModelConfig, head: Any, workdir: str) -> str:
    """Return words for a part of a model that transformers has no class for, with advice; "" if it has a class."""
    if model.encoder not in families():
        return f"the encoder {model.encoder!r}"
    family = family_of(model.encoder)
    if model.causal and not family.causal:
        return f"a model of the {family.title} family that reads from left to right"
    if head:
        return ""
    command = f"{program()} export --workdir={workdir} --as={family.name}Model --output=MODEL"
    return f"these heads; {command} writes the encoder alone"
