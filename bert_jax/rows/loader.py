"""Makes batches of rows, through Grain. The only state is the step: element k of the dataset is the batch of step k.

Each host makes its own share of every batch. The rows depend only on the step and the row's index in the batch. So the
global batches are the same for every number of hosts, workers and threads, and a run may be resumed with other numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import cloudpickle
import grain
import numpy as np
from absl import flags

from bert_jax.cluster import signals
from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.records import BatchSpec
from bert_jax.rows.phases import Phases
from bert_jax.rows.share import WHOLE, Share
from bert_jax.task import RowSource, Step

Batch = dict[str, np.ndarray]
Source = Callable[[Literal["train", "eval"], str, int], RowSource]  # Task.source: split, kind, phase


@dataclasses.dataclass(frozen=True)
class LoaderConfig:
    """The settings of the loader. They affect its speed, never the batches."""

    num_workers: int = 0  # processes that make batches; 0: a thread of this process makes them
    prefetch_batches: int = 4  # batches that each worker makes ahead

    def __post_init__(self) -> None:
        # a larger value is a typing error, and would only use up memory
        check_fields(self, "config.loader", "0 to 256 are allowed", "num_workers", sound=lambda n: 0 <= n <= 256)
        check_fields(
            self, "config.loader", "1 to 4,096 are allowed", "prefetch_batches", sound=lambda n: 1 <= n <= 4096
        )


class Batches:
    """A Grain data source: random access to every step, with this host's share of its batch."""

    def __init__(self, sources: Mapping[int, RowSource], phases: Phases, share: Share):
        """``sources``: the row source of each phase, by the phase's index."""
        sizes = [phase.batch_size for phase in phases.phases]
        self._sources = {index: source.for_batches(sizes[index]) for index, source in sources.items()}
        self._phases, self._share = phases, share
        self._prepared = (-1, -1)

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore the state in a worker process, and let the worker process exit if its parent is killed."""
        vars(self).update(state)
        signals.end_with_parent()

    def __len__(self) -> int:
        return self._phases.num_steps

    def __getitem__(self, number: int) -> tuple[Step, Batch]:
        step = self.step(number)
        source = self._sources[step.phase]
        self._prepare_next_epoch(source, number, step)
        mine = self._share.rows(len(step.rows))
        return step, source.rows(step.epochs[mine], step.rows[mine])

    def step(self, number: int) -> Step:
        """Return the rows that step ``number`` reads on all hosts."""
        phase = self._phases.locate(number)[0]
        source = self._sources[phase]
        return self._phases.rows_of(number, {phase: source.rows_per_epoch}, source.buckets)

    def _prepare_next_epoch(self, source: RowSource, number: int, step: Step) -> None:
        """Let the source plan the next epoch in advance, if the phase has a next epoch."""
        upcoming = int(step.epochs[-1]) + 1
        if (step.phase, upcoming) == self._prepared:
            return
        self._prepared = (step.phase, upcoming)
        last = number + self._phases.phases[step.phase].num_steps - 1 - self._phases.locate(number)[1]
        if int(self.step(last).epochs[-1]) >= upcoming:
            source.prepare(upcoming)


class Loader:
    """Iterates over the steps from ``start_step`` to the end of the run, each with this host's share of its batch.

    Raises the error that a worker process has raised, or another error if a worker dies.
    """

    def __init__(
        self,
        source: Source,
        phases: Phases,
        start_step: int,
        specs: Mapping[str, BatchSpec],
        config: LoaderConfig = LoaderConfig(),
        share: Share = WHOLE,
    ):
        """
        Args:
          source: ``Task.source``. With workers, the row sources that it returns are pickled.
          specs: ``Task.batch_specs``; the first batch of each kind is checked against them.
        """
        uneven = [phase for phase in phases.phases if phase.batch_size % share.count]
        if uneven:
            raise UserError(
                f"batch_size {uneven[0].batch_size} of phase {uneven[0].kind!r} does not divide into {share.count} "
                f"parts; choose a multiple of {share.count}"
            )
        first = phases.locate(start_step)[0] if start_step < phases.num_steps else len(phases.phases)
        sources = {
            index: source("train", phase.kind, index) for index, phase in enumerate(phases.phases) if index >= first
        }
        self._batches = Batches(sources, phases, share)
        self._phases, self._start_step, self._specs, self._config = phases, start_step, specs, config
        self.wait_seconds = 0.0  # time that the consumer has waited for batches

    def __iter__(self) -> Iterator[tuple[Step, Batch]]:
        checked: set[str] = set()
        batches = iter(self._dataset())
        try:
            for _ in range(self._start_step, self._phases.num_steps):
                begin = time.perf_counter()
                # The first few batches start the workers. Signals do not reach them: they end with this process.
                with signals.shield() if self._config.num_workers else contextlib.nullcontext():
                    step, batch = next(batches)
                self.wait_seconds += time.perf_counter() - begin
                if step.kind not in checked:
                    _check_batch(batch, self._specs[step.kind])
                    checked.add(step.kind)
                yield step, batch
        finally:
            batches.close()

    def _dataset(self) -> grain.IterDataset:
        dataset = grain.MapDataset.source(self._batches)[self._start_step :]
        workers, prefetch = self._config.num_workers, self._config.prefetch_batches
        if not workers:
            return dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=prefetch))
        # Python warns of the shared memory of unused batches, although it is cleaned up at the end.
        os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker")
        if not flags.FLAGS.is_parsed():  # Grain's workers read flags, which only absl.app parses
            flags.FLAGS.mark_as_parsed()
        for module in catalogue.own_modules():  # workers cannot import it
            cloudpickle.register_pickle_by_value(module)
        in_worker = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=prefetch)
        return dataset.to_iter_dataset(in_worker).mp_prefetch(options)


def _check_batch(batch: Mapping[str, np.ndarray], spec: BatchSpec) -> None:
    """Raise ``UserError``, naming every difference, unless ``batch`` has the names, shapes and dtypes of ``spec``."""
    actual = {name: (value.shape[1:], str(value.dtype)) for name, value in batch.items()}
    wanted = {name: (tuple(feature.shape), feature.dtype) for name, feature in spec.items()}
    problems = [
        f"{name} is {actual.get(name, 'absent')}, declared {wanted.get(name, 'nowhere')}"
        for name in {**wanted, **actual}
        if actual.get(name) != wanted.get(name)
    ]
    if problems:
        raise UserError(f"the rows of the source do not fit what the task declares: {'; '.join(problems)}")
