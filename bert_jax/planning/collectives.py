"""The communication of a compiled program: collective operations, their bytes, mesh axes and duration."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.planning.hlo import Computation, Instruction, Module
from bert_jax.training.chips import HOP_SECONDS, Chip

_STEP = "async_collective_fusion"  # prefix of a TPU's fusions that compute while a collective, started before, goes on
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
Groups = np.ndarray  # [groups, members] of partition numbers


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation, or all those of one kind over the same mesh axes in a step.

    Attributes:
      axes: the names of the mesh axes along which the members of a group differ; ("?",) if the groups do not follow
        axes.
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
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    chip: Chip
    places: np.ndarray | None = None
    extent: tuple[int, ...] = ()
    per_host: int = 0  # number of devices of one host, used if ``places`` is None; 0 if all are on one host

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

    def axes(self, groups: Groups, whole: bool = True) -> tuple[str, ...]:
        """Return the axes along which members of a group differ; ("?",) if ``whole`` and a group lacks some members."""
        where = np.stack(np.unravel_index(groups, self.shape), axis=-1)  # [G, M, axes]
        varies = (where != where[:, :1]).any(axis=(0, 1))
        full = math.prod(n for n, v in zip(self.shape, varies, strict=True) if v)
        if whole and full != groups.shape[1]:
            return ("?",)
        return tuple(name for name, v in zip(self.names, varies, strict=True) if v)

    def rates(self, group: np.ndarray) -> tuple[float, int]:
        """Return (bytes per second that reach one member from the others, number of hops to the farthest member).

        Members on one host share the network traffic: the sum or the copy of their data crosses the network once.
        """
        if self.places is None:
            hosts = 1 if not self.per_host else len(np.unique(group // self.per_host))
            network = self.chip.network_bandwidth * len(group) / hosts
            return (min(network, self.chip.axis_bandwidth) if hosts > 1 else self.chip.axis_bandwidth), 1
        places = self.places[group]
        if len(np.unique(places[:, 0])) > 1:
            return self.chip.network_bandwidth, 1
        bandwidth, hops = 0.0, 0
        for axis, whole in enumerate(self.extent, start=1):
            length = len(np.unique(places[:, axis]))
            if length > 1:
                ring = length == whole and self._closes(whole)
                bandwidth += self.chip.axis_bandwidth if ring else self.chip.link_bandwidth
                hops += length // 2 if ring else length - 1
        return max(bandwidth, self.chip.link_bandwidth), max(hops, 1)

    def _closes(self, length: int) -> bool:
        """Return whether the links along a whole torus axis of ``length`` make a ring.

        In three dimensions optical switches close the ring, and only slices of whole 4 x 4 x 4 cubes have these
        switches (jax-ml/scaling-book, tpus.md, "TPU Networking").
        """
        axes = self.extent if self.chip.dimensions == 3 else (length,)
        return all(n % self.chip.torus == 0 for n in axes)


def within(module: Module, computation: Computation, instruction: Instruction) -> list[tuple[Computation, Instruction]]:
    """Return the collectives that an instruction consists of: itself, or those in its fusion or asynchronous start.

    A step of a collective that another instruction starts has none of its own.
    """
    if instruction.opcode.removesuffix("-start") in KINDS:
        return [(computation, instruction)]
    callee = module.callee(instruction) if instruction.opcode in ("fusion", "async-start") else None
    if callee is None or callee.name.startswith(_STEP):
        return []
    return [collective for inner in callee.instructions for collective in within(module, callee, inner)]


def start_of(computation: Computation, name: str) -> str:
    """Return the name of the instruction that starts the asynchronous collective whose buffer is ``name``.

    A TPU passes the buffers of a collective from its start through steps and loops to its end. The first operand of a
    step is the first buffer.
    """
    known = computation.by_name
    while (instruction := known.get(name)) and instruction.opcode == "get-tuple-element":
        source = known[instruction.operands[0]]
        if source.opcode == "while" and known[source.operands[0]].opcode == "tuple":
            name = known[source.operands[0]].operands[int(instruction.attribute("index"))]
        elif source.opcode == "fusion" and source.computation("calls").startswith(_STEP):
            name = source.operands[0]
        else:
            return source.name
    return name


def collective_of(computation: Computation, instruction: Instruction, on: Fabric) -> Collective:
    """Return the ``Collective`` of an instruction: its axes, bytes and duration on the mesh ``on``."""
    kind = instruction.opcode.removesuffix("-start")
    if computation.name.startswith("all-reduce-scatter"):  # a TPU fuses an all-reduce with the slice of its result
        kind = "reduce-scatter"
    sent = sum(a.bytes for name in instruction.operands for a in computation.arrays_of(name))
    groups = replica_groups(instruction, math.prod(on.shape))
    size = groups.shape[1]
    whole = sent * size if kind in ("all-gather", "all-to-all") else sent
    bandwidth, hops = on.rates(groups[0])
    axes = on.axes(groups, kind != "collective-permute")
    part = 1 / size if on.places is None else 0.25
    return Collective(kind, axes, 1, whole, duration(kind, whole, bandwidth, hops, size, part))


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


def replica_groups(instruction: Instruction, devices: int) -> Groups:
    """Return the groups of an instruction, or the (source, target) pairs of a permutation.

    The groups may be written as ``{{0,1},{2,3}}``, ``[2,2]<=[2,2]T(1,0)`` or ``mesh['a'=2,'b'=2] {'a'}``.
    """
    text = instruction.attribute("source_target_pairs") or instruction.attribute("replica_groups")
    if text.startswith("["):
        return _iota(text).reshape(_numbers(text[: text.index("]")]))
    if text.startswith("mesh["):
        return _of_mesh(instruction.attributes)
    groups = [_numbers(group) for group in re.findall(r"\{([\d,\s]+)\}", text)]
    return np.array(groups) if groups else np.arange(devices)[None, :]


def _of_mesh(attributes: str) -> Groups:
    match = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^ ]*)\))?\s*(?:\{([^}]*)\})?", attributes)
    assert match, attributes[:200]
    names, sizes = re.findall(r"'([^']+)'=", match[1]), [int(n) for n in re.findall(r"'=(\d+)", match[1])]
    order = _iota(f"[{math.prod(sizes)}]<={match[2]}") if match[2] else np.arange(math.prod(sizes))
    chosen = [names.index(name) for name in re.findall(r"'([^']+)'", match[3] or "")]
    rest = [axis for axis in range(len(sizes)) if axis not in chosen]
    members = math.prod(sizes[axis] for axis in chosen)
    return order.reshape(sizes).transpose(*rest, *chosen).reshape(-1, members)


def _iota(text: str) -> np.ndarray:
    """Return, flattened, the array described by XLA's iota notation, such as ``[4]<=[2,2]T(1,0)``.

    The array counts 0, 1, ..., is reshaped to the shape after ``<=``, and is transposed by ``T``.
    """
    shape = _numbers(re.search(r"<=\[([\d,]+)\]", text)[1])  # type: ignore[index]
    order = re.search(r"T\(([\d,]+)\)", text)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return (numbers.transpose(_numbers(order[1])) if order else numbers).reshape(-1)


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def table(collectives: Sequence[tuple[Collective, float]]) -> list[Collective]:
    """Return the totals by kind and mesh axes, those with the most bytes first.

    ``collectives`` pairs each collective with the number of times it runs in a step. Groups of one device, which differ
    along no axis, are left out, because they send nothing.
    """
    key = lambda entry: (entry[0].kind, entry[0].axes)  # noqa: E731
    rows = []
    for (kind, axes), group in itertools.groupby(sorted(collectives, key=key), key):
        if axes:
            entries = list(group)
            count, size = round(sum(t for _, t in entries)), round(sum(c.bytes * t for c, t in entries))
            rows.append(Collective(kind, axes, count, size, sum(c.seconds * t for c, t in entries)))
    return sorted(rows, key=lambda row: -row.bytes)
