"""The task of a run with several objectives: one after another, in phases of their own, or several in one phase."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np

from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.models.model import EncoderPart, Part
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.parts import catalogue
from bert_jax.rows.dealt import deal, passes_of
from bert_jax.task import RowSource, TaskOfSeveral, Variables
from bert_jax.text.tokenizer import Tokenizer


class SeveralObjectives(TaskOfSeveral[PretrainingObjective]):
    """A ``bert_jax.task.Task`` whose phases have objectives of their own: each phase one, or several members.

    Each member has a share of the batches of its phase. A step trains the encoder and the parts of its own objective.
    A finished model is a model of the last phase, so the last phase has the ``parts``, and its objective (or its first
    member) the ``config``, ``setting``, ``given`` and ``tokenizer``.
    """

    def __init__(
        self, objectives: Sequence[PretrainingObjective], members: Mapping[str, Mapping[str, tuple[str, float]]]
    ):
        """
        Args:
          objectives: no two have a kind of batch in common.
          members: phase, in order -> name of a member ("" if it is alone) -> its kind of batch and its share. The kind
            of the first member is the phase.

        Raises:
          UserError: two objectives have different heads of one name; or members have rows of several lengths.
        """
        self._objectives, self._members = objectives, members
        parts = _united(objectives)
        tasks = {kind: one for each in objectives for one in [_training(each, parts)] for kind in one.batch_specs}
        several = {phase: of_phase for phase, of_phase in members.items() if len(of_phase) > 1}
        heldout = {phase: {name: kind for name, (kind, _) in of.items()} for phase, of in several.items()}
        super().__init__(tasks, heldout)
        for phase, of_phase in several.items():
            if len(of_phase) < len([kind for kind in tasks if kind.partition("/")[0] == phase]):
                raise UserError(f"the members of {phase} have rows of one length: set packing to 'packed' or 'none'")
        at_end = [tasks[kind] for kind, _ in list(members.values())[-1].values()]
        last = at_end[0]
        self.parts = tuple({part.name: part for one in at_end for part in one.parts}.values())
        self.config, self.setting, self.given, self.tokenizer = last.config, last.setting, last.given, last.tokenizer
        self.dtype, self.differs = last.dtype, next(filter(None, (one.differs for one in at_end)), "")

    @property
    def units(self) -> tuple[str, ...]:
        """The units of masking in all phases: "piece", "word", or columns of the corpus."""
        return tuple(sorted({unit for one in self._objectives for unit in one.units}))

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """The columns of the corpus that rows of any phase read, as units of masking or as features."""
        return tuple(dict.fromkeys(name for one in self._objectives for name in one.needed_columns))

    def with_text(self, corpus: Corpus | Mixture, tokenizer: Tokenizer, vocab_size: int | None = None) -> Self:
        """Return the task with the text that it learns from; see ``PretrainingObjective.with_text``."""
        return type(self)([one.with_text(corpus, tokenizer, vocab_size) for one in self._objectives], self._members)

    def init(self, rng: Any) -> Variables:
        """Return the variables of all objectives; a part of several objectives is as the last of these makes it."""
        every = [one.init(rng) for one in self._objectives]
        return Variables(*({name: tree for one in every for name, tree in one[i].items()} for i in range(2)))

    def reader(self, kind: str, phase: str) -> PretrainingObjective:
        one, now = self._of[kind], self._of[phase]
        return now if (type(now), now.config) == (type(one), one.config) else one

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        of_phase = dict(self._members[kind.partition("/")[0]].values())
        if len(of_phase) == 1:
            return self._of[kind].source(split, kind, phase, part)
        if split == "eval":  # ``part`` is the name of a member, all of whose rows are read
            return self._of[kind].source(split, kind, phase)
        sources = {one: self._of[one].source(split, one, phase) for one in of_phase}
        passes = passes_of({one: source.rows_per_epoch for one, source in sources.items()}, of_phase)
        return deal(sources, {one: (number,) for one, number in passes.items()})

    def baselines(self, kind: str, num_rows: int, part: str | None = None) -> dict[str, float]:
        """Return the baselines of a phase, or of one member or part of a mixture in it."""
        if len(self._members[kind]) > 1:
            return super().baselines(kind, num_rows, part)
        return self._of[kind].baselines(kind, num_rows, part)

    def heldout_rows(self, kind: str, num_rows: int) -> dict[str, np.ndarray]:
        """Return the rows of an evaluation of ``kind``; see ``PretrainingObjective.heldout_rows``."""
        return self._of[kind].heldout_rows(kind, num_rows)


def _united(objectives: Sequence[PretrainingObjective]) -> frozenset[str]:
    """Return the names of the parts of all objectives.

    Raises ``UserError`` if two objectives have different heads of one name.
    """
    parts: dict[str, tuple[str, Part | EncoderPart]] = {}
    for one in objectives:
        for part in one.parts:
            first, known = parts.setdefault(part.name, (one.name, part))
            if known != part:
                raise UserError(
                    f"the head {part.name!r} of objective {catalogue.display_name(one.name)} has another class or "
                    f"other options than the head of {catalogue.display_name(first)}; give one of them another name"
                )
    return frozenset(parts)


def _training(objective: PretrainingObjective, parts: Collection[str]) -> PretrainingObjective:
    """Return ``objective`` in a model with ``parts``, of which a step trains the objective's own."""
    own = {part.name for part in objective.parts}
    if objective.trains is not None or own == set(parts):
        return objective
    objective = copy.copy(objective)
    objective.trains = frozenset({"encoder", *own})
    return objective


def seed_of_member(seed: int, member: str) -> int:
    """Return the seed of the rows of a ``member``, so that no two read the same rows in the same order.

    "" is the first member, or the only objective, which keeps ``seed``.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {member}".encode()).digest()[:4], "little") >> 1 if member else seed
