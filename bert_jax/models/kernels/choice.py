"""Chooses what computes attention: plain jax, or a kernel for the devices at hand.

Plain attention has three forms (``kernels.plain``), chosen by the length of rows and the window of a layer alone, so
that the scores of a long row, [L, L], are never held at once: neither by "auto", nor where "plain" is asked for, nor
where another kernel cannot compute a case.

On TPUs windows are left to plain attention: ``rows`` holds whole rows and would compute what a window hides, and the
blocks of ``splash`` are several times as wide as a window. By ``jax.nn.dot_product_attention`` of jax 0.10.2, cuDNN has
windows to the left alone, and no packed rows: offsets of sequences are taken only by the private binding below it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from bert_jax.errors import UserError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.kernels.row_attention import LANES, LONGEST
from bert_jax.records import BatchSpec

# rows: ours for TPUs; splash: JAX's for TPUs; flash: ours for GPUs; cudnn: NVIDIA's
Kernel = Literal["plain", "rows", "splash", "flash", "cudnn"]
KERNELS: tuple[Kernel, ...] = ("plain", "rows", "splash", "flash", "cudnn")
CHUNKED = 1024  # positions of a row from which plain attention holds the scores of some queries at a time
# Positions from which a kernel is faster than plain attention. XLA itself keeps scores of shorter rows on a TPU's chip.
# The first that can compute a case is taken.
WORTHWHILE: dict[Kernel, int] = {"rows": 256, "splash": CHUNKED, "flash": 128}
LONG = 2048  # positions of a row from which nothing may hold all scores [L, L] at once
BLOCK = 64  # queries of a block of local attention, at least; on a CPU 128 are slower
HEAD_DIMS = (32, 64, 128)  # sizes of heads that our kernels take


@dataclasses.dataclass(frozen=True)
class Case:
    """What one computation of attention needs.

    Attributes:
      platform: of the devices for which the program is compiled, not of the host: "cpu", "gpu" or "tpu".
      num_heads: the heads on one device; not a whole number if the mesh does not divide the heads.
      dtype: the name of the dtype of queries, keys and values.
      rate: of dropout on the probabilities.
      packed: whether a row may hold several sequences that do not see each other.
      window: ``Visible.window``.
    """

    platform: str
    length: int
    num_heads: float
    head_dim: int
    dtype: str
    rate: float
    packed: bool = False
    window: int | None = None


def case_of(model: TransformerConfig, spec: BatchSpec, platform: str, tensor: int, window: int | None = None) -> Case:
    """Return what a layer of a model needs for batches of ``spec``.

    Args:
      tensor: the devices over which heads are divided.
      window: that of the layer.
    """
    return Case(
        platform,
        length=spec["input_ids"].shape[-1],
        num_heads=model.num_heads / tensor,
        head_dim=model.head_dim,
        dtype=model.dtype,
        rate=model.attention_dropout_rate,
        packed="sequence_ids" in spec,
        window=window,
    )


def form_of(length: int, window: int | None) -> Literal["dense", "chunked", "local"]:
    """Return the form of plain attention for rows of ``length``: local where that leaves out a quarter of the keys."""
    if window is not None and 4 * (block_of(window) + 2 * window) <= 3 * length:
        return "local"
    return "chunked" if length >= CHUNKED else "dense"


def block_of(window: int) -> int:
    """Return the number of queries that local attention takes together, at least ``window``."""
    return max(window, BLOCK)


def choose(wanted: Kernel | Literal["auto"], case: Case) -> Kernel:
    """Return what computes ``case``: ``wanted`` where it can, otherwise plain; for "auto" one of ``WORTHWHILE``."""
    if wanted == "auto":
        able = [kernel for kernel, least in WORTHWHILE.items() if case.length >= least and not _obstacle(kernel, case)]
        return able[0] if able else "plain"
    return "plain" if _obstacle(wanted, case) else wanted


def check(wanted: Kernel | Literal["auto"], cases: Sequence[Case]) -> None:
    """Raise ``UserError`` if ``wanted`` cannot compute one of ``cases``; the message names the kernels that can."""
    why = [reason for case in cases if wanted != "auto" and (reason := _obstacle(wanted, case))]
    if why:
        able = [kernel for kernel in KERNELS if not any(_obstacle(kernel, case) for case in cases)]
        raise UserError(
            f"config.model.attention_kernel is {wanted!r}, which {why[0]}; here {' and '.join(map(repr, able))} can "
            "run: choose one, or 'auto'"
        )


def _obstacle(kernel: Kernel, case: Case) -> str | None:
    """Return what ``kernel`` needs and ``case`` does not have, as the end of a sentence; None if nothing is missing."""
    needs = {"plain": lambda _: None, "rows": _of_rows, "splash": _of_splash, "flash": _of_flash, "cudnn": _of_cudnn}
    return needs[kernel](case)


def _of_rows(case: Case) -> str | None:
    together = LANES // case.head_dim if case.head_dim in HEAD_DIMS else 1
    if case.platform != "tpu":
        return f"runs on TPUs, and the devices are {case.platform}"
    if case.dtype not in LONGEST:
        return f"computes in {' or '.join(LONGEST)}, and config.model.dtype is {case.dtype}"
    if case.head_dim not in HEAD_DIMS:
        return f"needs heads of {', '.join(map(str, HEAD_DIMS))} entries, and these have {case.head_dim}"
    if case.num_heads % together:
        return f"takes {together} heads of {case.head_dim} entries at a time, and a device has {case.num_heads:g}"
    if case.length % LANES or case.length > LONGEST[case.dtype]:
        longest = f"a multiple of {LANES} up to {LONGEST[case.dtype]:,} in {case.dtype}"
        return f"needs rows whose length is {longest}, and they have {case.length:,} positions"
    return _without_window(case)


def _of_splash(case: Case) -> str | None:
    if case.platform != "tpu":
        return f"runs on TPUs, and the devices are {case.platform}"
    if case.rate:
        return f"has no dropout, and config.model.attention_dropout_rate is {case.rate:g}"
    if case.dtype not in LONGEST:
        return f"computes in {' or '.join(LONGEST)}, and config.model.dtype is {case.dtype}"
    if case.head_dim not in HEAD_DIMS:
        return f"needs heads of {', '.join(map(str, HEAD_DIMS))} entries, and these have {case.head_dim}"
    if case.num_heads % 1:
        return f"takes whole heads, and a device has {case.num_heads:g}"
    if case.length % LANES:
        return f"needs rows whose length is a multiple of {LANES}, and they have {case.length:,} positions"
    return _without_window(case)


def _of_flash(case: Case) -> str | None:
    if case.platform != "gpu":
        return f"runs on NVIDIA GPUs, and the devices are {case.platform}"
    if case.dtype != "bfloat16":
        return f"computes in bfloat16, and config.model.dtype is {case.dtype}"
    if case.head_dim not in HEAD_DIMS:
        return f"needs heads of {', '.join(map(str, HEAD_DIMS))} entries, and these have {case.head_dim}"
    if case.num_heads % 1:
        return f"takes whole heads, and a device has {case.num_heads:g}"
    return None


def _of_cudnn(case: Case) -> str | None:
    if case.platform != "gpu":
        return f"runs on NVIDIA GPUs, and the devices are {case.platform}"
    if case.rate:
        return f"has no dropout like ours, and config.model.attention_dropout_rate is {case.rate:g}"
    if case.dtype != "bfloat16":
        return f"computes in bfloat16, and config.model.dtype is {case.dtype}"
    if case.head_dim % 8 or case.head_dim > 128:
        return f"needs heads whose size is a multiple of 8 up to 128, and these have {case.head_dim} entries"
    if case.num_heads % 1:
        return f"takes whole heads, and a device has {case.num_heads:g}"
    if case.packed:
        return "needs one sequence in a row, and rows are packed (config.objective.packing)"
    return _without_window(case)


def _without_window(case: Case) -> str | None:
    if case.window is not None:
        return f"has no window, and layers of the model see {case.window} positions to each side"
    return None
