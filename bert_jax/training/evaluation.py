"""Evaluates a model on the held-out rows, and gathers the metrics of all parts.

Most metrics are sums computed on the devices; for metrics that only the host can compute, outputs are gathered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.records import Batch, Sum
from bert_jax.rows.lanes import LANE_STARTS
from bert_jax.rows.phases import Phase
from bert_jax.task import BatchTask, RowSource, Task, is_weight, summary_of
from bert_jax.training import lanes
from bert_jax.training.forward import Forward
from bert_jax.training.lanes import Memory
from bert_jax.training.mesh import unbox
from bert_jax.training.step import make_eval_step

Outputs = dict[str, np.ndarray]


class Evaluation:
    """Evaluates a model, without dropout, on the same held-out rows every time."""

    def __init__(
        self,
        task: Task,
        mesh: Mesh,
        phase: Phase,
        num_rows: int,
        between: Callable[[], None] = lambda: None,
        progress: Callable[[int, int], None] = lambda done, rows: None,
    ):
        """
        Args:
          between: called by all processes before every batch; it may raise to end the evaluation.
          progress: called after every batch with the rows that are done and all rows of the part.
        """
        self._task, self._mesh, self._phase, self._num_rows = task, mesh, phase, num_rows
        self._now = phase.kind  # the phase that is trained
        self._steps: dict[tuple[str, str], Any] = {}  # by kind of rows and phase
        self._between, self._progress = between, progress

    def run(self, params: Any, frozen: Any, now: str | None = None) -> dict[str, float]:
        """Return the metrics over all rows, as ``Task.evaluated`` names them.

        Sums are added up in float64 on the host and divided once. The metrics of ``Task.finish`` are included. If there
        are several held-out parts, each part's metrics are added under ``<metric>/<part>``. Each part is read by the
        task of its kind. A metric that only some parts have is a mean over these parts.

        ``now``: the phase that is trained, whose model reads the rows. By default, it is the phase of the rows.
        """
        self._now = now or self._phase.kind
        tasks = {part: self._task.of(kind) for part, kind in self._parts.items()}
        sums, of_host = {}, {}  # by held-out part
        for part in tasks:
            sums[part], outputs = self.read(part, params, frozen)
            of_host[part] = tasks[part].finish(part, outputs)
        metrics = _means(tasks.values(), functools.reduce(_add, sums.values()))
        if len(sums) == 1:
            return self._task.evaluated(metrics | next(iter(of_host.values())))
        for part in sums:
            of_part = _means([tasks[part]], sums[part]) | of_host[part]
            metrics |= {f"{name}/{part}": value for name, value in of_part.items()}
        for task in tasks.values():
            for name in sorted(set.intersection(*(set(of_host[part]) for part in tasks if tasks[part] is task))):
                metrics[name] = float(np.mean([one[name] for one in of_host.values() if name in one]))
        return self._task.evaluated(metrics)

    def metric_names(self) -> list[str]:
        """Return the names of the metrics of ``run``.

        The rows are read, but the model is replaced by outputs of zeros.
        """
        variables = jax.eval_shape(lambda key: unbox(self._task.init(key)), jax.random.key(0))
        shapes = (variables.params, variables.frozen)
        values: dict[str, float] = {}  # of metrics; no two are alike, since ``summary_of`` compares them

        def forward(kind: str) -> Callable[..., Any]:
            def blank(batch: Batch, *_: Any) -> Any:
                given = {**batch, **self._memory(kind)}
                (sums, outputs), _ = jax.eval_shape(self._step(kind), *shapes, given)
                found = {name: Sum(values.setdefault(name, 0.01 * len(values)), 1.0) for name in sums}
                return found, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), outputs)

            return blank

        other = Evaluation(self._task, self._mesh, self._phase, self._num_rows)
        other._forward = forward  # type: ignore[method-assign]
        return list(other.run(*shapes))

    @functools.cached_property
    def _parts(self) -> dict[str, str]:
        """The held-out parts, each with the kind of its rows."""
        return self._task.heldout(self._phase.kind)

    def _kind_of(self, part: str) -> str:
        """Return the kind of the rows of a part. A part that is not held out, such as test, has the phase's kind."""
        return self._parts.get(part, self._phase.kind)

    def _step(self, kind: str) -> Any:
        if (key := (kind, self._now)) not in self._steps:
            self._steps[key] = jax.jit(make_eval_step(self._task.reader(*key)))
        return self._steps[key]

    def _forward(self, kind: str) -> Callable[..., Any]:
        """Return the function of a batch, ``params`` and ``frozen`` that runs the eval step on rows of ``kind``.

        Its memory is empty at first.
        """
        return Forward(self._step(kind), self._mesh, memory=self._memory(kind))

    def _memory(self, kind: str) -> Memory:
        """Return the shapes of the memory with which rows of ``kind`` are read; {} if the rows are in no lanes."""
        memory = self._task.reader(kind, self._now).memory if LANE_STARTS in self._task.batch_specs[kind] else {}
        return lanes.shapes(memory, self._phase.batch_size)

    def read(self, part: str, params: Any, frozen: Any) -> tuple[dict[str, Sum], Outputs]:
        """Return the metric sums over the rows of a part, and the part's ``gathered_outputs``, on every host.

        The outputs are in the order of the rows.
        """
        totals: dict[str, Sum] = {}
        gathered: list[Outputs] = []
        done, forward = 0, self._forward(self._kind_of(part))
        for batch, num_real in self._batches(part):
            self._between()
            sums, outputs = forward(batch, params, frozen)
            totals = _add(totals, {name: Sum(float(one.value), float(one.count)) for name, one in sums.items()})
            gathered.append({name: value[:num_real] for name, value in outputs.items()})
            done += num_real
            self._progress(done, min(self._num_rows, self._source(part).rows_per_epoch))
        return totals, {name: np.concatenate([outputs[name] for outputs in gathered]) for name in gathered[0]}

    def _source(self, part: str) -> RowSource:
        return self._task.source("eval", self._kind_of(part), 0, part).for_batches(self._phase.batch_size)

    def _batches(self, part: str) -> Iterator[tuple[Batch, int]]:
        """Yield the first held-out rows of a part as (batch, number of real rows in it).

        Rows that only fill up the last batch have weight 0.
        """
        phase, source = self._phase, self._source(part)
        total = min(self._num_rows, source.rows_per_epoch)
        for start in range(0, total, phase.batch_size):
            indices = np.arange(start, start + phase.batch_size)
            batch = source.rows(np.zeros_like(indices), np.minimum(indices, total - 1))
            padding = indices >= total
            for name, value in batch.items():
                if is_weight(name):
                    value[padding] = 0
            yield batch, int((~padding).sum())


def _means(tasks: Iterable[BatchTask], sums: dict[str, Sum]) -> dict[str, float]:
    return {name: value for name, value in summary_of(tasks, sums).items() if name != "tokens"}


def _add(a: Mapping[str, Sum], b: Mapping[str, Sum]) -> dict[str, Sum]:
    """Return the sums over two sets of rows, by name, from the sums over each set, which may lack some."""
    zero = Sum(0.0, 0.0)
    return {
        name: Sum(*(x + y for x, y in zip(a.get(name, zero), b.get(name, zero), strict=True))) for name in {**a, **b}
    }
