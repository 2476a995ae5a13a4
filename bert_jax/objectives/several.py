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
from bert_jax.records import Batch, Sum
from bert_jax.rows.dealt import DealtRows, passes_of
from bert_jax.task import Bucket, Losses, RowSource, Variables
from bert_jax.text.tokenizer import Tokenizer


class Several:
    """A ``bert_jax.task.Task`` whose kinds of batches have objectives of their own (``of``): its phases and members.

    A phase has one objective, or several members, each of which has a share of the batches. The parameters are those of
    the encoder and of the parts of all objectives; a part that two of them have is one part. A step trains the encoder
    and the parts of its own objective. What names no kind is that of the last phase, or of its first member.
    """

    trains: frozenset[str] | None = None

    def __init__(
        self, objectives: Sequence[PretrainingObjective], members: Mapping[str, Mapping[str, tuple[str, float]]]
    ):
        """
        Args:
          objectives: each is made for its own kinds of batches alone.
          members: phase, in order -> name of a member ("" if it is alone) -> its kind of batch and its share. The kind
            of the first one is the phase.

        Raises:
          UserError: two objectives have each a head of one name, and these differ; or members have rows of several
            lengths.
        """
        parts: dict[str, tuple[str, Part | EncoderPart]] = {}
        for one in objectives:
            for part in one.parts:
                first, known = parts.setdefault(part.name, (one.name, part))
                if known != part:
                    raise UserError(
                        f"the head {part.name!r} of objective {catalogue.display_name(one.name)} has another class or "
                        f"other options than that of {catalogue.display_name(first)}; give one of them another name"
                    )
        self._objectives, self._members = objectives, members
        self._made_for = {kind: one for one in objectives for kind in one.batch_specs}
        self._of = {kind: self._reader(one, kind, parts) for kind, one in self._made_for.items()}
        self.batch_specs = {kind: one.batch_specs[kind] for kind, one in self._of.items()}
        self.flops_per_row = {kind: one.flops_per_row[kind] for kind, one in self._of.items()}
        self.whole_batches = any(one.whole_batches for one in objectives)
        for phase, of_phase in members.items():
            of_members = [kind for kind in self.batch_specs if kind.partition("/")[0] == phase]
            if 1 < len(of_phase) < len(of_members):
                raise UserError(f"the members of {phase} have rows of one length: set packing to 'packed' or 'none'")
        at_end = list(members.values())[-1].values()
        self._last = last = self._of[next(kind for kind, _ in at_end)]
        self.parts = tuple({part.name: part for kind, _ in at_end for part in self._of[kind].parts}.values())
        self.config, self.setting, self.given, self.tokenizer = last.config, last.setting, last.given, last.tokenizer
        self.dtype, self.heldout_parts = last.dtype, last.heldout_parts
        self.loss_weights, self.gathered_outputs = last.loss_weights, last.gathered_outputs

    def _reader(self, objective: PretrainingObjective, kind: str, parts: Collection[str]) -> PretrainingObjective:
        """Return ``objective`` for ``kind``: what it trains of ``parts``, and the held-out parts of its phase."""
        one, own = copy.copy(objective), {part.name for part in objective.parts}
        if one.trains is None and own < set(parts):
            one.trains = frozenset({"encoder", *own})
        if len(of_phase := self._members[kind.partition("/")[0]]) > 1:
            one.heldout_parts = tuple(of_phase)
        return one

    @property
    def units(self) -> tuple[str, ...]:
        """The units of masking in all phases: "piece", "word", or columns of the corpus."""
        return tuple(sorted({unit for one in self._objectives for unit in one.units}))

    def with_text(self, corpus: Corpus | Mixture, tokenizer: Tokenizer, vocab_size: int | None = None) -> Self:
        """Return the task with the text that it learns from; see ``PretrainingObjective.with_text``."""
        return type(self)([one.with_text(corpus, tokenizer, vocab_size) for one in self._objectives], self._members)

    def of(self, kind: str) -> PretrainingObjective:
        return self._of[kind]

    def kind_of(self, part: str, kind: str) -> str:
        of_phase = self._members[kind]
        return of_phase[part][0] if len(of_phase) > 1 else kind

    def reader(self, kind: str, phase: str) -> PretrainingObjective:
        one, now = self._of[kind], self._of[phase]
        return now if (type(now), now.config) == (type(one), one.config) else one

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        of_phase = dict(self._members[kind.partition("/")[0]].values())
        if len(of_phase) == 1:
            return self._made_for[kind].source(split, kind, phase, part)
        if split == "train":
            sources = {one: self._made_for[one].source(split, one, phase) for one in of_phase}
            passes = passes_of({one: source.rows_per_epoch for one, source in sources.items()}, of_phase)
            return DealtRows(
                [(of, (Bucket(one, of.rows_per_epoch, 1, (passes[one],)),)) for one, of in sources.items()]
            )
        return self._made_for[kind].source(split, kind, phase)

    def init(self, rng: Any) -> Variables:
        every = [one.init(rng) for one in self._objectives]
        return Variables(*({name: tree for one in every for name, tree in one[i].items()} for i in range(2)))

    def loss(self, variables: Variables, batch: Batch, rng: Any) -> Losses:
        return self._last.loss(variables, batch, rng)

    def outputs(self, variables: Variables, batch: Batch) -> dict[str, Any]:
        return self._last.outputs(variables, batch)

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        return self._last.summary(sums)

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        return self._last.finish(part, outputs)

    def evaluated(self, metrics: dict[str, float]) -> dict[str, float]:
        return metrics

    def baselines(self, kind: str, num_rows: int, part: str | None = None) -> dict[str, float]:
        """Return those of the objective of ``kind``; see ``PretrainingObjective.baselines``.

        Of members, those that are alike for all who have them, or those of the member ``part``.
        """
        of_phase = self._members[kind]
        if len(of_phase) == 1:
            return self._made_for[kind].baselines(kind, num_rows, part)
        kinds = [one for name, (one, _) in of_phase.items() if part in (None, name)]
        every = [self._made_for[one].baselines(one, num_rows) for one in kinds]
        return {
            name: value
            for found in every
            for name, value in found.items()
            if {other.get(name, value) for other in every} == {value}
        }

    def heldout_rows(self, kind: str, num_rows: int) -> dict[str, np.ndarray]:
        """Return those of the objective of ``kind``; see ``PretrainingObjective.heldout_rows``."""
        return self._made_for[kind].heldout_rows(kind, num_rows)


def seed_of_member(seed: int, member: str) -> int:
    """Return the seed of the rows of a ``member``, so that no two read the same rows in the same order.

    "" is the first member, or the only objective, which keeps ``seed``.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {member}".encode()).digest()[:4], "little") >> 1 if member else seed
