"""Decides which freed memory a process keeps that trains on CPU, because each step takes the same memory again."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util

# malloc.h of glibc
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8
_ACCELERATORS = ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin")
LARGE = 1 << 29  # bytes that a program takes at once, from which ``keep_small_blocks`` saves memory and costs little


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory, in one heap. If there is an accelerator, this does nothing.

    Call it before jax is imported. XLA's CPU backend frees its buffers after every step. If this memory goes back to
    the kernel, the kernel zeroes it page by page when it is taken again. On 2 cores that was 37 % of the step time of a
    2 x 128 BERT: 45,800 page faults and 130 ms per step; with this function 7,000 and 79 ms
    (tests/benchmarks/bench_step.py).
    """
    _set((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 1 << 28))


def keep_small_blocks() -> None:
    """Tell glibc to give back blocks of 32 MiB and more when they are freed, and to keep smaller ones.

    A program whose temporary memory is one ``LARGE`` block needs this. Another allocation soon lies in the gap that the
    block leaves, so the next step takes a block elsewhere: a step with 1.2 GiB of temporary memory peaked at 7.1 GiB,
    and peaks at 2.3 GiB with this function, for 5 to 10 % more processor time.
    """
    _set((_MMAP_THRESHOLD, 1 << 25), (_MMAP_MAX, 1 << 16))


def _set(*options: tuple[int, int]) -> None:
    if any(importlib.util.find_spec(name) for name in _ACCELERATORS):
        return
    with contextlib.suppress(OSError, AttributeError):  # the C library is not glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in options:
            mallopt(option, value)
