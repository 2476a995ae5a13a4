"""Machines by name (``v5e:16x16``, ``cpu:8``, ``h200:8``): their devices, and the peak rates of one device (``chip``).

Programs can be compiled for a machine that is not present.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

import jax

from bert_jax.configuration import nearest
from bert_jax.errors import UserError
from bert_jax.planning import peak_rates
from bert_jax.planning.chips import CHIPS, Chip
from bert_jax.planning.gpu_targets import TARGETS
from bert_jax.program import INSTALL, warn
from bert_jax.training.malloc import host_bytes

# Slices that can be ordered. Sources: docs.cloud.google.com/tpu/docs/v5e, /v5p, /v6e, "Configurations", which name the
# common slices; for v4 /types-topologies: shapes A x B x C with A <= B <= C, each up to 4 or a multiple of 4.
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")
SHAPES = {
    "v4": (*_CUBES, "4x4x16", "8x8x12", "12x16x16"),
    "v5e": _FLAT,
    "v5p": (*_CUBES, "8x8x12", "16x16x16", "16x16x24"),
    "v6e": _FLAT,
}
_GPUS_OF_A_HOST = 8


@dataclasses.dataclass(frozen=True)
class Topology:
    """A machine, with the ``name`` that the user gave.

    ``shape`` is the torus of a TPU slice, or (number of devices,).
    """

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def num_devices(self) -> int:
        return math.prod(self.shape)

    @property
    def platform(self) -> str:
        return CHIPS[self.kind].platform if self.kind in CHIPS else "cpu"

    @property
    def is_one_host(self) -> bool:
        """Return whether one host has all devices."""
        return self.num_devices <= self.devices_of_a_host

    @property
    def devices_of_a_host(self) -> int:
        """Return the most devices that one host has: 4 for v4 and v5p, all for a CPU, 8 for every other kind."""
        if self.platform == "cpu":
            return self.num_devices
        return 4 if self.kind in ("v4", "v5p") else _GPUS_OF_A_HOST

    def next_larger(self) -> str | None:
        """Return the name of the smallest topology of the same kind with more devices; None if there is none."""
        if self.kind not in SHAPES:
            return f"{self.kind}:{2 * self.num_devices}" if self.num_devices < 5000 else None
        same_kind = (parse(f"{self.kind}:{shape}") for shape in SHAPES[self.kind])
        larger = [other for other in same_kind if other.num_devices > self.num_devices]
        return min(larger, key=lambda other: other.num_devices).name if larger else None


def parse(name: str) -> Topology:
    """Return the topology with the name ``KIND:SHAPE``.

    Raises:
      UserError: there is no such kind or shape; the message lists the known kinds and shapes.
    """
    kind, _, shape = name.partition(":")
    if kind in SHAPES:
        if shape not in SHAPES[kind]:
            comes = ", ".join(f"{kind}:{s}" for s in SHAPES[kind])
            raise UserError(f"unknown topology {name!r}; {kind} comes as {comes}")
        return Topology(name, kind, tuple(int(n) for n in shape.split("x")))
    if kind == "cpu" or kind in CHIPS:
        if not re.fullmatch(r"[1-9][0-9]{0,3}", shape):
            raise UserError(f"unknown topology {name!r}; write {kind}:N with the number of devices, such as {kind}:8")
        return Topology(name, kind, (int(shape),))
    raise UserError(
        f"unknown topology {name!r}; {nearest(kind, [*CHIPS, 'cpu'])}; a topology is KIND:SHAPE: "
        + "; ".join(f"{k}: {', '.join(shapes)}" for k, shapes in SHAPES.items())
        + f"; {', '.join(k for k in CHIPS if k not in SHAPES)} and cpu: a number of devices, such as cpu:8"
    )


_MEASUREMENTS = 3  # of each rate of a CPU, of which the best counts: others may use the machine for a moment


def devices(topology: Topology) -> list[Any]:
    """Return devices to compile for, in the same order as in a run on the real devices.

    Call this before any other use of jax, because a process keeps the number of CPU devices that it had at first.

    Raises:
      UserError: the compiler for these devices is not installed, or was set up for other devices.
    """
    return {"tpu": _tpu, "gpu": _gpu, "cpu": _cpu}[topology.platform](topology)


def chip(topology: Topology) -> Chip:
    """Return the peak rates of one device. A CPU's rates are measured now, and divided among its devices."""
    if topology.platform != "cpu":
        return CHIPS[topology.kind]
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        warn(
            f"this machine is busy (load {load:.1f} on {cores} cores): its peaks may be measured too low, and then the "
            "prediction is no lower bound; plan again when it is idle"
        )
    device, count = jax.devices("cpu")[0], topology.num_devices
    share = len(jax.local_devices(backend="cpu")) / count
    products = {
        name: share * max(peak_rates.peak_flops(device, dtype) for _ in range(_MEASUREMENTS))
        for name, dtype in (("bf16", "bfloat16"), ("f32", "float32"))
    }
    bandwidth = max(peak_rates.memory_bandwidth(device) for _ in range(_MEASUREMENTS)) / count
    elementwise = zip(*(peak_rates.elementwise_rates(device) for _ in range(_MEASUREMENTS)), strict=True)
    operations, functions = (max(rates) / count for rates in elementwise)
    memory = host_bytes() / count
    # Devices of one machine communicate through its memory: each byte that a device receives is read and written once.
    links = (bandwidth / 2, 1, bandwidth, 1)
    return Chip("cpu", "cpu", products, operations, memory, bandwidth, *links, transcendentals=functions)


