"""How the time of traced steps on a GPU splits: products, attention, other kernels, communication and idle time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

Kind = Literal["products", "attention", "communication", "other kernels"]

# Names of kernels, the first that fits: of cuDNN and of ours, of NCCL, of cuBLAS and of XLA.
_KERNELS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("attention", re.compile(r"attention|flash|fmha|sdpa", re.IGNORECASE)),
    ("communication", re.compile(r"nccl|nvshmem", re.IGNORECASE)),
    ("products", re.compile(r"gemm|gemv|nvjet|cutlass|cublas|xmma|splitk", re.IGNORECASE)),
)
_COLLECTIVE = re.compile(r"all-reduce|all-gather|reduce-scatter|all-to-all|collective")


def kind_of(kernel: str, hlo_op: str = "") -> Kind:
    """Return what a kernel computes. ``hlo_op``: the instruction that ran it, which is unknown in a command buffer."""
    found = next((kind for kind, names in _KERNELS if names.search(kernel)), None)
    return found or ("communication" if _COLLECTIVE.match(hlo_op) else "other kernels")


def of_trace(data: Any, num_steps: int) -> dict[str, float] | None:
    """Return the milliseconds of a step on the first GPU of a trace, by kind, and "idle"; None without a GPU.

    They add up to the time from the start of the first kernel to the end of the last. Communication counts where it
    runs alone.

    Args:
      data: a ``jax.profiler.ProfileData``.
      num_steps: the number of steps in the trace.
    """
    planes = sorted((plane for plane in data.planes if plane.name.startswith("/device:GPU:")), key=lambda p: p.name)
    for plane in planes:
        streams = [line for line in plane.lines if line.name.startswith("Stream")]
        events = [
            (event.start_ns, event.end_ns, kind_of(event.name, str(dict(event.stats).get("hlo_op", ""))))
            for line in streams
            for event in line.events
        ]
        if events:
            return {kind: ns / num_steps / 1e6 for kind, ns in _split(events).items()}
    return None


def _split(events: list[tuple[float, float, Kind]]) -> dict[str, float]:
    """Return the nanoseconds of each kind and "idle". What runs beside an earlier kernel counts once."""
    computing = _alone(event for event in events if event[2] != "communication")
    busy, span = sum(_alone(events).values()), max(end for _, end, _ in events) - min(start for start, *_ in events)
    communication = busy - sum(computing.values())
    return {**computing, **({"communication": communication} if communication else {}), "idle": span - busy}


def _alone(events: Iterable[tuple[float, float, Kind]]) -> dict[str, float]:
    """Return the nanoseconds in which each kind runs and no kernel that started before it."""
    found, until = dict.fromkeys(("products", "attention", "other kernels"), 0.0), 0.0
    for start, end, kind in sorted(events):
        found[kind] = found.get(kind, 0.0) + max(0.0, end - max(start, until))
        until = max(until, end)
    return found
