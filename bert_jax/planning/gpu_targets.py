"""The facts with which XLA compiles for a GPU on a machine without a GPU: cores, memory, rates of units.

The figures come from openxla/xla, xla/backends/gpu/target_config/specs (h100_sxm, h200), as a text proto.
"""

from __future__ import annotations

_GHZ, _MATRIX_GHZ = 1.98, 1.8295201
# (number of the dtype in XLA's PrimitiveType, GHz, units of a core, operations of a unit in a clock)
_SCALAR = [(number, _GHZ, 64, 1) for number in (4, 8, 12)] + [(11, _GHZ, 128, 1)]
_SCALAR += [(number, _GHZ, 128, 2) for number in (10, 16)]
_MATRIX = [(number, _MATRIX_GHZ, 4, 1024) for number in (2, 6, 19, 20, 23, 24, 25, 28, 29, 33, 35, 36)]
_MATRIX += [(10, _MATRIX_GHZ, 4, 512), (11, _MATRIX_GHZ, 4, 256), (12, _GHZ, 4, 32), (16, _MATRIX_GHZ, 4, 512)]


def _rates(rows: list[tuple[int, float, int, int]]) -> str:
    return " ".join(
        f"rate_infos {{ key: {dtype} value {{ clock_rate_ghz: {ghz} units_per_core: {units} ops_per_clock: {each} }} }}"
        for dtype, ghz, units, each in rows
    )


def _hopper(name: str, memory: int, bandwidth: int) -> str:
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: 52428800 clock_rate_ghz: {_GHZ} device_memory_size: {memory}
  shared_memory_per_block_optin: 232448
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  scalar_unit_description {{ {_rates(_SCALAR)} }}
  matrix_unit_description {{ {_rates(_MATRIX)} }}
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation" platform_version: "Compute Capability 9.0a"
  device_address_bits: 64 pcie_bandwidth: 34359738368 ecc_enabled: true
  name: "{name}" driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0" cub_version: "3.1.2" device_interconnect_info {{ active_links: 18 }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{name}"
"""


TARGETS = {
    "h100": _hopper("NVIDIA H100 80GB HBM3", 84942979072, 3352320000000),
    "h200": _hopper("NVIDIA H200 141GB HBM3e", 151397597184, 4800000000000),
}
