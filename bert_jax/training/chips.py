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

GIB = 2**30
GB = 10**9
HOP_SECONDS = 1e-6  # least time of one hop over a link: [sharding], "A note on ICI latency"


@dataclasses.dataclass(frozen=True)
class Chip:
    """The peak rates, memory and bandwidths of one device, as jax counts devices.

    Attributes:
      matrix_flops: FLOP/s of matrix products, by the dtype of the operands. By default JAX multiplies float32 on a TPU
        in one bfloat16 pass (``jax.lax.Precision.DEFAULT``), so both rates are equal on a TPU.
      vector_ops: elementwise operations per second. If None, the rate is unknown and their time is not counted.
      memory_bytes, memory_bandwidth: of the main memory (HBM), the bytes that a program may use, and bytes per second.
      link_bandwidth: bytes per second in one direction over a link to one neighbour, or to the switch that joins all
        devices.
      torus: an axis of the slice is a ring if its length is a multiple of this number; otherwise it is a line, with
        half the bandwidth. In three dimensions the axes are rings only if all three lengths are multiples of it.
      network_bandwidth: bytes per second of the data-centre network, one chip's share of its host's bandwidth.
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
    dimensions: int = 2  # of the torus
    device_kinds: tuple[str, ...] = ()  # beginnings of jax's ``device_kind``
    transcendentals: float | None = None  # exponentials and the like per second; None: each is an elementwise operation
    chip_config: str = "default"  # how libtpu presents its cores: "megacore" makes one device of two

    @property
    def axis_bandwidth(self) -> float:
        """Return the bytes per second that a device receives along a mesh axis.

        In a ring a device receives from both neighbours; behind a switch it receives over its one link.
        """
        return self.link_bandwidth * (2 if self.platform == "tpu" else 1)


def _tpu(name: str, peak: float, **fields: object) -> Chip:
    return Chip(name, "tpu", {"bf16": peak, "f32": peak}, **fields)  # type: ignore[arg-type]


# Elementwise rate = 8 x 128 lanes x ALUs of a lane (2 on v4, 4 from v5 on: [book], "VPU") x cores x clock. The clock
# follows from the peak: FLOP/s / (2 x 128 x 128 x 4 matrix units of a core x cores) = 1.05 GHz on v4, 1.50 on v5e
# (as [book] says), 1.75 on v5p. For v6e 1.75 GHz is assumed too: its peak then takes four units of 256 x 256. [v6e]
# speaks of two units, which would need 3.5 GHz.
_LANES = 8 * 128

# Link bandwidths are from [book]. Google's pages state 11 % more: 1,200 GB/s on v5p (6 links), 400 on v5e and 800 on
# v6e (4 links), each the sum of both directions over all links of a chip.
CHIPS = {
    # [v4] 275 TFLOP/s, 32 GiB, 1,200 GB/s; [libtpu] 30.75 GiB. No page states a v4 host's network, so v5p's is used.
    "v4": _tpu(
        "v4",
        275e12,
        vector_ops=_LANES * 2 * 2 * 1.05e9,
        memory_bytes=30.75 * GIB,
        memory_bandwidth=1200 * GB,
        link_bandwidth=4.5e10,
        torus=4,
        network_bandwidth=6.25e9,
        dimensions=3,
        chip_config="megacore",
        device_kinds=("TPU v4",),
    ),
    # [v5e] 197 TFLOP/s, 16 GB, 819 GB/s, network 6.4 Tbit/s over 256 chips; [libtpu] 15.75 GiB.
    "v5e": _tpu(
        "v5e",
        197e12,
        vector_ops=_LANES * 4 * 1.5e9,
        memory_bytes=15.75 * GIB,
        memory_bandwidth=819 * GB,
        link_bandwidth=4.5e10,
        torus=16,
        network_bandwidth=6.4e12 / 8 / 256,
        device_kinds=("TPU v5 lite", "TPU v5e"),
    ),
    # [v5p] 459 TFLOP/s, 95 GB, 2,765 GB/s, network 50 Gbit/s a chip; [libtpu] 95.74 GiB.
    "v5p": _tpu(
        "v5p",
        459e12,
        vector_ops=_LANES * 4 * 2 * 1.75e9,
        memory_bytes=95.74 * GIB,
        memory_bandwidth=2765 * GB,
        link_bandwidth=9e10,
        torus=4,
        network_bandwidth=6.25e9,
        dimensions=3,
        device_kinds=("TPU v5",),
    ),
    # [v6e] 918 TFLOP/s, 32 GB, 1,638 GB/s, network 25.6 Tbit/s over 256 chips; [libtpu] 31.25 GiB.
    "v6e": _tpu(
        "v6e",
        918e12,
        vector_ops=_LANES * 4 * 1.75e9,
        memory_bytes=31.25 * GIB,
        memory_bandwidth=1638 * GB,
        link_bandwidth=9e10,
        torus=16,
        network_bandwidth=25.6e12 / 8 / 256,
        device_kinds=("TPU v6 lite", "TPU v6e"),
    ),
}

# NVLink and NVSwitch reach every GPU of a node at the same rate. In one direction it is half of what a data sheet calls
# NVLink's bandwidth ([gpus], "At the node level": 450 GB/s, 300 on A100). Between nodes, each GPU has one adapter: 400
# Gbit/s in DGX H100 and H200 ([gpus], "Beyond the node level"), 200 in DGX A100. The data sheets' float32 rate counts a
# fused multiply-add as two operations ([gpus], "CUDA Cores"), so the elementwise rate is half of it.
GPUS = {
    # The same die as h100 with more memory: 141 GB, 4.8 TB/s ([gpus], "Summary of GPU specs").
    "h200": Chip(
        "h200",
        "gpu",
        {"bf16": 989e12, "f32": 494.5e12},
        33.5e12,
        141 * GB,
        4.8e12,
        4.5e11,
        1,
        5e10,
        1,
        device_kinds=("NVIDIA H200",),
    ),
    # [h100] bfloat16 1,979, TF32 (JAX's default for float32) 989 TFLOP/s with sparsity, float32 67, 80 GB, 3.35 TB/s.
    "h100": Chip(
        "h100",
        "gpu",
        {"bf16": 989e12, "f32": 494.5e12},
        33.5e12,
        80 * GB,
        3.35e12,
        4.5e11,
        1,
        5e10,
        1,
        device_kinds=("NVIDIA H100",),
    ),
    # [a100] bfloat16 312, TF32 156, float32 19.5 TFLOP/s, 80 GB, 2.039 TB/s.
    "a100": Chip(
        "a100",
        "gpu",
        {"bf16": 312e12, "f32": 156e12},
        9.75e12,
        80 * GB,
        2.039e12,
        3e11,
        1,
        2.5e10,
        1,
        device_kinds=("NVIDIA A100",),
    ),
}


def of_device(device_kind: str) -> Chip | None:
    """Return the chip that jax calls ``device_kind``, or None if it is not listed."""
    kinds = {kind: chip for chip in (CHIPS | GPUS).values() for kind in chip.device_kinds}
    named = [kind for kind in kinds if device_kind.startswith(kind)]
    return kinds[max(named, key=len)] if named else None
