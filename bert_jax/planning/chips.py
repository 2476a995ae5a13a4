"""What a chip can do at most: every figure with the page or file that states it.

Sources: [v3] .. [v6e] docs.cloud.google.com/tpu/docs/v3, /v4, /v5e, /v5p, /v6e, tables of the system architecture;
[book] jax-ml/scaling-book, tpus.md, "TPU specs" and its appendices; [sharding] the same, sharding.md; [h200], [h100],
[a100] NVIDIA's data sheets of these products, dense figures of the SXM part.
"""

from __future__ import annotations

import dataclasses

GIB = 2**30
GB = 10**9
HOP_SECONDS = 1e-6  # least time of one hop over a link: [sharding], "A note on ICI latency"


@dataclasses.dataclass(frozen=True)
class Chip:
    """Peaks of one device as jax counts them.

    Attributes:
      matrix_flops: FLOP/s of matrix products, by their operands' dtype. JAX multiplies float32 on a TPU in one bfloat16
        pass by default (``jax.lax.Precision.DEFAULT``), so the two are equal there.
      vector_ops: elementwise operations a second; None: not known, and not counted.
      memory_bytes, memory_bandwidth: of the main memory (HBM), bytes and bytes a second.
      link_bandwidth: bytes a second one way over a link to one neighbour.
      torus: an axis of the slice is a ring if its length is a multiple of this; else a line, with half the bandwidth.
      network_bandwidth: bytes a second of one chip's share of its host's data-centre network.
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
    chip_config: str = "default"  # how libtpu presents its cores: "megacore" makes one device of two


def _tpu(name: str, peak: float, **fields: object) -> Chip:
    return Chip(name, "tpu", {"bf16": peak, "f32": peak}, **fields)  # type: ignore[arg-type]


# Elementwise rates: 8 x 128 lanes, of 2 ALUs each on v4 and 4 from v5 on ([book], appendix "VPU"), times cores, times
# the clock that follows from the peak: FLOP/s over 2 x 128 x 128 x (4 matrix units a core) x cores = 1.05 GHz on v4,
# 1.50 on v5e, 1.75 on v5p; v6e is taken at v5p's.
_LANES = 8 * 128

CHIPS = {
    # [v4] 275 TFLOP/s, 32 GiB, 1,200 GB/s; [book] 4.5e10 bytes/s a link one way, rings on axes of 4n. No page
    # states the network of a v4 host: that of [v5p], 50 Gbit/s a chip, is taken.
    "v4": _tpu(
        "v4",
        275e12,
        vector_ops=_LANES * 2 * 2 * 1.05e9,
        memory_bytes=32 * GIB,
        memory_bandwidth=1200 * GB,
        link_bandwidth=4.5e10,
        torus=4,
        network_bandwidth=6.25e9,
        dimensions=3,
        chip_config="megacore",
    ),
    # [v5e] 197 TFLOP/s, 16 GB, 819 GB/s, pod network 6.4 Tbit/s over 256 chips; [book] 4.5e10 a link, rings of 16 only.
    "v5e": _tpu(
        "v5e",
        197e12,
        vector_ops=_LANES * 4 * 1.5e9,
        memory_bytes=16 * GB,
        memory_bandwidth=819 * GB,
        link_bandwidth=4.5e10,
        torus=16,
        network_bandwidth=6.4e12 / 8 / 256,
    ),
    # [v5p] 459 TFLOP/s, 95 GB, 2,765 GB/s, network 50 Gbit/s a chip; [book] 9e10 a link.
    "v5p": _tpu(
        "v5p",
        459e12,
        vector_ops=_LANES * 4 * 2 * 1.75e9,
        memory_bytes=95 * GB,
        memory_bandwidth=2765 * GB,
        link_bandwidth=9e10,
        torus=4,
        network_bandwidth=6.25e9,
        dimensions=3,
    ),
    # [v6e] 918 TFLOP/s, 32 GB, 1,638 GB/s; [book] 9e10 a link, DCN 2.5e10 a host (of 8 chips).
    "v6e": _tpu(
        "v6e",
        918e12,
        vector_ops=_LANES * 4 * 1.75e9,
        memory_bytes=32 * GB,
        memory_bandwidth=1638 * GB,
        link_bandwidth=9e10,
        torus=16,
        network_bandwidth=2.5e10 / 8,
    ),
}

# NVLink and NVSwitch reach every GPU of a node at the same rate: one "link" of half the stated total. Between nodes:
# one 400 Gbit/s adapter a GPU, as in NVIDIA's DGX H100 user guide (200 Gbit/s in that of DGX A100).
GPUS = {
    # [h200] bfloat16 989, TF32 495 TFLOP/s (JAX's default for float32), 141 GB, 4.8 TB/s, NVLink 900 GB/s both ways.
    "h200": Chip("h200", "gpu", {"bf16": 989e12, "f32": 494.5e12}, 67e12, 141 * GB, 4.8e12, 4.5e11, 1, 5e10, 1),
    # [h100] the same rates, 80 GB, 3.35 TB/s.
    "h100": Chip("h100", "gpu", {"bf16": 989e12, "f32": 494.5e12}, 67e12, 80 * GB, 3.35e12, 4.5e11, 1, 5e10, 1),
    # [a100] bfloat16 312, TF32 156, float32 19.5 TFLOP/s, 80 GB, 2.039 TB/s, NVLink 600 GB/s both ways.
    "a100": Chip("a100", "gpu", {"bf16": 312e12, "f32": 156e12}, 19.5e12, 80 * GB, 2.039e12, 3e11, 1, 2.5e10, 1),
}
