"""The peak rates, memory and bandwidths of each chip, every figure with the page or file that states it.

Sources:
  [v4] .. [v6e]: docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e, tables under "System architecture".
  [book]: jax-ml/scaling-book, tpus.md, the two tables under "Key Takeaways" and the appendix "VPU".
  [sharding], [gpus]: the same book, sharding.md and gpus.md.
  [libtpu]: the memory that a program may use, as the compiler of libtpu 0.0.42.1 states it when it refuses a larger
    program. Data sheets state more, because the system keeps some memory for itself.
  [h100], [a100]: NVIDIA's data sheets of H100 SXM and A100 80GB SXM; half of the figures "with sparsity".
"""

from __future__ import annotations

import dataclasses
from typing import Any

_GIB = 2**30
HOP_SECONDS = 1e-6  # least time of one hop over a link: [sharding], "A note on ICI latency"


@dataclasses.dataclass(frozen=True)
class Reached:
    """The shares of a chip's peak rates that a step reaches, and the seconds that each kernel takes to start.

    By default nothing was measured, and a step reaches the peaks.
    """

    products: float = 1.0
    memory: float = 1.0
    kernel_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Chip:
    """The peak rates, memory and bandwidths of one device, as jax counts devices.

    Attributes:
      matrix_flops: FLOP/s of matrix products, by the dtype of the operands. By default JAX multiplies float32 on a TPU
        in one bfloat16 pass (``jax.lax.Precision.DEFAULT``), so both rates are equal on a TPU; on a GPU it multiplies
        them in TF32.
      vector_ops: elementwise operations per second. If None, their time is not counted.
      memory_bytes, memory_bandwidth: the bytes of main memory (HBM) that a program may use, and bytes per second.
      link_bandwidth: bytes per second in one direction over a link to one neighbour, or to the switch that joins all
        devices.
      torus: an axis of the slice is a ring if its length is a multiple of this number; otherwise it is a line, with
        half the bandwidth. In three dimensions the axes are rings only if all three lengths are multiples of it.
      network_bandwidth: bytes per second of the data-centre network, one chip's share of its host's bandwidth.
      dimensions: the number of dimensions of the torus.
      device_kinds: the beginnings of jax's ``device_kind``.
      transcendentals: exponentials and the like per second. If None, each is an elementwise operation.
    """

    name: str
    platform: str
    matrix_flops: dict[str, float]
    vector_ops: float | None
    memory_bytes: float
    memory_bandwidth: float
    link_bandwidth: float
    torus: int
    network_bandwidth: float
    dimensions: int = 2
    device_kinds: tuple[str, ...] = ()
    transcendentals: float | None = None
    reached: Reached = Reached()  # noqa: RUF009

    def product_flops(self, dtype: str) -> float:
        """Return the FLOP/s of matrix products of ``dtype`` as a model names it; float64 has the figure of float32."""
        return self.matrix_flops["bf16" if dtype == "bfloat16" else "f32"]

    @property
    def axis_bandwidth(self) -> float:
        """Return the bytes per second that a device receives along a mesh axis.

        In a ring a device receives from both neighbours; behind a switch it receives over its one link.
        """
        return self.link_bandwidth * (2 if self.platform == "tpu" else 1)


# Elementwise rate = 8 x 128 lanes x ALUs of a lane (2 on v4, 4 from v5 on: [book], "VPU") x cores x clock. The clock
# follows from the peak: FLOP/s / (2 x 128 x 128 x 4 matrix units of a core x cores) = 1.05 GHz on v4, 1.50 on v5e
# (as [book] says), 1.75 on v5p. For v6e 1.75 GHz is assumed too: its peak then takes four units of 256 x 256. [v6e]
# speaks of two units, which would need 3.5 GHz.
_LANES = 8 * 128


def _tpu(flops: float, alus: float, gib: float, bandwidth: float, *links: Any) -> tuple[Any, ...]:
    return "tpu", {"bf16": flops, "f32": flops}, _LANES * alus, gib * _GIB, bandwidth, *links


