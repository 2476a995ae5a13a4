"""Keeps memory in a CPU process that frees it and takes it again at every step."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util

# malloc.h of glibc
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_ACCELERATORS = ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin")


def keep_freed_memory() -> None:
    """Tell glibc to keep what is freed, in one heap. Call it before jax is imported; with an accelerator it does
    nothing.

    XLA's CPU backend frees its buffers after every step. Given back to the kernel, they are zeroed page by page when
    they are taken again. On 2 cores that was 37 % of the step time of a 2 x 128 BERT: 45,800 page faults and 130 ms;
    with this function 7,000 and 79 ms (tests/benchmarks/bench_step.py).
    """
    if any(importlib.util.find_spec(name) for name in _ACCELERATORS):
        return
    with contextlib.suppress(OSError, AttributeError):  # the C library is not glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 1 << 28)):
            mallopt(option, value)
