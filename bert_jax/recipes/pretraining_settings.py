"""The keys of a recipe for pretraining, with types and defaults."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from bert_jax import configuration
from bert_jax.corpora.prepare import CorpusConfig
from bert_jax.errors import UserError
from bert_jax.objectives import base
from bert_jax.objectives.setting import ROW_KEYS
from bert_jax.parts import catalogue
from bert_jax.parts.own_code import with_contents
from bert_jax.recipes.key_names import is_finetuning
from bert_jax.recipes.settings import Settings
from bert_jax.rows.phases import Phase

# Keys of config.corpus that say where the corpus is and how it is built.
_FREE_OF_CORPUS = ("path", "num_workers", "beam_options")


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingSettings(Settings):
    """The checked values of a recipe for pretraining."""

    objective: Mapping[str, Any]  # the objective's name and its options, or members with theirs
    corpus: CorpusConfig = CorpusConfig()
    # texts in which the finished model fills each [MASK], or which a model that writes goes on with; None: held-out
    # sentences, with a masked word or without their second half; (): none
    examples: tuple[str, ...] | None = None
    private: bool = False  # write nothing about the text and its source (corpora.privacy)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> PretrainingSettings:
        """Return the checked values of a recipe.

        Raises ``UserError`` for a wrong key or value, or a recipe that is for fine-tuning.
        """
        if is_finetuning(config):
            raise UserError(
                f"this recipe is one for fine-tuning (it has config.{'task' if 'task' in config else 'tasks'}); run it "
                "with bert-jax finetune, or choose one of configs/pretrain"
            )
        settings = configuration.build(cls, config, "config")
        _ = settings.experiment, settings.objectives, settings.architecture  # raise for a wrong key or value
        return settings

    @functools.cached_property
    def members(self) -> dict[str, dict[str, Member]]:
        """The members of the objective of each phase, by name. An objective without members has itself, called ""."""
        return {phase.kind: self._members_of(phase) for phase in self.experiment.phases.phases}

    @functools.cached_property
    def objectives(self) -> list[ChosenObjective]:
        """The different objectives of the phases, in order.

        Each member of a phase has a kind of batch. An objective that a phase or a member names has the keys that are
        given there, and the keys of ``config.objective`` that every objective has, or all of them if the name is the
        same.
        """
        found = list[ChosenObjective]()
        for phase, _, where in [one for members in self.members.values() for one in members.values()]:
            if (name := phase.objective.get("name")) is None:
                module, config = self._named_objective
            else:
                same = name == self.objective.get("name")
                shared = {key: value for key, value in self.objective.items() if key in ROW_KEYS or same}
                given = {key: value for key, value in phase.objective.items() if key not in ROW_KEYS}
                module = catalogue.find("objectives", name, having="Objective")
                config = configuration.build(module.Config, {**shared, **given}, where, also=("name",))
            for other in found:
                first = other.phases[0]
                alike = other[:2] == (module, config) and first.model == phase.model
                if alike and member_of(first) == member_of(phase):
                    other.phases.append(phase)
                    break
            else:
                found.append(ChosenObjective(module, config, [phase], where))
        return found

    def objective_of(self, phase: Phase) -> ChosenObjective:
        """Return the objective of a phase, the first of its members if it has several."""
        return next(one for one in self.objectives if phase.kind in [of.kind for of in one.phases])

    def identity(self) -> dict[str, Any]:
        tree = configuration.without(super().identity(), "examples", "private")
        config = base.Config if "members" in self.objective else type(self._named_objective[1])
        tree["objective"] = configuration.complete(self.objective, configuration.defaults(config))
        tree["corpus"] = configuration.without(tree["corpus"], *_FREE_OF_CORPUS)
        chosen, evaluations = self.selection.metric.partition("/")[0], self.training.evaluations
        if chosen in evaluations:  # the choice of the best step depends on it
            tree["training"] = {"evaluations": {chosen: evaluations[chosen]}}
        return with_contents(tree)

    @property
    def shows_examples(self) -> bool:
        """Whether the finished model fills, or goes on with, examples.

        False in a private run, since the words would come from the private text.
        """
        return self.examples != () and not self.private

    @functools.cached_property
    def _named_objective(self) -> tuple[ModuleType, Any]:
        """The module and the config of ``config.objective``, which has no members."""
        module = catalogue.find("objectives", self.objective.get("name", ""), having="Objective")
        return module, configuration.build(module.Config, self.objective, "config.objective", also=("name",))

    def _members_of(self, phase: Phase) -> dict[str, Member]:
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
        of_phase, found = configuration.without(phase.objective, "members"), dict[str, Member]()
        shares = [one.get("share", 1.0) for one in group["members"].values() if isinstance(one, Mapping)]
        for name, values in sorted(group["members"].items()):
            if not name.isidentifier() or not isinstance(values, Mapping) or "name" not in values:
                raise UserError(
                    f"{where}.members.{name} is {values!r}; the name of an objective is needed, {{'name': 'mlm'}}"
                )
            share = values.get("share", 1.0)
            configuration.check_share(share, shares, f"{where}.members.{name}.share")
            kind = f"{phase.kind}/{name}" if found else phase.kind
            keys = {**of_phase, **configuration.without(values, "share")}
            of_member = dataclasses.replace(phase, kind=kind, objective=keys)
            found[name] = Member(of_member, float(share), f"{where}.members.{name}")
        return found


def member_of(phase: Phase) -> str:
    """Return the name of the member that ``phase`` stands for; "" for a whole phase and its first member."""
    return phase.kind.partition("/")[2]


def with_flags(config: Mapping[str, Any], vocab: str | None, private: bool) -> dict[str, Any]:
    """Return the tree of a recipe with the values of the flags --vocab and --private."""
    tree = {**config, "private": private or config.get("private", False)}
    group = config.get("vocab", {})
    # A group that is none is refused where the recipe is typed.
    return {**tree, "vocab": {**group, "path": vocab}} if vocab and isinstance(group, Mapping) else tree
