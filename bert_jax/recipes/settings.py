"""The keys that recipes for pretraining and recipes for fine-tuning share, with types and defaults."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from bert_jax import configuration
from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.corpora.prepare import VocabularyConfig
from bert_jax.errors import UserError
from bert_jax.losses.teacher import TeacherConfig
from bert_jax.parts import catalogue
from bert_jax.recipes.architecture import Architecture
from bert_jax.rows.loader import LoaderConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.training.experiment import Experiment, TrainingConfig
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers.base import Rule
from bert_jax.training.schedules.base import Warmup
from bert_jax.training.selection import SelectionConfig

# Groups of keys, and keys of phases, that change how a run is computed and kept, not what it learns.
_FREE = ("mesh", "loader", "training", "checkpoints", "export")
_FREE_OF_PHASES = ("micro_batches",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The checked values of a recipe: each config key is a field of a subclass or of a class that it contains.

    Groups whose keys depend on a name among them, such as ``optimizer``, stay as the recipe gives them. Their checked
    values are properties: ``architecture`` and ``experiment`` here, others in the subclasses. Each is built once.
    """

    model: Mapping[str, Any]  # encoder, size, and fields of the encoder's Config that override the size
    phases: Mapping[str, Any]  # name -> the keys of a phase; phases run in the order of their names
    seed: int = 0  # of parameters, the order of rows, masks and dropout
    vocab: VocabularyConfig = VocabularyConfig()
    optimizer: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the optimizer's name and its options
    schedule: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the schedule's name and its options
    selection: SelectionConfig = SelectionConfig()
    mesh: MeshConfig = MeshConfig()
    training: TrainingConfig = TrainingConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    loader: LoaderConfig = LoaderConfig()
    export: bool = True  # write a Hugging Face directory at the end
    teacher: TeacherConfig | None = None  # a trained model to learn from

    # What optimizer and schedule are if the recipe does not say it; an option counts for the parts that have it.
    part_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "optimizer": {"name": "adamw"},
        "schedule": {"name": "linear_from_zero"},
    }

    @functools.cached_property
    def architecture(self) -> Architecture:
        """The model, for the vocabulary that the recipe asks for. Raises ``UserError`` for a wrong key or value."""
        return Architecture.of(self.model, self.vocab.size + len(self.vocab.added))

    @functools.cached_property
    def experiment(self) -> Experiment:
        """All settings of the training besides its task. Raises ``UserError`` for a wrong key or value."""
        phases = Phases.of(self.phases)
        with_own = [phase for phase in phases.phases if phase.schedule is not None]
        return Experiment(
            self.seed,
            phases,
            self._part("optimizer", self.optimizer),
            self._part("schedule", self.schedule),
            self.mesh,
            self.training,
            self.checkpoints,
            self.loader,
            self.selection,
            own_schedules={one.kind: self._part("schedule", one.schedule or {}, one.kind) for one in with_own},
        )

    def identity(self) -> dict[str, Any]:
        """Return the settings that a resumed run may not change. Paths may change: hashes of content count instead."""
        tree, experiment = configuration.without(dataclasses.asdict(self), *_FREE), self.experiment
        tree["vocab"] = configuration.without(tree["vocab"], "path")
        tree["model"] = self.architecture.identity()
        tree["phases"] = {one.kind: self._identity_of_phase(one) for one in experiment.phases.phases}
        tree["optimizer"] = self._identity_of("optimizer", self.optimizer, experiment.optimizer)
        tree["schedule"] = self._identity_of("schedule", self.schedule, experiment.schedule)
        return tree if self.teacher else configuration.without(tree, "teacher")

    def _part(self, group: str, given: Mapping[str, Any], phase: str = "") -> Any:
        """Return the optimizer or the schedule that the keys ``given`` describe, the schedule of ``phase`` if named."""
        where = f"config.phases.{phase}.{group}" if phase else f"config.{group}"
        defaults = self.part_defaults[group]
        name, category = given.get("name", defaults["name"]), catalogue.KEYS[f"{group}.name"]
        at = f"{where}.name" if phase else ""
        cls = getattr(catalogue.find(category.package, name, having=category.having, where=at), category.having)
        base: type[Rule] | type[Warmup] = Rule if group == "optimizer" else Warmup
        if not issubclass(cls, base) or cls.__abstractmethods__:
            has = ", ".join(sorted(base.__abstractmethods__))
            raise UserError(
                f"{catalogue.display_name(name)}: {category.having} is to be a bert_jax.{category.package}.base."
                f"{base.__name__} with {has} of its own"
            )
        fields = {field.name for field in dataclasses.fields(cls)}
        fitting = {key: value for key, value in defaults.items() if key in fields}
        return configuration.build(cls, configuration.complete(given, fitting), where, also=("name",))

    def _identity_of_phase(self, phase: Phase) -> dict[str, Any]:
        """Return the keys of a phase, without a number of steps that another key decides."""
        derived = ("num_steps",) if phase.num_tokens is not None or phase.num_epochs is not None else ()
        tree = configuration.without(dataclasses.asdict(phase), "kind", *_FREE_OF_PHASES, *derived)
        if phase.schedule is not None:
            schedule = self.experiment.own_schedules[phase.kind]
            tree["schedule"] = self._identity_of("schedule", phase.schedule, schedule)
        return tree

    def _identity_of(self, group: str, given: Mapping[str, Any], part: Any) -> dict[str, Any]:
        """Return name and options of an optimizer or a schedule, without the options whose place another takes."""
        tree = {"name": given.get("name", self.part_defaults[group]["name"]), **dataclasses.asdict(part)}
        for keys in configuration.IN_PLACE_OF:
            if any(tree.get(key) is not None for key in keys[1:]):
                tree.pop(keys[0], None)
        return tree
