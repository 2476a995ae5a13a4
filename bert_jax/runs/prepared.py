"""The contract of a prepared run, which pretraining and fine-tuning fill in and ``runs.run`` leads to its end."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax

from bert_jax.corpora.mixture import Mixture
from bert_jax.interchange.initial import continued_seed
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import ModelConfig
from bert_jax.program import Note
from bert_jax.recipes.settings import Settings
from bert_jax.reporting.loggers.base import check_loggers
from bert_jax.reporting.observer import Observer
from bert_jax.reporting.profiled_steps import ProfiledSteps
from bert_jax.runs.evaluations import base as evaluations
from bert_jax.storage import hub
from bert_jax.task import Task
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.experiment import Experiment
from bert_jax.training.state import TrainState
from bert_jax.workdir.run_record import Purpose


@dataclasses.dataclass(frozen=True)
class Request:
    """The values that the command line adds to a recipe."""

    workdir: str = ""  # "" if nothing is trained, such as by ``plan``
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
      task: the task with its text or its examples.
      experiment: the experiment, in which lengths given in epochs have become steps.
      fingerprint: a digest of the text, or of the examples.
      sizes: how much there is to train on, such as {"tokens": 1000}.
      corpus: the text of a pretraining.
    """

    task: Task
    experiment: Experiment
    tokenizer: Tokenizer
    model: ModelConfig
    fingerprint: str
    sizes: Mapping[str, int]
    corpus: Mixture | None = None


class Prepared(abc.ABC):
    """A recipe, of which everything is checked that needs no text and no examples.

    Attributes:
      task: what is trained, as far as it is known.
      initial: the model of --init, from which the run starts or has started.
      initial_of_teacher: the model that the run starts from if the recipe says to take layers of the teacher.
      saved: the saved steps of the run.
      parent: the entries of the run's facts that name the run from which it starts.
      mesh: the devices of the run.
    """

    purpose: ClassVar[Purpose]
    task: Task
    initial_of_teacher: TrainedModel | None

    def __init__(
        self,
        settings: Settings,
        initial: TrainedModel | None,
        devices: list[jax.Device] | None,
        request: Request | None,
        saved: Sequence[int],
    ):
        """Check what pretraining and fine-tuning have in common; the subclasses check the rest.

        Args:
          initial: the model of --init.
          devices: the devices to run on. If None, all devices of this job, whose memory is then checked too.
          request, saved: what the command line adds, and the saved steps, if the run is to be trained.

        Raises:
          UserError: settings do not exist, make no sense, or do not fit each other.
        """
        self.settings, self.initial, self.request, self.saved = settings, initial, request or Request(), saved
        seed, self.parent = continued_seed(settings.seed, self.initial_weights, self.purpose)
        self.experiment = dataclasses.replace(settings.experiment, seed=seed)
        self.mesh = self.experiment.check(devices)
        check_loggers(settings.training.loggers)
        evaluations.check(settings.training.evaluations, settings.selection.metric)

    @property
    def initial_weights(self) -> TrainedModel | None:
        """The model of --init, if it gives weights."""
        return self.initial

    @property
    def hub_parent(self) -> dict[str, Any]:
        """The entry "parent" of ``run.json``: the commit and the licence of a model of the Hub; {} for other models."""
        initial = self.initial
        known = initial is not None and hub.is_model(initial.source) and "parent" in initial.facts
        return {"parent": initial.facts["parent"]} if initial is not None and known else {}

    @property
    def bound(self) -> bool:
        """Whether the run has saved a step, after which its vocabulary and its text stay as they are."""
        return bool(self.saved)

    @property
    def num_steps(self) -> int:
        """The steps of the run; 0 if they follow from a text that is not read yet."""
        return self.experiment.phases.num_steps

    # ---- What a run asks for: ``notes``, ``record`` and ``check_inputs`` first, then ``open``, then the others ----

    @abc.abstractmethod
    def titles(self) -> dict[str, str]:
        """Return the titles of the task's metrics, the most important ones first."""

    @abc.abstractmethod
    def notes(self, initial: TrainedModel) -> list[str]:
        """Return lines about the settings that the run takes from ``initial`` in place of the recipe.

        Raises ``UserError`` if a typed key contradicts ``initial``.
        """

    @abc.abstractmethod
    def frozen_contents(self) -> dict[str, str]:
        """Return a digest of each model or array that the task reads and does not train."""

    @abc.abstractmethod
    def record(self, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any], str]:
        """Return config, identity and command as the run's files record them.

        Raises ``UserError`` for an input that is damaged.
        """

    @abc.abstractmethod
    def check_inputs(self, note: Note) -> Opened | None:
        """Return what the run trains on; None if ``open`` has yet to make or to read it.

        Raises ``UserError`` for every mistake in text or examples that can be found before the run is recorded.
        """

    @abc.abstractmethod
    def open(self, known: Opened | None, note: Note) -> Opened:
        """Return what the run trains on, after making what is missing of it in the workdir.

        ``known``: what ``check_inputs`` returned.
        """

    @abc.abstractmethod
    def facts(self, opened: Opened) -> dict[str, Any]:
        """Return the facts of a run that has text or examples. It resumes only with the same facts."""

    @abc.abstractmethod
    def write_baselines(self, opened: Opened, note: Note) -> None:
        """Write ``baselines.json``: figures that need no learning."""

    @abc.abstractmethod
    def remarks(self, opened: Opened, reached: int) -> list[str]:
        """Return lines about the inputs and the length of a run that has ``reached`` a step."""

    @abc.abstractmethod
    def first_state(
        self, initial: TrainedModel, opened: Opened, facts: Mapping[str, Any], note: Note
    ) -> Callable[[TrainState], TrainState]:
        """Return the function that gives a fresh state the weights of ``initial``."""

    def fill(self, opened: Opened, note: Note) -> None:
        """Compute the values that rows lack, now that the run is known to go on. Every process calls this."""
        del opened, note

    def given_frozen(self, facts: Mapping[str, Any]) -> Callable[[Any], Any] | None:
        """Return the function that replaces the frozen variables, which no checkpoint holds; None if nothing does."""
        del facts
        return None

    @abc.abstractmethod
    def finish(
        self, opened: Opened, facts: Mapping[str, Any], observer: Observer, metrics: dict[str, float]
    ) -> dict[str, float]:
        """Write the report, the export and other results, and say what the user can do next; return the metrics.

        ``metrics``: the metrics of the last evaluation.
        """
