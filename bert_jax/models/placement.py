"""The mesh for which a program is traced: where activations lie on it, and functions that each device computes."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

import jax
from jax.sharding import Mesh, PartitionSpec


class Placement(Protocol):
    """The mesh for which a program is traced, and the table that places activations on it."""

    @property
    def mesh(self) -> Mesh: ...

    def axes(self, axis: str | None) -> tuple[str, ...]:
        """Return the mesh axes over which a logical axis of activations is divided."""

    def spec(self, *axes: str | None) -> PartitionSpec:
        """Return where an activation with these logical axes lies, without the mesh axes that are already manual."""

    def __call__(self, x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
        """Return ``x`` with a constraint on where it lies."""


# Set by training.mesh while it traces for several devices.
placement: ContextVar[Placement | None] = ContextVar("placement", default=None)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Return ``x`` [...] after telling the partitioner its logical axes. Without a mesh, return ``x`` unchanged."""
    place = placement.get()
    return x if place is None else place(x, axes)


def on_each_device(
    place: Placement, local: Callable[..., Any], arrays: tuple[Any, ...], inputs: tuple[Any, ...], outputs: Any
) -> Any:
    """Return ``local(*arrays)``, which each device computes from its part; no partitioner looks inside.

    Mesh axes that are manual already, because the whole step runs under ``jax.shard_map``, are left as they are.

    Args:
      inputs, outputs: how arrays and result lie, as ``jax.shard_map`` is told.
    """
    context = jax.sharding.get_abstract_mesh()
    free = frozenset(place.mesh.axis_names) - set(context.manual_axes)
    if not free:
        return local(*arrays)
    mesh = context if context.manual_axes else place.mesh
    return jax.shard_map(local, mesh=mesh, axis_names=free, in_specs=inputs, out_specs=outputs, check_vma=False)(
        *arrays
    )


def platform() -> str:
    """Return the platform of the mesh for which a program is traced, such as "gpu"; "" without a mesh."""
    place = placement.get()
    return "" if place is None else place.mesh.devices.flat[0].platform
