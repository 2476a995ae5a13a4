"""The held-out rows on which the variants of an ablation are compared, and the metrics of a model on them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from bert_jax.corpora.mixture import Mixture
from bert_jax.experiments.grid import Metrics
from bert_jax.experiments.table import OWN, SAME_ROWS
from bert_jax.interchange.loading import load
from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import mlm
from bert_jax.objectives.setting import ROW_KEYS, Setting
from bert_jax.runs.settings import PretrainingSettings
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.evaluation import Evaluation

FREE_OF_ROWS = ("num_steps", "batch_size", "micro_batches")  # fields of a phase that do not decide its held-out rows
OF_TRAINING = ("num_tokens", "num_epochs", "schedule", "shares")  # keys of a phase on which held-out rows do not depend


def heldout_rows(settings: PretrainingSettings) -> dict[str, Any]:
    """Return the settings of the held-out rows, on which the figures of all runs depend."""
    experiment = settings.experiment()
    phase = dataclasses.asdict(experiment.evaluated_phase)
    phase = {name: value for name, value in phase.items() if name not in OF_TRAINING}
    rows = dataclasses.asdict(_masked_rows(settings)) | phase
    if settings.training.eval_masking:
        rows["eval_masking"] = settings.training.eval_masking
    return plain(rows | {"eval_rows": experiment.training.eval_rows, "seed": settings.seed})


def deciding_settings(settings: PretrainingSettings) -> dict[str, Any]:
    """Return the settings that decide which held-out rows there are and how they are masked."""
    rows = {key: value for key, value in heldout_rows(settings).items() if key not in FREE_OF_ROWS}
    return rows | {"masks": plain(dataclasses.asdict(_masked_rows(settings).masking))}  # a phase may replace keys of it


def metrics_of_run(
    own: Mapping[str, float], reference: PretrainingSettings, corpus: Mixture, tokenizer: Tokenizer, workdir: str
) -> Metrics:
    """Return the metrics of a run for the tables.

    Args:
      own: what the run says of itself; its masked-LM metrics are called ``own_mlm_loss`` and ``own_mlm_accuracy``.
      reference: the recipe on whose held-out rows ``mlm_loss`` and ``mlm_accuracy`` are computed. A causal model, or
        one without a head for masked LM, has neither.
      workdir: the folder of the run.
    """
    found = _on_rows_of(reference, corpus, tokenizer, workdir)
    same_rows = {name: found[name] for name in SAME_ROWS if name in found}
    masked = {f"{OWN}{name}": value for name, value in own.items() if name in SAME_ROWS}
    other = {name: value for name, value in own.items() if not name.startswith(("mlm_", "perplexity"))}
    return same_rows | other | masked


def _on_rows_of(reference: PretrainingSettings, corpus: Mixture, tokenizer: Tokenizer, workdir: str) -> Metrics:
    trained, experiment = load(workdir), reference.experiment()
    if trained.config.causal or LM_HEAD.name not in trained.params:
        return {}
    config, phase = _masked_rows(reference), experiment.evaluated_phase
    lengths, changes = {phase.kind: phase.max_length}, {phase.kind: phase.changes}
    heldout = reference.training.eval_masking
    setting = Setting(trained.config, lengths, reference.seed, changes, heldout_masking=heldout)
    task = mlm.Objective(config, setting).with_text(corpus, tokenizer)
    return Evaluation(task, experiment.make_mesh(), phase, experiment.training.eval_rows).run(trained.params, {})


def _masked_rows(settings: PretrainingSettings) -> mlm.Config:
    """Return the config of the objective ``mlm`` on the rows of a recipe."""
    [(module, config, *_), *_] = settings.objectives([settings.experiment().evaluated_phase])
    fields = {name: getattr(config, name) for name in ROW_KEYS}
    default = module.Objective.arrangement
    if not fields["arrangement"] and default != mlm.Objective.arrangement:
        fields["arrangement"] = default
    return mlm.Config(**fields)


def plain(content: Any) -> Any:
    """Return ``content`` as JSON would read it back (tuples become lists)."""
    return json.loads(json.dumps(content))
