"""Keeps freed memory in a process that trains on CPU, because it takes the same memory again at every step."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util

# malloc.h of glibc
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_ACCELERATORS = ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin")


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory, in one heap. If there is an accelerator, this does nothing.

    Call it before jax is imported. XLA's CPU backend frees its buffers after every step. If this memory goes back to
    the kernel, the kernel zeroes it page by page when it is taken again. On 2 cores that was 37 % of the step time of a
    2 x 128 BERT: 45,800 page faults and 130 ms per step; with this function 7,000 and 79 ms
    (tests/benchmarks/bench_step.py).
    """
    if any(importlib.util.find_spec(name) for name in _ACCELERATORS):
        return
    with contextlib.suppress(OSError, AttributeError):  # the C library is not glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 1 << 28)):
            mallopt(option, value)
