"""Plans a pretraining recipe for ``bert-jax plan``.

It converts the recipe to the form that ``bert_jax.planning`` takes, and collects the results.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.generation.steppers import memory_bytes
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import ModelConfig
from bert_jax.planning import page, topologies
from bert_jax.planning.largest_micro_batch import LargestMicroBatch, largest_micro_batches
from bert_jax.planning.plan import Change, Machine, Plan, make_plan
from bert_jax.planning.smallest_change import smallest_change
from bert_jax.program import Note, size
from bert_jax.recipes import key_names, recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs.inputs import read_initial
from bert_jax.runs.models_read import check_vocabularies
from bert_jax.runs.pretraining import Pretraining, first_model
from bert_jax.task import Task, tasks_of
from bert_jax.training.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class PlanRequest:
    """The flags of ``bert-jax plan``.

    Attributes:
      topology: the machine as KIND:SHAPE, such as "v5e:16x16".
      init: the model from which the run starts; its architecture and vocabulary are planned.
      recipe: the flags that name and change the recipe, for the next command.
      largest_micro_batch: whether to search for it, which takes up to three compilations a phase.
    """

    topology: str
    init: str | None = None
    price_per_chip_hour: float | None = None
    recipe: tuple[str, ...] = ("--config=RECIPE",)
    largest_micro_batch: bool = False


@dataclasses.dataclass(frozen=True)
class PlanResult:
    """The result of ``plan``. Searches that take more compilations are left to do, so that the plan is printed first.

    Attributes:
      find_smaller: finds the plans with the smallest changes that make the recipe fit.
      find_largest: finds the largest micro-batch of each phase.
    """

    plan: Plan
    request: PlanRequest
    batches: Mapping[str, int]
    find_smaller: Callable[[], list[Plan]]
    find_largest: Callable[[], Mapping[str, LargestMicroBatch]]

    @property
    def fits(self) -> bool:
        return self.plan.fits

    @functools.cached_property
    def smaller(self) -> list[Plan]:
        """Return the plans with the smallest changes that make the recipe fit; [] if it fits, or no change is found."""
        return [] if self.fits else self.find_smaller()

    def as_lines(self) -> Iterator[str]:
        """Return the lines of the plan; lines that take more compilations come last."""
        yield from page.as_lines(self.plan)
        if not self.fits:
            yield from page.smaller_lines(self.smaller, self.batches)
        yield ""
        yield from page.largest_lines(self.plan, self.find_largest() if self.request.largest_micro_batch else None)
        yield from ["", self.next_line()]

    def next_line(self) -> str:
        """Return the line with the command to type next."""
        plan = self.smaller[-1] if self.smaller else self.plan  # a change that keeps the batch is last
        asked = [*self.request.recipe, *plan.change.overrides(self.batches)]
        return page.next_command(plan, asked, page.run_name(self.request.recipe[0].partition("=")[2]))

    def as_json(self) -> str:
        record = page.as_record(self.plan)
        record["next"] = self.next_line()
        if self.request.largest_micro_batch:
            record["largest_micro_batches"] = {name: vars(of) for name, of in self.find_largest().items()}
        if self.smaller:
            record["smallest_change"] = page.smaller_record(self.smaller, self.batches)
        return json.dumps(record)


def plan(config: Mapping[str, Any], request: PlanRequest, note: Note) -> PlanResult:
    """Return the plan of a recipe.

    Raises:
      UserError: the topology is unknown, ``request.init`` is no model or is needed, the recipe and the layout do not
        fit together, or a compiler is missing. All of this is checked before the first compilation.
    """
    price = request.price_per_chip_hour
    if price is not None and not 0 < price < math.inf:
        raise UserError(f"--price_per_chip_hour is {price}; more than 0 is needed")
    topology = topologies.parse(request.topology)
    recipe = PretrainingRecipe.of(config)
    typed = recipes.typed_keys(request.recipe)
    initial = read_initial(recipe.settings.vocab, typed, request.init) if request.init else None
    recipe = dataclasses.replace(recipe, initial=initial)
    machine = Machine.of(topology)
    task, experiment = recipe.variant(Change(), machine.devices)
    recipe.check_vocabulary(task)
    batches = {phase.kind: phase.batch_size for phase in experiment.phases.phases}
    note(f"compiling the step of {', '.join(batches)} for {topology.name}")
    made = make_plan(recipe, machine, price, note=note)
    made = dataclasses.replace(made, notes=(*made.notes, *_when_it_writes(task, first_model(recipe.settings, initial))))
    search = (recipe, machine, made, note)
    return PlanResult(made, request, batches, lambda: smallest_change(*search), lambda: largest_micro_batches(*search))


def _when_it_writes(task: Task, model: ModelConfig) -> list[str]:
    """Return a line with the memory that ``bert-jax generate`` takes for a model of ``task``; [] if it cannot write."""
    length = model.max_length
    if not (model.causal or model.decodes or any(one.writes for one in tasks_of(task).values())):
        return []
    kept = size(memory_bytes(model, 1, length, model.compute_dtype))
    return [f"bert-jax generate keeps {kept} of keys and values for each text, or beam, of {length:,} tokens"]


@dataclasses.dataclass(frozen=True)
class PretrainingRecipe:
    """A pretraining recipe as a ``planning.plan.Recipe``.

    Its vocabulary is taken to have ``config.vocab.size`` pieces, unless it starts from a model (``initial``).
    """

    settings: PretrainingSettings
    initial: TrainedModel | None = None
    read: Callable[..., TrainedModel] = dataclasses.field(default_factory=lambda: functools.cache(load))

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> PretrainingRecipe:
        """Return the recipe. Raises ``UserError`` for a wrong key or value, or if it is a recipe for fine-tuning."""
        if key_names.is_finetuning(config):
            raise UserError(
                "this recipe is one for fine-tuning, which plan does not compile; a step takes about as long as a "
                "step of as many texts of --config=continue --init=DIR, with --config.phases.phase1.batch_size=N and "
                "--config.phases.phase1.max_length=N"
            )
        settings = PretrainingSettings.of(config)
        for phase in settings.experiment.phases.phases:
            if len(members := settings.members[phase.kind]) > 1:
                raise UserError(
                    f"{phase.kind} has the members {', '.join(members)}, and plan computes one kind of batch for a"
                    " phase; plan a recipe whose phases have one objective each, such as each member alone"
                )
            if phase.num_epochs is not None:
                where = f"config.phases.{phase.kind}"
                raise UserError(
                    f"{where}.num_epochs is {phase.num_epochs:g}; plan reads no text and cannot count an epoch; add "
                    f"--{where}.num_tokens=N, {phase.num_epochs:g} x the tokens of the text (1.3 a word), or "
                    f"--{where}.num_steps=N"
                )
        return cls(settings)

    def variant(self, change: Change, devices: list[Any]) -> tuple[Task, Experiment]:
        checked = Pretraining(self._changed(change), self.initial, devices, self.read)
        return checked.task, checked.experiment

    def check_vocabulary(self, task: Task) -> None:
        """Raise ``UserError`` unless the models that ``task`` reads have the vocabulary that the recipe names."""
        vocab, initial = self.settings.vocab, self.initial
        if any(one.setting.models or one.setting.teacher for one in tasks_of(task).values()):
            check_vocabularies(task, vocab.load_tokenizer(initial.tokenizer if initial else None), vocab.added)

    def shape(self) -> ModelConfig:
        return first_model(self.settings, self.initial)

    def _changed(self, change: Change) -> PretrainingSettings:
        settings = self.settings
        keys = change.changed_keys({name: values["batch_size"] for name, values in settings.phases.items()})
        return dataclasses.replace(
            settings,
            mesh=change.mesh or settings.mesh,
            phases=configuration.complete(keys["phases"], settings.phases),
            model=configuration.complete(keys["model"], settings.model),
        )
