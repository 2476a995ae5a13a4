"""The communication of a compiled program: collective operations, their bytes, mesh axes and duration."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from bert_jax.planning.chips import HOP_SECONDS, Chip
from bert_jax.planning.hlo import Instruction, whole_numbers

_STEP = "async_collective_fusion"  # prefix of a TPU's fusions that compute while a collective, started before, goes on
_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation, or all operations of one kind over the same mesh axes in a step.

    Attributes:
      axes: the names of the mesh axes along which the members of a group differ. If a group has only some of the
        devices along these axes, the first name begins with "part of", as in ("part of data",).
      count: the number of operations.
      bytes: the size of the whole arrays. For an all-gather it is the result on a device, for an all-to-all the arrays
        of all devices together, for other kinds the operand on a device.
      seconds: the duration by the bandwidth of the links, but at least the latency of the hops.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Fabric:
    """A mesh of devices with the network that connects them.

    Attributes:
      names, shape: names and sizes of the mesh axes; partition numbers count through the mesh, the last axis fastest.
      places: [devices, 1 + dimensions] for each partition, its slice and then its coordinates in the torus. If None,
        every device reaches every other equally fast.
      extent: the length of the torus in each dimension.
      per_host: number of devices of one host, used if ``places`` is None; 0 if all are on one host.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    chip: Chip
    places: np.ndarray | None = None
    extent: tuple[int, ...] = ()
    per_host: int = 0

    @classmethod
    def of(cls, mesh: Any, chip: Chip, per_host: int = 0) -> Fabric:
        """Return the ``Fabric`` of a ``jax.sharding.Mesh`` of ``chip`` devices."""
        devices = list(mesh.devices.flat)
        names, shape = tuple(mesh.axis_names), tuple(mesh.devices.shape)
        if not all(hasattr(device, "coords") for device in devices):
            return cls(names, shape, chip, per_host=per_host)
        places = np.array([[getattr(d, "slice_index", 0) or 0, *d.coords] for d in devices])
        extent = tuple(int(n) + 1 for n in places[:, 1:].max(axis=0))
        return cls(names, shape, chip, places, extent)

    def axes(self, group: list[int], whole: bool = True) -> tuple[str, ...]:
        """Return the axes along which a group's members differ (``Collective.axes``).

        ``whole``: whether a group that has only some of the devices along these axes is called "part of" them.
        """
        where = np.stack(np.unravel_index(group, self.shape), axis=-1)  # [members, axes]
        varies = (where != where[:1]).any(axis=0)
        names = [name for name, v in zip(self.names, varies, strict=True) if v]
        if whole and math.prod(n for n, v in zip(self.shape, varies, strict=True) if v) != len(group):
            names[0] = f"part of {names[0]}"
        return tuple(names)

    def rates(self, group: list[int]) -> tuple[float, int]:
        """Return (bytes per second that reach one member from the others, number of hops to the farthest member).

        Members on one host share the network traffic: the sum or the copy of their data crosses the network once.
        """
        chip = self.chip
        if self.places is None:
            hosts = len({member // self.per_host for member in group}) if self.per_host else 1
            network = chip.network_bandwidth * len(group) / hosts
            return (min(network, chip.axis_bandwidth) if hosts > 1 else chip.axis_bandwidth), 1
        places = self.places[group]
        if len(np.unique(places[:, 0])) > 1:
            return chip.network_bandwidth, 1
        bandwidth, hops = 0.0, 0
        for axis, whole in enumerate(self.extent, start=1):
            length = len(np.unique(places[:, axis]))
            if length > 1:
                ring = length == whole and self._closes(whole)
                bandwidth += chip.axis_bandwidth if ring else chip.link_bandwidth
                hops += length // 2 if ring else length - 1
        return max(bandwidth, chip.link_bandwidth), max(hops, 1)

    def _closes(self, length: int) -> bool:
        """Return whether the links along a whole torus axis of ``length`` make a ring.

        In three dimensions optical switches close the ring, and only slices of whole 4 x 4 x 4 cubes have these
        switches (jax-ml/scaling-book, tpus.md, "TPU Networking").
        """
        axes = self.extent if self.chip.dimensions == 3 else (length,)
        return all(n % self.chip.torus == 0 for n in axes)


def collectives_in(instruction: Instruction) -> list[Instruction]:
    """Return the collectives that an instruction consists of: itself, or the collectives in its fusion or start.

    If an instruction only continues a collective that another instruction started, the list is empty.
    """
    if instruction.opcode.removesuffix("-start") in _KINDS:
        return [instruction]
    called = instruction.called if instruction.opcode in ("fusion", "async-start") else None
    if called is None or called.name.startswith(_STEP):
        return []
    return [collective for inner in called.instructions for collective in collectives_in(inner)]


def start_of(instruction: Instruction) -> Instruction:
    """Return the instruction that starts the asynchronous collective whose buffer is ``instruction``.

    A TPU passes the buffers of a collective from its start through steps and loops to its end. The first operand of a
    step is the first buffer.
    """
    while instruction.opcode == "get-tuple-element":
        source = instruction.operands[0]
        if source.opcode == "while" and source.operands[0].opcode == "tuple":
            instruction = source.operands[0].operands[int(instruction.attribute("index"))]
        elif source.opcode == "fusion" and source.called and source.called.name.startswith(_STEP):
            instruction = source.operands[0]
        else:
            return source
    return instruction


def collective_of(instruction: Instruction, on: Fabric) -> Collective:
    """Return the ``Collective`` of an instruction: its axes, bytes and duration on the mesh ``on``."""
    kind = instruction.opcode.removesuffix("-start")
    if instruction.computation.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"  # a TPU fuses an all-reduce with the slice of its result
    sent = sum(array.bytes for operand in instruction.operands for array in operand.arrays)
    group = members(instruction, math.prod(on.shape))
    whole = sent * len(group) if kind in ("all-gather", "all-to-all") else sent
    part = 1 / len(group) if on.places is None else 0.25
    seconds = duration(kind, whole, *on.rates(group), len(group), part)
    return Collective(kind, on.axes(group, kind != "collective-permute"), 1, whole, seconds)


def duration(kind: str, whole: int, bandwidth: float, hops: int, members: int, all_to_all: float = 0.25) -> float:
    """Return the seconds of a collective (jax-ml/scaling-book: sharding.md; gpus.md for switches).

    An all-gather or reduce-scatter of V bytes takes V / W, an all-reduce 2 V / W, an all-to-all V / 4 W on a torus and
    V / (members W) behind a switch; no collective takes less than its hops. W is ``bandwidth``, the total rate at which
    a device receives.
    """
    if members <= 1:
        return 0.0
    if kind == "collective-permute":
        return max(HOP_SECONDS, whole / bandwidth)
    times = {"all-reduce": 2.0, "all-to-all": all_to_all}.get(kind, 1.0)
    share = (members - 1) / members
    return max(HOP_SECONDS * hops * max(times, 1.0), times * share * whole / bandwidth)


def members(instruction: Instruction, devices: int) -> list[int]:
    """Return the members of the first group of a collective, or the first pair of a permutation.

    Groups may be written as ``{{0,1},{2,3}}``, ``[2,2]<=[2,2]T(1,0)`` or ``mesh['a'=2,'b'=2] {'a'}``.
    """
    text = instruction.attribute("source_target_pairs") or instruction.attribute("replica_groups")
    if text.startswith("["):
        return [int(n) for n in _iota(text)[: whole_numbers(text[: text.index("]")])[-1]]]
    if text.startswith("mesh["):
        return _of_mesh(instruction.attributes)
    group = re.search(r"\{([\d,\s]+)\}", text)
    return whole_numbers(group[1]) if group else list(range(devices))


def _of_mesh(attributes: str) -> list[int]:
    match = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^ ]*)\))?\s*(?:\{([^}]*)\})?", attributes)
    assert match, attributes[:200]
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
    order = _iota(f"[{math.prod(sizes.values())}]<={match[2] or f'[{math.prod(sizes.values())}]'}")
    chosen = re.findall(r"'([^']+)'", match[3] or "")
    first = order.reshape([*sizes.values()])[tuple(slice(None) if name in chosen else 0 for name in sizes)]
    return [int(n) for n in first.reshape(-1)]


