"""Runs a model forward alone, without gradients or dropout: batches split over the mesh, results on every host.

Evaluation, predictions, vectors and filled masks all use ``Forward``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bert_jax.records import Batch
from bert_jax.rows.example_rows import EncodedRows, padded_length
from bert_jax.training import lanes
from bert_jax.training import mesh as meshes
from bert_jax.training.lanes import Memory


class Forward:
    """Runs a jitted function of a model and a batch, with the rows of the batch split over a mesh.

    ``rows`` makes batches of encoded rows and pads each as ``padded_length`` says. A call takes a batch as it is: in
    evaluation and ``predict``, ``tasks.base`` pads all rows of a split to one length, a multiple of 8.

    If there is memory, a call adds it to the batch, and the function returns (results, new memory), which the next call
    adds.
    """

    def __init__(self, function: Callable[..., Any], mesh: Mesh, batch_size: int = 0, memory: Memory | None = None):
        """
        Args:
          function: a jitted function of variables of a model and a batch, which returns a tree of arrays.
          batch_size: the most rows of a batch of ``rows``, rounded up to a multiple of the devices that share rows.
          memory: the shapes of the arrays that a call hands on to the next call. If None, the function returns results
            alone.
        """
        self._memory = None if memory is None else lanes.empty(memory, mesh)
        self._function, self._mesh, self._share = function, mesh, meshes.share_of(mesh)
        self._batch_size = -(-batch_size // self._share.count) * self._share.count

    def __call__(self, batch: Batch, *variables: Any) -> Any:
        """Return what the function returns for a batch, whose rows every process has, as arrays of numpy."""
        mine = self._share.rows(len(next(iter(batch.values()))))
        with meshes.activations(self._mesh):
            placed = meshes.to_devices({name: value[mine] for name, value in batch.items()}, self._mesh)
            if self._memory is None:
                return _to_host(self._function(*variables, placed))
            found, self._memory = self._function(*variables, {**placed, **self._memory})
            return _to_host(found)

    def rows(
        self, rows: EncodedRows, max_length: int, *variables: Any
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yield (numbers of rows, what the function returns for them), the shortest rows first.

        The rows of a batch have similar lengths and are padded as ``padded_length`` says, and small batches are filled
        up with copies of their last row, so that only a few shapes are compiled.
        """
        order = np.argsort(rows.lengths, kind="stable")
        for start in range(0, len(order), self._batch_size):
            chosen = order[start : start + self._batch_size]
            number = self._share.count
            while number < len(chosen):
                number *= 2
            filled = chosen[np.minimum(np.arange(min(number, self._batch_size)), len(chosen) - 1)]
            length = padded_length(int(rows.lengths[chosen].max()), max_length)
            outputs = self(rows.take(filled, length), *variables)
            yield chosen, {name: value[: len(chosen)] for name, value in outputs.items()}


def _to_host(tree: Any) -> Any:
    """Return a tree of global arrays as numpy arrays, complete on every host."""

    def gathered(value: jax.Array) -> Any:
        here = value.is_fully_addressable or value.is_fully_replicated
        return value if here else multihost_utils.process_allgather(value, tiled=True)

    return jax.device_get(jax.tree.map(gathered, tree))
