"""The held-out rows on which the variants of an ablation are compared, and the metrics of a model on them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from bert_jax.corpora.mixture import Mixture
from bert_jax.experiments.nouns import OWN, SAME_ROWS, Metrics
from bert_jax.interchange.loading import load
from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import mlm
from bert_jax.objectives.base import ROW_KEYS, PretrainingObjective, Setting
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.experiment import Experiment

# Fields of a phase that do not decide its held-out rows; and fields that the record of the rows leaves out too.
_FREE_OF_ROWS = ("num_steps", "batch_size", "micro_batches")
_OF_TRAINING = ("num_tokens", "num_epochs", "schedule", "shares")


@dataclasses.dataclass(frozen=True)
class HeldoutRows:
    """The held-out rows of a checked recipe, masked for the objective ``mlm`` with the config ``config``."""

    experiment: Experiment
    config: mlm.Config

    @classmethod
    def of(cls, experiment: Experiment, objective: PretrainingObjective) -> HeldoutRows:
        """Return the rows of the evaluated phase of ``experiment``, which has ``objective``."""
        fields = {name: getattr(objective.config, name) for name in ROW_KEYS}
        if not fields["arrangement"] and objective.arrangement != mlm.Objective.arrangement:
            fields["arrangement"] = objective.arrangement
        return cls(experiment, mlm.Config(**fields))

    @property
    def record(self) -> dict[str, Any]:
        """The settings of the rows, on which the figures of all runs depend, as plain data."""
        phase = dataclasses.asdict(self.experiment.evaluated_phase)
        phase = {name: value for name, value in phase.items() if name not in _OF_TRAINING}
        rows, training = dataclasses.asdict(self.config) | phase, self.experiment.training
        if training.eval_masking:
            rows["eval_masking"] = training.eval_masking
        return plain(rows | {"eval_rows": training.eval_rows, "seed": self.experiment.seed})

    @property
    def deciding(self) -> dict[str, Any]:
        """The settings that decide which rows there are and how they are masked, as plain data."""
        rows = {key: value for key, value in self.record.items() if key not in _FREE_OF_ROWS}
        return rows | {"masks": plain(dataclasses.asdict(self.config.masking))}  # a phase may replace its keys

    def metrics_of_run(self, own: Mapping[str, float], corpus: Mixture, tokenizer: Tokenizer, workdir: str) -> Metrics:
        """Return the metrics of the run in ``workdir`` for the tables.

        ``mlm_loss`` and ``mlm_accuracy`` are computed on these rows. A model that does not read both sides, a model
        without a head for masked LM, or one whose head reads a second stream has neither.

        Args:
          own: the metrics of the run itself; the masked-LM metrics among them are then called ``own_mlm_loss`` and
            ``own_mlm_accuracy``.
        """
        found = self._evaluate(corpus, tokenizer, workdir)
        same_rows = {name: found[name] for name in SAME_ROWS if name in found}
        masked = {f"{OWN}{name}": value for name, value in own.items() if name in SAME_ROWS}
        other = {name: value for name, value in own.items() if not name.startswith(("mlm_", "perplexity"))}
        return same_rows | other | masked

    def _evaluate(self, corpus: Mixture, tokenizer: Tokenizer, workdir: str) -> Metrics:
        trained = load(workdir)
        if trained.config.reads != "both sides" or LM_HEAD.name not in trained.params or trained.facts.get("asks"):
            return {}
        phase, training = self.experiment.evaluated_phase, self.experiment.training
        lengths, changes = {phase.kind: phase.max_length}, {phase.kind: phase.changes}
        setting = Setting(trained.config, lengths, self.experiment.seed, changes, heldout_masking=training.eval_masking)
        task = mlm.Objective(self.config, setting).with_text(corpus, tokenizer)
        return Evaluation(task, self.experiment.make_mesh(), phase, training.eval_rows).run(trained.params, {})


def plain(content: Any) -> Any:
    """Return ``content`` as JSON would read it back (tuples become lists)."""
    return json.loads(json.dumps(content))
