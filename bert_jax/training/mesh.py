"""The device mesh, and the table that says how every array of the program is placed on it.

Parameters and activations carry logical axis names, which the table maps to mesh axes. This is the only file of
``training`` that uses flax; the other files see plain trees.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

import jax
import numpy as np
from flax import linen as nn
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.models.placement import placement
from bert_jax.records import Batch, BatchSpec
from bert_jax.rows.share import Share

_AXES = ("data", "fsdp", "tensor")
ROWS = ("data", "fsdp")  # the axes over which the rows of a batch are split

# logical axis -> mesh axes; ``shardings`` says where another rule holds (weight_update="sharded").
# "embed" shards every matrix once over fsdp; "mlp", "heads" and "vocab" shard over tensor.
RULES: tuple[tuple[str, Any], ...] = (
    ("batch", ROWS),
    ("length", None),
    ("embed", "fsdp"),
    ("mlp", "tensor"),
    ("heads", "tensor"),
    ("head_dim", None),
    ("vocab", "tensor"),
    ("gates", None),
    ("layers", None),
    ("matrices", _AXES),  # of all layers, which an optimizer turns
)
_ACTIVATION_RULES = tuple((name, None if name == "embed" else axes) for name, axes in RULES)
SPLIT = 128  # the smallest axis of a matrix that is split over ROWS

WeightUpdate = Literal["sharded", "replicated"]


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """The number of devices along each mesh axis; -1 (allowed once) takes all devices that are left.

    ``slices`` is for a job on several TPU slices, joined by the slower data-centre network, or on several hosts of
    devices without slices. The data axis is divided into this many parts, one on each slice; fsdp and tensor stay
    inside a slice.

    ``weight_update`` says whether the devices along ``data`` and ``fsdp`` together each keep and update a part of the
    float32 parameters and moments ("sharded"; see ``training.sharded_update``), so that it does not matter which of the
    two axes has the devices. With "replicated", devices along ``data`` each keep and update all, and devices along
    ``fsdp`` gather each matrix where the model reads it, as XLA's partitioner sees fit. If tensor is above 1, "sharded"
    means "replicated" too, because the partitioner aborts (jax 0.10.2) on a model under ``jax.shard_map`` over some
    axes.

    ``overlap`` is for TPUs: their compiler then starts sums of gradients while the model still computes. It is off by
    default because it is not known to be sound: on v6e such options gave NaN in another program (jax#38741).
    """

    data: int = -1  # devices that share the rows of a batch; -1: all that are left
    fsdp: int = 1  # devices that share rows and, if replicated, split each matrix
    tensor: int = 1  # devices that split each layer
    slices: int = 1  # TPU slices, or hosts, that data goes over
    weight_update: WeightUpdate = "sharded"  # sharded: each device along data and fsdp updates a part of the weights
    overlap: bool = False  # TPUs: gradients are summed while the model computes (bert_jax/training/README.md)


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """Return a mesh over ``devices`` (default: all).

    Raises:
      UserError: the product of the axes is not the number of devices, or ``overlap`` is set and they are no TPUs.
    """
    devices = jax.devices() if devices is None else devices
    if config.overlap and devices[0].platform != "tpu":
        raise UserError(
            f"config.mesh.overlap is True, which is for TPUs, and the devices are {devices[0].platform}; leave it out"
        )
    allowed = "at least 1 is needed, or -1 for what is left"
    check_fields(config, "config.mesh", allowed, *_AXES, sound=lambda size: size >= 1 or size == -1)
    check_fields(config, "config.mesh", "at least 1 is needed", "slices", sound=lambda number: number >= 1)
    sizes = [getattr(config, axis) for axis in _AXES]
    if sizes.count(-1) > 1:
        left = " and ".join(f"config.mesh.{axis}" for axis in _AXES if getattr(config, axis) == -1)
        raise UserError(f"{left} are -1; only one axis can take what is left")
    known = math.prod(size for size in sizes if size != -1)
    if len(devices) % known or (-1 not in sizes and known != len(devices)):
        raise UserError(
            f"mesh data={config.data}, fsdp={config.fsdp}, tensor={config.tensor} does not divide the {len(devices)} "
            f"devices there are; the product must be {len(devices)}, and -1 takes what is left"
        )
    shape = [len(devices) // known if size == -1 else size for size in sizes]
    return Mesh(_arrange(devices, shape, config.slices), _AXES)


def _arrange(devices: list[jax.Device], shape: list[int], slices: int) -> np.ndarray:
    """Return the devices as an array [data, fsdp, tensor] in which neighbours are also neighbours on the network."""
    if slices > 1:
        data, *inside = shape
        if data % slices:
            raise UserError(
                f"config.mesh.data is {data}, which {slices} slices do not divide; give a multiple of {slices}"
            )
        granules = {getattr(device, "slice_index", device.process_index) for device in devices}
        if len(granules) != slices:
            raise UserError(f"config.mesh.slices is {slices}; the devices are in {len(granules)} slices")
        by_process = not hasattr(devices[0], "slice_index")
        return mesh_utils.create_hybrid_device_mesh(
            [data // slices, *inside], [slices, 1, 1], devices, process_is_granule=by_process
        )
    if devices[0].platform == "tpu":
        try:
            return mesh_utils.create_device_mesh(shape, devices)
        except NotImplementedError:  # an axis takes a part of an axis of the torus, such as 2 of 4 x 4
            return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return np.asarray(devices).reshape(shape)


def check_batch(mesh: Mesh, batch_size: int, micro_batches: int, where: str) -> None:
    """Raise ``UserError`` unless every micro-batch splits evenly over the devices that share the batch axis."""
    shards = mesh.shape["data"] * mesh.shape["fsdp"] * micro_batches
    if batch_size % shards:
        lower, upper = batch_size - batch_size % shards, batch_size + -batch_size % shards
        nearest = f"{lower} or {upper}" if lower else str(upper)
        raise UserError(
            f"{where} = {batch_size} does not divide by data {mesh.shape['data']} x fsdp {mesh.shape['fsdp']} x "
            f"micro_batches {micro_batches} = {shards}; the nearest that does: {nearest}"
        )


def shardings(mesh: Mesh, boxed: Any, weight_update: WeightUpdate = "replicated") -> Any:
    """Return the sharding of each leaf of a tree. Leaves may be boxed with logical axes; other leaves are replicated.

    The leaves may be abstract. An axis whose size the mesh axis does not divide, such as a vocabulary of 30,522 over 4
    devices, is replicated instead. If ``weight_update`` is "sharded" and tensor is 1, each matrix is split over
    ``ROWS``, along its first axis of at least ``SPLIT`` that the number of devices divides; all other leaves are
    replicated. A tree without such a matrix is placed as with "replicated".
    """
    logical = nn.get_partition_spec(boxed)
    specs = nn.logical_to_mesh(logical, RULES)

    def place(leaf: Any, spec: PartitionSpec) -> NamedSharding:
        axes = (a if a is None or leaf.shape[i] % mesh.shape[a] == 0 else None for i, a in enumerate(spec))
        return NamedSharding(mesh, PartitionSpec(*axes))

    def split(path: tuple[Any, ...], leaf: Any, names: PartitionSpec) -> NamedSharding:
        fitting = (i for i, size in enumerate(leaf.shape) if size >= SPLIT and size % mesh.size == 0)
        axis = next(fitting, None) if _is_matrix(path, names) else None
        return NamedSharding(mesh, PartitionSpec(*(ROWS if i == axis else None for i in range(leaf.ndim))))

    if may_split(mesh, weight_update):
        placed = jax.tree_util.tree_map_with_path(split, unbox(boxed), logical)
        if any(ROWS in sharding.spec for sharding in jax.tree.leaves(placed)):
            return placed
    return jax.tree.map(place, unbox(boxed), specs)


def beside(params: Any, placed: Any, tree: Any) -> Any:
    """Return the sharding of each leaf of ``tree``, the state of an optimizer for ``params``, which lie as ``placed``.

    A leaf that has the shape of a parameter, and whose path ends with the parameter's path, lies as that parameter
    does. All other leaves are replicated.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    known = {(path, x.shape): place for (path, x), place in zip(leaves, jax.tree.leaves(placed), strict=True)}
    everywhere = replicated(jax.tree.leaves(placed)[0].mesh)

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        ends = (known.get((path[i:], leaf.shape)) for i in range(len(path)))
        return next((found for found in ends if found is not None), everywhere)

    return jax.tree_util.tree_map_with_path(place, tree)


def may_split(mesh: Mesh, weight_update: WeightUpdate) -> bool:
    """Return whether matrices are split over ``ROWS`` if the devices of ``mesh`` divide them."""
    return weight_update == "sharded" and mesh.shape["tensor"] == 1 and mesh.size > 1


def is_split(placed: Any) -> bool:
    """Return whether any leaf of a tree of arrays, or of shapes with shardings, is split over ``ROWS``."""
    return any(ROWS in leaf.sharding.spec for leaf in jax.tree.leaves(placed))


def _is_matrix(path: tuple[Any, ...], names: PartitionSpec) -> bool:
    """Return whether a leaf is a matrix that the model reads in the compute dtype.

    Biases and gains are not, even of several axes, nor the weights of a recurrent layer, which are read in float32.
    """
    last = str(path[-1].key) if path and isinstance(path[-1], jax.tree_util.DictKey) else ""
    return len(names) >= 2 and "gates" not in names and not last.endswith(("bias", "scale"))


def gathered(params: Any) -> Any:
    """Return ``params`` in which no array is split over ``ROWS``, for a program that reads them many times."""
    placed = jax.tree.map(lambda x: x.sharding, params)
    complete = jax.tree.map(_unsplit, placed)
    return params if placed == complete else jax.jit(_same, out_shardings=complete)(params)


def _same(tree: Any) -> Any:
    return tree


def _unsplit(sharding: NamedSharding) -> NamedSharding:
    axes = (None if axis == ROWS else axis for axis in sharding.spec)
    return NamedSharding(sharding.mesh, PartitionSpec(*axes))


def unbox(tree: Any) -> Any:
    """Return the tree without its logical axis names."""
    return nn.unbox(tree)


@dataclasses.dataclass(frozen=True)
class _Places:
    """A ``models.placement.Placement``: activations of a program for ``mesh`` lie as ``_ACTIVATION_RULES`` says."""

    mesh: Mesh

    def axes(self, axis: str | None) -> tuple[str, ...]:
        names = dict(_ACTIVATION_RULES)[axis] if axis else None
        return (names,) if isinstance(names, str) else names or ()

    def spec(self, *axes: str | None) -> PartitionSpec:
        manual = jax.sharding.get_abstract_mesh().manual_axes
        names = (tuple(name for name in self.axes(axis) if name not in manual) for axis in axes)
        return PartitionSpec(*(name or None for name in names))

    def __call__(self, x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
        context = jax.sharding.get_abstract_mesh()
        if not context.manual_axes:
            return nn.with_logical_constraint(x, axes, rules=_ACTIVATION_RULES, mesh=self.mesh)  # type: ignore[no-any-return]
        spec = self.spec(*axes)
        return jax.lax.with_sharding_constraint(x, NamedSharding(context, spec)) if any(spec) else x


@contextlib.contextmanager
def activations(mesh: Mesh) -> Iterator[None]:
    """Context manager: the logical constraints inside models refer to this mesh.

    Each constraint gets the mesh as an argument. Otherwise flax would not find a mesh that only ``with mesh`` has set,
    and the constraint would have no effect. (``jax.set_mesh`` refuses arrays that lie on fewer devices than the mesh,
    such as the state's step on its way to the host.)
    """
    token = placement.set(_Places(mesh))
    try:
        with mesh:  # makes jit trace functions again that were traced for another mesh
            yield
    finally:
        placement.reset(token)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding that splits rows over the data and fsdp axes."""
    return NamedSharding(mesh, PartitionSpec(ROWS))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def share_of(mesh: Mesh) -> Share:
    """Return the share of a batch that this process's devices hold.

    If the tensor axis spans several processes, these hold the same rows.
    """
    count = mesh.shape["data"] * mesh.shape["fsdp"]
    held = batch_sharding(mesh).addressable_devices_indices_map((count,))
    return Share(tuple(sorted({int(place[0].start or 0) for place in held.values() if place})), count)


def to_devices(batch: Batch, mesh: Mesh) -> Batch:
    """Return this process's rows of a batch as part of global arrays on the mesh."""
    sharding, share = batch_sharding(mesh), share_of(mesh)

    def place(value: np.ndarray) -> jax.Array:
        shape = (len(value) // len(share.parts) * share.count, *value.shape[1:])
        return jax.make_array_from_process_local_data(sharding, value, shape)

    return {name: place(value) for name, value in batch.items()}


def abstract_batch(spec: BatchSpec, num_rows: int, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes, dtypes and shardings of the arrays that ``to_devices`` makes of a global batch."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.ShapeDtypeStruct((num_rows, *feature.shape), feature.dtype, sharding=sharding)
        for name, feature in spec.items()
    }
