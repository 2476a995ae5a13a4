"""The contract of an attention kernel, and what several kernels share.

A file of this package that defines ``attend`` is a kernel (``Kernel``), and its name is the value of
``config.model.attention_kernel`` that asks for the kernel. ``models.attention`` calls ``attend`` on each device.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol, TypeAlias

import jax

Factors: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]  # query, key and value of one shape [B, L, H, head_dim]
Arrays: TypeAlias = tuple[jax.Array, ...]
# What rematerialisation may keep: the output, and the logarithms of the denominators.
OUTPUT, TOTAL = KEPT = ("row_attention_output", "row_attention_total")
LANES = 128  # of a TPU's registers
_HEAD_DIMS = (32, 64, 128)  # sizes of heads that our kernels take


@dataclasses.dataclass(frozen=True)
class Case:
    """What one computation of attention needs.

    Attributes:
      platform: of the devices for which the program is compiled, not of the host: "cpu", "gpu" or "tpu". Our kernels
        are interpreted for "cpu", where tests alone run them.
      length: the number of positions of a row.
      num_heads: the heads on one device; not a whole number if the mesh does not divide the heads.
      dtype: the name of the dtype of queries, keys and values.
      rate: of dropout on the probabilities.
      packed: whether a row may hold several sequences that do not see each other.
      window: ``Visible.window``.
      causal: ``Visible.causal``.
    """

    platform: str
    length: int
    num_heads: float
    head_dim: int
    dtype: str
    rate: float
    packed: bool = False
    window: int | None = None
    causal: bool = False


class Kernel(Protocol):
    """What the file of a kernel has.

    Attributes:
      WORTHWHILE: positions of a row from which "auto" takes the kernel; None: never. Of several kernels that can
        compute a case, "auto" takes the kernel with the smallest number.
    """

    WORTHWHILE: int | None

    def obstacle(self, case: Case) -> str | None:
        """Return what the kernel needs and ``case`` does not have, as the end of a sentence; None if it has all."""

    def attend(self, factors: Factors, ids: Arrays, dropout_keys: Arrays, case: Case) -> jax.Array:
        """Return softmax(query key^T / sqrt(head_dim) + bias) value [B, L, H, head_dim], with dropout on the softmax.

        Args:
          factors: query, key and value on this device.
          ids: ids of queries and of keys, each [B, L] int32 (``Visible.ids``). A query sees the keys of the query's id,
            and nothing sees a key of id 0. The ids of a row grow, but for the padding, whose id is 0.
          dropout_keys: the key of each row, [B] uint32 (``RowRng.row_keys``), and the index of the first of these heads
            among all heads of the layer, [1] int32.
          case: what ``obstacle`` has let pass.
        """


# ---- Obstacles that several kernels have --------------------------------------------------------------------------


def other_platform(case: Case, platform: str) -> str | None:
    """Return an obstacle unless the devices are of ``platform``."""
    runs_on = {"tpu": "TPUs", "gpu": "NVIDIA GPUs"}[platform]
    return None if case.platform == platform else f"runs on {runs_on}, and the devices are {case.platform}"


def other_dtype(case: Case, *dtypes: str) -> str | None:
    """Return an obstacle unless the model computes in one of ``dtypes``."""
    known = case.dtype in dtypes
    return None if known else f"computes in {' or '.join(dtypes)}, and config.model.dtype is {case.dtype}"


def other_heads(case: Case) -> str | None:
    """Return an obstacle unless heads have one of ``_HEAD_DIMS`` entries."""
    if case.head_dim in _HEAD_DIMS:
        return None
    return f"needs heads of {', '.join(map(str, _HEAD_DIMS))} entries, and these have {case.head_dim}"


def parts_of_heads(case: Case) -> str | None:
    """Return an obstacle if a device does not have a whole number of heads."""
    return f"takes whole heads, and a device has {case.num_heads:g}" if case.num_heads % 1 else None


def a_window(case: Case) -> str | None:
    """Return an obstacle if the layer has a window."""
    if case.window is None:
        return None
    return f"has no window, and layers of the model see {case.window} positions to each side"