# Link bandwidths are from [book]. Google's pages state 11 % more: 1,200 GB/s on v5p (6 links), 400 on v5e and 800 on
# v6e (4 links), each the sum of both directions over all links of a chip.
# FLOP/s; ALUs x cores x clock; GiB; bytes/s of memory, of a link; ring from; network; dimensions; jax's names
_TPUS = {
    # [v4] 275 TFLOP/s, 32 GiB, 1,200 GB/s; [libtpu] 30.75 GiB. No page states a v4 host's network, so v5p's is used.
    "v4": _tpu(275e12, 2 * 2 * 1.05e9, 30.75, 1.2e12, 4.5e10, 4, 6.25e9, 3, ("TPU v4",)),
    # [v5e] 197 TFLOP/s, 16 GB, 819 GB/s, network 6.4 Tbit/s over 256 chips; [libtpu] 15.75 GiB.
    "v5e": _tpu(197e12, 4 * 1.5e9, 15.75, 8.19e11, 4.5e10, 16, 6.4e12 / 8 / 256, 2, ("TPU v5 lite", "TPU v5e")),
    # [v5p] 459 TFLOP/s, 95 GB, 2,765 GB/s, network 50 Gbit/s a chip; [libtpu] 95.74 GiB.
    "v5p": _tpu(459e12, 4 * 2 * 1.75e9, 95.74, 2.765e12, 9e10, 4, 6.25e9, 3, ("TPU v5",)),
    # [v6e] 918 TFLOP/s, 32 GB, 1,638 GB/s, network 25.6 Tbit/s over 256 chips; [libtpu] 31.25 GiB.
    "v6e": _tpu(918e12, 4 * 1.75e9, 31.25, 1.638e12, 9e10, 16, 25.6e12 / 8 / 256, 2, ("TPU v6 lite", "TPU v6e")),
}

# What an H200 reached in four train steps, traced on 2026-11-26 (README.md, "GPUs"). Products: 50.0 TFLOP in 70.4 ms
# of kernels, 0.72 of the peak (625 to 745 TFLOP/s; least where a vocabulary of 30,522 is multiplied). With 0.83 for the
# memory the largest of the four errors is least. H100 and A100 are taken to reach the same shares; no kernel was timed
# on them.
_REACHED = Reached(products=0.72, memory=0.83, kernel_seconds=1.25e-6)


def _gpu(name: str, flops: tuple[float, float], memory: float, *rates: float) -> Chip:
    bandwidth, link, network = rates
    products, kinds = dict(zip(("bf16", "f32"), flops, strict=True)), (f"NVIDIA {name.upper()}",)
    return Chip(name, "gpu", products, None, memory, bandwidth, link, 1, network, 1, kinds, reached=_REACHED)


# NVLink and NVSwitch reach every GPU of a node at the same rate. In one direction it is half of what a data sheet calls
# NVLink's bandwidth ([gpus], "At the node level": 450 GB/s, 300 on A100). Between nodes, each GPU has one adapter: 400
# Gbit/s in DGX H100 and H200 ([gpus], "Beyond the node level"), 200 in DGX A100.
_GPUS = [  # FLOP/s in bfloat16 and TF32; bytes of memory; bytes/s of memory, of the link, of the network
    # The same die as h100 with more memory: 141 GB, 4.8 TB/s ([gpus], "Summary of GPU specs").
    _gpu("h200", (989e12, 494.5e12), 141e9, 4.8e12, 4.5e11, 5e10),
    # [h100] bfloat16 1,979, TF32 (JAX's default for float32) 989 TFLOP/s with sparsity, 80 GB, 3.35 TB/s.
    _gpu("h100", (989e12, 494.5e12), 80e9, 3.35e12, 4.5e11, 5e10),
    # [a100] bfloat16 312, TF32 156 TFLOP/s, 80 GB, 2.039 TB/s.
    _gpu("a100", (312e12, 156e12), 80e9, 2.039e12, 3e11, 2.5e10),
]
CHIPS = {name: Chip(name, *figures) for name, figures in _TPUS.items()} | {chip.name: chip for chip in _GPUS}


def of_device(device_kind: str) -> Chip | None:
    """Return the chip that jax calls ``device_kind``, or None if it is not listed."""
    kinds = {kind: chip for chip in CHIPS.values() for kind in chip.device_kinds}
    named = [kind for kind in kinds if device_kind.startswith(kind)]
    return kinds[max(named, key=len)] if named else None