def _tpu(topology: Topology) -> list[Any]:
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"{topology.name} is compiled by libtpu, which is not installed (no TPU is needed); install it with: "
            f"{INSTALL['tpu']}, or plan for cpu:8"
        )
    # libtpu would ask the metadata server of a TPU VM which chips there are, and lock them.
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": f"{'v5litepod' if topology.kind == 'v5e' else topology.kind}-{topology.num_devices}",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }.items():
        os.environ.setdefault(name, value)
    _use_cpu()
    from jax.experimental import topologies

    host = (1,) * 3 if topology.num_devices == 1 else (2, 2, 1)
    return list(
        topologies.get_topology_desc(
            topology.name,
            platform="tpu",
            chip_config_name="megacore" if topology.kind == "v4" else "default",  # megacore: two cores are a device
            chips_per_host_bounds=host,
        ).devices
    )


def has_gpu_compiler() -> bool:
    """Return whether jax's CUDA plugin, which compiles for GPUs, is installed."""
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


def _gpu(topology: Topology) -> list[Any]:
    hosts = -(-topology.num_devices // _GPUS_OF_A_HOST)
    if hosts > 1 and topology.num_devices % _GPUS_OF_A_HOST:
        raise UserError(f"{topology.name}: several hosts have {_GPUS_OF_A_HOST} GPUs each; give a multiple of that")
    if topology.kind not in TARGETS:
        raise UserError(
            f"{topology.name}: the compiler knows the GPUs {', '.join(TARGETS)} alone; plan for one of them"
        )
    if not has_gpu_compiler():
        raise UserError(
            f"{topology.name} is compiled by jax's CUDA plugin, which is not installed (no GPU is needed); install it "
            f"with: {INSTALL['plan-gpu']}, or plan for a TPU or cpu:8"
        )
    _use_cpu()
    from jax.experimental import topologies

    shape, target = f"1x{hosts}x{topology.num_devices // hosts}", TARGETS[topology.kind]
    return list(topologies.get_topology_desc("", platform="cuda", topology=shape, target_config=target).devices)


def _cpu(topology: Topology) -> list[Any]:
    _use_cpu()
    with contextlib.suppress(RuntimeError):  # jax has its devices already; they may be enough
        jax.config.update("jax_num_cpu_devices", topology.num_devices)
    found = jax.devices("cpu")
    if len(found) < topology.num_devices:
        raise UserError(
            f"{topology.name} needs {topology.num_devices} CPU devices and jax was started with {len(found)}; start "
            f"with XLA_FLAGS=--xla_force_host_platform_device_count={topology.num_devices}"
        )
    return list(found[: topology.num_devices])


def _use_cpu() -> None:
    """Use the CPU backend, which array shapes and keys need, so that a TPU or GPU of this machine stays free."""
    if not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")
