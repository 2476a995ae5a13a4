"""Settings of glibc's malloc for a process that trains on CPU, where each step takes the same memory again."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from pathlib import Path

# malloc.h of glibc
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8
_ACCELERATORS = ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin")
HUGE_PAGES = "glibc.malloc.hugetlb=1"
LARGE = 1 << 28  # bytes that a program takes at once, from which ``keep_small_blocks`` saves memory and costs little


def use_huge_pages() -> None:
    """Start this program again with ``HUGE_PAGES`` in GLIBC_TUNABLES, unless there is an accelerator.

    XLA's CPU backend takes and frees the memory of a step in every step, and the kernel hands it out page by page: with
    huge pages a step of a 4 x 512 BERT took 1.26 s instead of 1.56 s. glibc reads the setting only when a process
    starts. The process keeps its id. Other values of glibc.malloc.hugetlb in GLIBC_TUNABLES are left alone.

    Nothing is done in a notebook or a program that came by stdin, which could not be read again, nor in a debugger,
    which would lose its breakpoints.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or "glibc.malloc.hugetlb" in tunables:
        return
    if sys.gettrace() is not None or not os.path.isfile(getattr(sys.modules["__main__"], "__file__", "")):
        return
    if _has_accelerator():
        return
    os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, HUGE_PAGES)))
    with contextlib.suppress(OSError):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory, in one heap. If there is an accelerator, this does nothing.

    Call this before jax is imported. XLA's CPU backend frees its buffers after every step. If this memory goes back to
    the kernel, the kernel zeroes it page by page when it is taken again. On 2 cores that was 37 % of the step time of a
    2 x 128 BERT: 45,800 page faults and 130 ms per step; with this function 7,000 and 79 ms
    (tests/benchmarks/bench_step.py).
    """
    _set((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 1 << 28))


def keep_small_blocks() -> None:
    """Tell glibc to give back blocks of 32 MiB and more when they are freed, and to keep smaller blocks.

    A program whose temporary memory is one ``LARGE`` block needs this. Another allocation soon lies in the gap that the
    block leaves, so the next step takes a block elsewhere: a step with 1.2 GiB of temporary memory peaked at 7.1 GiB,
    and peaks at 2.3 GiB with this function. Huge pages (``use_huge_pages``) make taking a block anew cheap.
    """
    _set((_MMAP_THRESHOLD, 1 << 25), (_MMAP_MAX, 1 << 16))


def _set(*options: tuple[int, int]) -> None:
    if _has_accelerator():
        return
    with contextlib.suppress(OSError, AttributeError):  # the C library is not glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in options:
            mallopt(option, value)


def _has_accelerator() -> bool:
    return os.environ.get("JAX_PLATFORMS") != "cpu" and any(map(importlib.util.find_spec, _ACCELERATORS))


def host_bytes() -> int:
    """Return the size of this machine's memory, or of its container's if that is less, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total
