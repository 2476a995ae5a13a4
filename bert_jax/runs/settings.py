"""The keys of recipes with types and defaults: those that pretraining and fine-tuning share, then those of each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Literal, NamedTuple

from bert_jax import configuration
from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.corpora.prepare import CorpusConfig, VocabularyConfig
from bert_jax.errors import UserError
from bert_jax.examples.load import DataConfig
from bert_jax.losses.teacher import TeacherConfig
from bert_jax.models.config import ModelConfig
from bert_jax.objectives import base
from bert_jax.objectives.setting import ROW_KEYS
from bert_jax.parts import catalogue
from bert_jax.parts.own_code import with_contents
from bert_jax.rows.loader import LoaderConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.rows.rows_config import Packing
from bert_jax.runs.key_names import is_finetuning
from bert_jax.runs.model_choice import with_defaults
from bert_jax.runs.task_settings import TaskSettings, check_files, main_metrics, several_tasks, without
from bert_jax.tasks.base import KIND
from bert_jax.tasks.mixing import Mixing
from bert_jax.tasks.several import mean_of
from bert_jax.training.experiment import Experiment, TrainingConfig
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers.base import Rule
from bert_jax.training.schedules.base import Warmup
from bert_jax.training.selection import SelectionConfig

# Groups of keys, and keys of groups, that change how a run is computed and kept, not what it learns.
FREE = ("mesh", "loader", "training", "checkpoints", "export")
FREE_MODEL_FIELDS = ("remat", "attention_kernel")
FREE_PHASE_FIELDS = ("micro_batches",)
# Fields of config.corpus that say where the corpus is and how it is built.
FREE_CORPUS_FIELDS = ("path", "num_workers", "beam_options")
PHASE = {"num_epochs": 3.0, "batch_size": 32, "max_length": 128}  # of fine-tuning
ALL_ROWS = 2**31  # in fine-tuning, an evaluation reads all rows of the dev splits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """A recipe as typed values: each config key is a field of a subclass or of a class that it contains."""

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

    def find_part(self, group: str, phase: str | None = None) -> Any:
        """Return the "optimizer" or the "schedule", of ``phase`` if one is named.

        Raises ``UserError`` for a wrong key or value.
        """
        given, where = (self.phases[phase], f"config.phases.{phase}") if phase else (vars(self), "config")
        given, where, defaults = given[group], f"{where}.{group}", self.part_defaults[group]
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
        own = {key: value for key, value in defaults.items() if key in fields}
        return configuration.build(cls, configuration.complete(given, own), where, also=("name",))

    def experiment(self) -> Experiment:
        phases = Phases.of(self.phases)
        with_own = [phase.kind for phase in phases.phases if phase.schedule is not None]
        return Experiment(
            self.seed,
            phases,
            self.find_part("optimizer"),
            self.find_part("schedule"),
            self.mesh,
            self.training,
            self.checkpoints,
            self.loader,
            self.selection,
            own_schedules={name: self.find_part("schedule", name) for name in with_own},
        )

    def identity(self) -> dict[str, Any]:
        """Return the settings that a resumed run may not change. Paths may change: hashes of content count instead."""
        tree = without(dataclasses.asdict(self), *FREE)
        tree["vocab"] = without(tree["vocab"], "path")
        tree["model"] = without(with_defaults(self.model), *FREE_MODEL_FIELDS, "attention")  # the objective says that
        phases = {name: configuration.defaults(Phase) | values for name, values in self.phases.items()}
        tree["phases"] = {name: without(values, *FREE_PHASE_FIELDS) for name, values in phases.items()}
        tree |= {group: self._identity_of(group) for group in self.part_defaults}
        for name in (name for name, values in tree["phases"].items() if values["schedule"] is not None):
            tree["phases"][name]["schedule"] = self._identity_of("schedule", name)
        return tree if self.teacher else without(tree, "teacher")

    def _identity_of(self, group: str, phase: str | None = None) -> dict[str, Any]:
        """Return name and options of the optimizer or a schedule, without those whose place another one takes."""
        given = self.phases[phase][group] if phase else getattr(self, group)
        name = given.get("name", self.part_defaults[group]["name"])
        tree = {"name": name, **dataclasses.asdict(self.find_part(group, phase))}
        for keys in configuration.IN_PLACE_OF:
            if any(tree.get(key) is not None for key in keys[1:]):
                tree.pop(keys[0], None)
        return tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingSettings(Settings):
    """A pretraining recipe as typed values."""

    objective: Mapping[str, Any]  # the objective's name and its options, or members with theirs
    corpus: CorpusConfig = CorpusConfig()
    # texts in which the finished model fills each [MASK]; None: held-out sentences with a masked word each; (): none
    examples: tuple[str, ...] | None = None
    private: bool = False  # write nothing about the text and its source (corpora.privacy)

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str = "config") -> PretrainingSettings:
        """Return the typed values of a recipe. Raises ``UserError`` for a wrong one, or a recipe for fine-tuning.

        ``where`` is what errors call the recipe.
        """
        if is_finetuning(config):
            raise UserError(
                f"this recipe is one for fine-tuning (it has config.{'task' if 'task' in config else 'tasks'}); run it "
                "with bert-jax finetune, or choose one of configs/pretrain"
            )
        return configuration.build(cls, config, where)

    def identity(self) -> dict[str, Any]:
        tree = without(super().identity(), "examples", "private")
        named = "members" not in self.objective
        defaults = configuration.defaults(self.find_objective()[0].Config if named else base.Config)
        tree["objective"] = configuration.complete(self.objective, defaults)
        tree["corpus"] = without(tree["corpus"], *FREE_CORPUS_FIELDS)
        chosen, evaluations = self.selection.metric.partition("/")[0], self.training.evaluations
        if chosen in evaluations:  # the choice of the best step depends on it
            tree["training"] = {"evaluations": {chosen: evaluations[chosen]}}
        return with_contents(tree)

    def fills(self, model: ModelConfig) -> bool:
        """Return whether the finished model fills the examples.

        False in a private run, since the words would come from the private text, and for a left-to-right model, which
        cannot fill a mask.
        """
        return self.examples != () and not self.private and not model.causal

    def find_objective(self) -> tuple[ModuleType, Any]:
        """Return the objective's module and its config. Raises ``UserError`` for a wrong key or value."""
        module = catalogue.find("objectives", self.objective.get("name", ""), having="Objective")
        return module, configuration.build(module.Config, self.objective, "config.objective", also=("name",))

    def members(self, phase: Phase) -> dict[str, Member]:
        """Return the members of the objective of ``phase``, by name. A phase without members is one, called ""."""
        group, where = self.objective, "config.objective"
        if "members" in phase.objective or "name" in phase.objective:
            group, where = phase.objective, f"config.phases.{phase.kind}.objective"
        if "members" not in group:
            return {"": Member(phase, 1.0, where)}
        if "name" in group:
            raise UserError(f"{where} has name and members; it is one objective or several: leave one of them out")
        configuration.build(base.Config, group, where, also=("members",))
        if not isinstance(group["members"], Mapping) or len(group["members"]) < 2:
            raise UserError(
                f"{where}.members is {group['members']!r}; two or more are needed, each a name and its keys"
            )
        own, found = without(phase.objective, "members"), dict[str, Member]()
        shares = [one.get("share", 1.0) for one in group["members"].values() if isinstance(one, Mapping)]
        for name, values in sorted(group["members"].items()):
            if not name.isidentifier() or not isinstance(values, Mapping) or "name" not in values:
                raise UserError(
                    f"{where}.members.{name} is {values!r}; the name of an objective is needed, {{'name': 'mlm'}}"
                )
            share = values.get("share", 1.0)
            configuration.check_share(share, shares, f"{where}.members.{name}.share")
            kind = f"{phase.kind}/{name}" if found else phase.kind
            keys = {**own, **without(values, "share")}
            of_member = dataclasses.replace(phase, kind=kind, objective=keys)
            found[name] = Member(of_member, float(share), f"{where}.members.{name}")
        return found

    def objectives(self, phases: Sequence[Phase]) -> list[ChosenObjective]:
        """Return the different objectives of ``phases``, in order.

        A member of a phase stands for itself, with a kind of its own. The keys of an objective that a phase or a member
        names are given there, and of ``config.objective`` it has those that every objective has.

        Raises ``UserError`` for a wrong key or value.
        """
        found = list[ChosenObjective]()
        for phase, _, where in [one for every in phases for one in self.members(every).values()]:
            if (name := phase.objective.get("name")) is None:
                module, config = self.find_objective()
            else:
                same = name == self.objective.get("name")
                shared = {key: value for key, value in self.objective.items() if key in ROW_KEYS or same}
                own = {key: value for key, value in phase.objective.items() if key not in ROW_KEYS}
                module = catalogue.find("objectives", name, having="Objective")
                config = configuration.build(module.Config, {**shared, **own}, where, also=("name",))
            for other in found:
                alike = other[:2] == (module, config) and other.model == phase.model
                if alike and member_of(other.phases[0]) == member_of(phase):
                    other.phases.append(phase)
                    break
            else:
                found.append(ChosenObjective(module, config, [phase], where, phase.model))
        return found