def _iota(text: str) -> np.ndarray:
    """Return, flattened, the array described by XLA's iota notation, such as ``[4]<=[2,2]T(1,0)``.

    The array counts 0, 1, ..., is reshaped to the shape after ``<=``, and is transposed by ``T``.
    """
    shape = whole_numbers(re.search(r"<=\[([\d,]+)\]", text)[1])  # type: ignore[index]
    order = re.search(r"T\(([\d,]+)\)", text)
    counted = np.arange(math.prod(shape)).reshape(shape)
    return (counted.transpose(whole_numbers(order[1])) if order else counted).reshape(-1)


def total_collectives(collectives: Iterable[tuple[Collective, float]]) -> list[Collective]:
    """Return the totals by kind and mesh axes, the largest first.

    ``collectives`` pairs each collective with the number of times it runs in a step. Groups of one device, which differ
    along no axis, are left out, because they send nothing.
    """
    totals: dict[tuple[str, tuple[str, ...]], np.ndarray] = {}
    for one, times in collectives:
        if one.axes:
            key = (one.kind, one.axes)
            totals[key] = totals.get(key, 0.0) + times * np.array([1.0, one.bytes, one.seconds])
    rows = [
        Collective(*key, round(count), round(size), float(seconds)) for key, (count, size, seconds) in totals.items()
    ]
    return sorted(rows, key=lambda row: -row.bytes)
