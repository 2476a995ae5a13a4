"""The contract of a prepared run, which pretraining and fine-tuning fill in and ``runs.run`` leads to its end."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import jax

from bert_jax.interchange.initial import continued_seed
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import ModelConfig
from bert_jax.program import Note
from bert_jax.recipes.settings import Settings
from bert_jax.reporting.loggers.base import check_loggers
from bert_jax.reporting.observer import Observer
from bert_jax.reporting.profiled_steps import ProfiledSteps
from bert_jax.runs.evaluations import base as evaluations
from bert_jax.task import Task
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.experiment import Experiment
from bert_jax.training.state import TrainState
from bert_jax.workdir.run_record import Purpose


@dataclasses.dataclass(frozen=True)
class Request:
    """The values that the command line adds to a recipe."""

    workdir: str
    command: str = ""
    init: str | None = None  # a Hugging Face directory, or WORKDIR[@step]; if None, weights are random
    init_optimizer: Literal["fresh", "kept"] = "fresh"  # "kept": begin with the optimizer's moments of --init too
    data: str = "."  # of fine-tuning: the folder to which the paths in config.data.splits are relative
    extend: bool = False
    typed_keys: tuple[str, ...] = ()  # the keys of the config that were given on the command line
    profiled: ProfiledSteps | None = None


class Opened(NamedTuple):
    """What a run trains on.

    Attributes:
      task: it has its text or its examples.
      experiment: what the recipe gives in epochs is in steps.
      fingerprint: a digest of the text, or of the examples.
      sizes: how much there is to train on, such as {"tokens": 1000}.
    """

    task: Task
    experiment: Experiment
    tokenizer: Tokenizer
    model: ModelConfig
    fingerprint: str
    sizes: Mapping[str, int]


class Prepared(abc.ABC):
    """A recipe that is checked as far as that needs no text and no examples.

    Attributes:
      initial: the model from which the run starts, or has started.
      parent: the entries of the run's facts that name the run from which it starts.
      mesh: the devices of the run.
      start: the model from whose layers the run starts, if the teacher's are to be taken.
    """

    purpose: ClassVar[Purpose]
    task: Task
    start: TrainedModel | None

    def __init__(self, settings: Settings, initial: TrainedModel | None, devices: list[jax.Device] | None):
        """Check what pretraining and fine-tuning have in common.

        Args:
          initial: the model from which the run starts.
          devices: the devices to run on. If None, all devices of this job, whose memory is then checked too.
        """
        self.settings, self.initial = settings, initial
        seed, self.parent = continued_seed(settings.seed, self.weights_from, self.purpose)
        self.experiment = dataclasses.replace(settings.experiment, seed=seed)
        self.mesh = self.experiment.check(devices)
        check_loggers(settings.training.loggers)
        evaluations.check(settings.training.evaluations, settings.selection.metric)

    @property
    def weights_from(self) -> TrainedModel | None:
        """The model of --init, if it gives weights."""
        return self.initial

    @property
    def num_steps(self) -> int:
        """The steps of the run; 0 if they follow from a text that is not read yet."""
        return self.experiment.phases.num_steps

    # ---- What a run asks for: ``notes``, ``record`` and ``check_inputs`` first, then ``open``, then the others ----

    @abc.abstractmethod
    def titles(self) -> dict[str, str]:
        """Return the titles of the task's metrics, the most important ones first."""

    @abc.abstractmethod
    def notes(self, initial: TrainedModel, request: Request) -> list[str]:
        """Return lines about what is taken from ``initial`` and not from the recipe.

        Raises ``UserError`` if a typed key contradicts ``initial``.
        """

    @abc.abstractmethod
    def frozen_contents(self) -> dict[str, str]:
        """Return a digest of each model or array that the task reads and does not train."""

    @abc.abstractmethod
    def record(
        self, config: Mapping[str, Any], request: Request, bound: bool
    ) -> tuple[Mapping[str, Any], dict[str, Any], str]:
        """Return config, identity and command as the run's files record them.

        ``bound``: whether the run has saved a step.

        Raises ``UserError`` for an input that is damaged.
        """

    @abc.abstractmethod
    def check_inputs(self, request: Request, bound: bool, note: Note) -> None:
        """Raise ``UserError`` for every mistake in text or examples that can be found before the run is recorded."""

    @abc.abstractmethod
    def open(self, note: Note) -> Opened:
        """Return what the run trains on, after making what is missing of it in the workdir."""

    @abc.abstractmethod
    def facts(self, opened: Opened) -> dict[str, Any]:
        """Return what is known of the run now that it has text or examples. It resumes only with the same facts."""

    @abc.abstractmethod
    def write_baselines(self, opened: Opened, note: Note) -> None:
        """Write ``baselines.json``: figures that need no learning."""

    @abc.abstractmethod
    def remarks(self, opened: Opened, reached: int) -> list[str]:
        """Return lines about what is read and how long the run is, which has ``reached`` a step."""

    @abc.abstractmethod
    def first_state(
        self, begin: TrainedModel, opened: Opened, facts: Mapping[str, Any], note: Note
    ) -> Callable[[TrainState], TrainState]:
        """Return the function that gives a fresh state the weights of ``begin``."""

    def fill(self, note: Note) -> None:
        """Compute the values that rows lack, now that the run is known to go on. Every process calls this."""
        del note

    def given_frozen(self, facts: Mapping[str, Any]) -> Callable[[Any], Any] | None:
        """Return the function that replaces the frozen variables, which no checkpoint holds; None if nothing does."""
        del facts
        return None

    @abc.abstractmethod
    def finish(
        self, opened: Opened, facts: Mapping[str, Any], observer: Observer, metrics: dict[str, float]
    ) -> dict[str, float]:
        """Write the report, the export and other results, and say what the user can do next; return the metrics.

        ``metrics``: those of the last evaluation.
        """