class Member(NamedTuple):
    """One of the objectives of a phase: the phase with the member's kind of batch and keys, its share, its path."""

    phase: Phase
    share: float
    where: str


class ChosenObjective(NamedTuple):
    """An objective of a recipe, with the phases that have it and that replace the same keys of the model.

    ``where`` is the path of its keys.
    """

    module: ModuleType
    config: Any
    phases: list[Phase]
    where: str
    model: Mapping[str, Any]


def member_of(phase: Phase) -> str:
    """Return the name of the member that ``phase`` stands for; "" for a whole phase and its first member."""
    return phase.kind.partition("/")[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningSettings(Settings):
    """A fine-tuning recipe as typed values.

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
    training: TrainingConfig = TrainingConfig(evaluations_per_epoch=1, logs_per_evaluation=10, eval_rows=ALL_ROWS)
    checkpoints: CheckpointConfig = CheckpointConfig(every_steps=None, keep=1)

    part_defaults = {
        "optimizer": {"name": "adamw", "bias_correction": "standard"},
        "schedule": {"name": "linear_from_zero", "peak_learning_rate": 2e-5, "warmup_fraction": 0.1},
    }

    def __post_init__(self) -> None:
        configuration.check_fields(self, "config", "0 or more is needed", "bilstm_layers", sound=lambda v: v >= 0)
        if others := [name for name in self.phases if name != KIND]:
            raise UserError(f"config.phases has {', '.join(others)}; fine-tuning has one phase, config.phases.{KIND}")
        where = f"config.phases.{KIND}"
        only = [name for name, value in (("shares", self.phase.shares), ("model", self.phase.model)) if value]
        if extra := [*self.phase.changes, *only]:
            raise UserError(f"{where} has {', '.join(extra)} of pretraining; leave it out")
        hint = "at least 8 is needed: the special tokens of a pair are three"
        configuration.check_fields(self.phase, where, hint, "max_length", sound=lambda v: v >= 8)
        if self.selection.metric.partition("/")[0] in self.training.evaluations:
            raise UserError(
                f"config.selection.metric is {self.selection.metric!r}; fine-tuning selects by a metric of the dev rows"
            )
        if self.training.eval_masking:
            raise UserError("config.training.eval_masking is for pretraining; fine-tuning masks nothing, leave it out")
        if (rows := self.training.eval_rows) != ALL_ROWS:
            raise UserError(
                f"config.training.eval_rows is {rows:,}; fine-tuning evaluates all rows; for fewer, set "
                "config.data.max_dev_rows"
            )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> FinetuningSettings:
        """Return the typed values of a recipe. Raises ``UserError`` for a wrong one, or a recipe of another kind."""
        if "objective" in config:
            raise UserError(
                "this recipe is one for pretraining (it has config.objective); run it with bert-jax pretrain, or "
                "choose one of configs/finetune"
            )
        settings = configuration.build(cls, config, "config")
        settings.mixing.check(settings.each)
        check_files(settings.each)
        return settings

    @functools.cached_property
    def each(self) -> dict[str, TaskSettings]:
        """The tasks by name, in alphabetical order; a task that is alone is called ""."""
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

    @property
    def main_metric(self) -> str:
        """The metric by which the best step is selected if the recipe names none; "" if there is none."""
        mains = main_metrics(self.each)
        return self.selection.metric or (mean_of(mains) if self.tasks else mains[0])

    @property
    def phase(self) -> Phase:
        return Phases.of(self.phases).phases[0]

    def identity(self) -> dict[str, Any]:
        tree, training = without(super().identity(), "task", "data", "tasks", "mixing"), self.training
        if self.tasks:
            tree |= {
                "tasks": {name: one.identity() for name, one in self.each.items()},
                "mixing": dataclasses.asdict(self.mixing),
            }
        else:
            tree |= without(self.each[""].identity(), "weight", "frozen")
        name = "eval_every_steps" if training.evaluations_per_epoch is None else "evaluations_per_epoch"
        tree["training"] = {name: getattr(training, name)}  # the choice of the best step depends on it
        return with_contents(tree)
