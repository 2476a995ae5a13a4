"""The keys of a recipe for fine-tuning, with types and defaults."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

from bert_jax import configuration
from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.errors import UserError
from bert_jax.examples.load import DataConfig
from bert_jax.parts.own_code import with_contents
from bert_jax.recipes.settings import Settings
from bert_jax.recipes.task_settings import TaskSettings, at_task, check_files, several_tasks
from bert_jax.rows.phases import Phase
from bert_jax.rows.rows_config import Packing
from bert_jax.tasks.base import KIND
from bert_jax.tasks.mixing import Mixing
from bert_jax.tasks.several import mean_of
from bert_jax.training.experiment import TrainingConfig

PHASE = {"num_epochs": 3.0, "batch_size": 32, "max_length": 128}  # the defaults of the only phase
_ALL_ROWS = 2**31  # an evaluation reads all rows of the dev splits


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningSettings(Settings):
    """The checked values of a recipe for fine-tuning.

    Devlin et al. 2019, appendix A.3: batches of 16 or 32, learning rates of 5e-5, 3e-5 or 2e-5, 2 to 4 epochs. The
    warm-up is the same as in google-research/bert. Adam corrects its bias: without, fine-tuning on small data fails
    often and varies more from seed to seed (Zhang et al. 2021, arXiv 2006.05987, section 4).
    """

    task: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the task's name and its options
    data: DataConfig | None = None  # where the examples are
    # in place of task and data: NAME -> its task and data, to train several tasks together
    tasks: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mixing: Mixing = Mixing()  # of several tasks: how many batches of each an epoch has
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # dropout; without --init also size
    # one phase: 3 epochs, batches of 32 rows, 128 tokens each; longer texts are cut or become windows, by the task
    phases: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {KIND: dict(PHASE)})
    # "bucketed": rows of like length share a batch; "packed": several examples share a row (bert_jax/tasks/README.md)
    packing: Packing = "bucketed"
    weights: Literal["pretrained", "fresh"] = "pretrained"  # "fresh": --init gives no weights
    frozen: tuple[str, ...] = ()  # parts of the model that are not trained: encoder, pooler
    bilstm_layers: int = 0  # layers of a BiLSTM between encoder and head, as in the paper's ablation
    training: TrainingConfig = TrainingConfig(evaluations_per_epoch=1, logs_per_evaluation=10, eval_rows=_ALL_ROWS)
    checkpoints: CheckpointConfig = CheckpointConfig(every_steps=None, keep=1)

    part_defaults = {
        "optimizer": {"name": "adamw", "bias_correction": "standard"},
        "schedule": {"name": "linear_from_zero", "peak_learning_rate": 2e-5, "warmup_fraction": 0.1},
    }

    def __post_init__(self) -> None:
        configuration.check_fields(self, "config", "0 or more is needed", "bilstm_layers", sound=lambda v: v >= 0)
        if others := [name for name in self.phases if name != KIND]:
            raise UserError(f"config.phases has {', '.join(others)}; fine-tuning has one phase, config.phases.{KIND}")
        if self.selection.metric.partition("/")[0] in self.training.evaluations:
            raise UserError(
                f"config.selection.metric is {self.selection.metric!r}; fine-tuning selects by a metric of the dev rows"
            )
        if self.training.eval_masking:
            raise UserError("config.training.eval_masking is for pretraining; fine-tuning masks nothing, leave it out")
        if (rows := self.training.eval_rows) != _ALL_ROWS:
            raise UserError(
                f"config.training.eval_rows is {rows:,}; fine-tuning evaluates all rows; for fewer, set "
                "config.data.max_dev_rows"
            )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> FinetuningSettings:
        """Return the checked values of a recipe.

        Raises ``UserError`` for a wrong key or value, or a recipe that is for pretraining.
        """
        if "objective" in config:
            raise UserError(
                "this recipe is one for pretraining (it has config.objective); run it with bert-jax pretrain, or "
                "choose one of configs/finetune"
            )
        settings = configuration.build(cls, config, "config")
        settings.mixing.check(settings.each)
        check_files(settings.each)
        settings._check_phase()
        _ = settings.main_metrics, settings.experiment, settings.architecture  # raise for a wrong key or value
        return settings

    @functools.cached_property
    def each(self) -> dict[str, TaskSettings]:
        """The tasks by name, in alphabetical order; the only task of a recipe is called ""."""
        given = {key: value for key, value in {"task": self.task, "data": self.data}.items() if value}
        if self.tasks and given:
            raise UserError(
                f"config has {' and '.join(given)} beside tasks; a run has one task or several: leave one out"
            )
        if self.tasks:
            return several_tasks(self.tasks)
        if not given:
            raise UserError(
                "no task is given; name tasks and their files: --config.tasks.NAME.data.splits.train=FILE, or give one "
                "in config.task and config.data"
            )
        if missing := [key for key in ("task", "data") if key not in given]:
            raise UserError("; ".join(f"missing key config.{key}" for key in missing))
        if self.mixing != Mixing():
            raise UserError("config.mixing is for several tasks (config.tasks); leave it out")
        assert self.data is not None
        return {"": TaskSettings(self.task, self.data)}

    @functools.cached_property
    def main_metrics(self) -> list[str]:
        """The main metric of each task, as an evaluation of all of them names it."""
        found = []
        for name, one in self.each.items():
            with at_task(name):
                task, config = one.built
            found.append(f"{name}/{task.metric(config)}" if name else task.metric(config))
        return found

    @property
    def main_metric(self) -> str:
        """The metric by which the best step is selected: the recipe's, or else the main metric of the tasks, or ""."""
        return self.selection.metric or (mean_of(self.main_metrics) if self.tasks else self.main_metrics[0])

    @property
    def phase(self) -> Phase:
        return self.experiment.phases.phases[0]

    def identity(self) -> dict[str, Any]:
        tree, training = configuration.without(super().identity(), "task", "data", "tasks", "mixing"), self.training
        if self.tasks:
            tree |= {
                "tasks": {name: one.identity() for name, one in self.each.items()},
                "mixing": dataclasses.asdict(self.mixing),
            }
        else:
            tree |= configuration.without(self.each[""].identity(), "weight", "frozen")
        name = "eval_every_steps" if training.evaluations_per_epoch is None else "evaluations_per_epoch"
        tree["training"] = {name: getattr(training, name)}  # the choice of the best step depends on it
        return with_contents(tree)

    def _check_phase(self) -> None:
        """Raise ``UserError`` if the phase has keys of pretraining, or rows too short for a pair of texts."""
        where = f"config.phases.{KIND}"
        only = [name for name, value in (("shares", self.phase.shares), ("model", self.phase.model)) if value]
        if extra := [*self.phase.changes, *only]:
            raise UserError(f"{where} has {', '.join(extra)} of pretraining; leave it out")
        hint = "at least 8 is needed: the special tokens of a pair are three"
        configuration.check_fields(self.phase, where, hint, "max_length", sound=lambda v: v >= 8)
