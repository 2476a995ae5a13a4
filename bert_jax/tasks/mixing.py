"""Decides how many batches of each task an epoch of several tasks has: the keys of ``config.mixing``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from bert_jax.configuration import check_fields, check_share, nearest
from bert_jax.errors import UserError
from bert_jax.rows.dealt import passes_of

_WHERE = "config.mixing"
_MOST = 1000  # of alpha and ratio; more is a slip


@dataclasses.dataclass(frozen=True)
class Mixing:
    """The keys of ``config.mixing``: one of three ways to mix tasks. Without them, an epoch has every example once."""

    shares: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # task -> its share of the batches
    # a task with n batches has a share of n^alpha: 1 in proportion to its examples, 0 as many as every other task
    alpha: float | None = None
    alpha_end: float | None = None  # alpha goes from its first to this value, linearly over the epochs of the run
    # an epoch has all batches of the task ``main``, and this number of times as many of the others, at most all of them
    ratio: float | None = None
    main: str | None = None  # the task that ratio counts from

    def __post_init__(self) -> None:
        ways = [name for name in ("shares", "alpha", "ratio") if getattr(self, name) not in (None, {})]
        if len(ways) > 1:
            raise UserError(f"{_WHERE} has {' and '.join(ways)}; one way to mix is allowed: leave the others out")
        for name, wanted in (("alpha_end", "alpha"), ("main", "ratio"), ("ratio", "main")):
            if getattr(self, name) is not None and getattr(self, wanted) is None:
                raise UserError(f"{_WHERE}.{name} needs {_WHERE}.{wanted}; give it too")
        allowed = f"a number from 0 to {_MOST} is needed"
        check_fields(self, _WHERE, allowed, "alpha", "alpha_end", sound=lambda v: v is None or 0 <= v <= _MOST)
        allowed = f"a number above 0 and at most {_MOST} is needed"
        check_fields(self, _WHERE, allowed, "ratio", sound=lambda v: v is None or 0 < v <= _MOST)
        for task, share in self.shares.items():
            check_share(share, self.shares.values(), f"{_WHERE}.shares.{task}")

    def check(self, tasks: Collection[str]) -> None:
        """Raise ``UserError`` if a key names a task that is not in ``tasks``, or if ``shares`` lacks a task."""
        named = [*self.shares, *([self.main] if self.main is not None else [])]
        if unknown := [name for name in named if name not in tasks]:
            key = "shares" if self.shares else "main"
            raise UserError(f"{_WHERE}.{key} names {unknown[0]!r}, which is no task; {nearest(unknown[0], tasks)}")
        if self.shares and (lacking := [name for name in tasks if name not in self.shares]):
            raise UserError(f"{_WHERE}.shares lacks {', '.join(lacking)}; give every task a share")

    def passes(self, batches: Mapping[str, int], num_epochs: int) -> dict[str, tuple[float, ...]]:
        """Return the ``Bucket.passes`` of each task.

        An epoch has as many batches as all examples of all tasks need; with ``ratio``, as many as ``ratio`` says.

        Args:
          batches: task -> the number of batches that its examples need.
          num_epochs: the epochs of the run, over which ``alpha`` changes.
        """
        if self.shares:
            return {name: (value,) for name, value in passes_of(batches, self.shares).items()}
        if self.alpha is not None:
            end = self.alpha if self.alpha_end is None else self.alpha_end
            steps = [epoch / max(num_epochs - 1, 1) for epoch in range(num_epochs if end != self.alpha else 1)]
            alphas = [self.alpha + (end - self.alpha) * done for done in steps]
            every = [passes_of(batches, {name: n**alpha for name, n in batches.items()}) for alpha in alphas]
            return {name: tuple(one[name] for one in every) for name in batches}
        if self.ratio is not None and self.main is not None:
            others = sum(batches.values()) - batches[self.main]
            wanted = max(1, round(self.ratio * batches[self.main]))  # whole batches, so that main keeps all its batches
            share = min(1.0, wanted / others) if others else 1.0
            return {name: (1.0 if name == self.main else share,) for name in batches}
        return dict.fromkeys(batches, (1.0,))
