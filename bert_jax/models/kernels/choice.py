"""Chooses what computes attention: plain jax, or a kernel for the devices at hand.

The kernels are the files of this package that define ``attend`` (``kernels.base``), or a user's own file. Plain
attention (``kernels.plain``) is no kernel: every device runs it, and it takes the place of a kernel that cannot compute
a case.

On TPUs windows are left to plain attention: ``rows`` holds whole rows and would compute what a window hides, and the
blocks of ``splash`` are several times as wide as a window.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from bert_jax.errors import UserError
from bert_jax.models.kernels.base import Case, Kernel
from bert_jax.parts import catalogue
from bert_jax.records import BatchSpec

if TYPE_CHECKING:
    from bert_jax.models.config import TransformerConfig

_CATEGORY = catalogue.KEYS["model.attention_kernel"]
_NO_KERNEL = ("auto", "plain")


def names() -> tuple[str, ...]:
    """Return the values of ``config.model.attention_kernel``, beside the names of users' own files."""
    return (*_NO_KERNEL, *catalogue.parts(_CATEGORY.package, _CATEGORY.having))


def check_name(wanted: str) -> None:
    """Raise ``UserError`` unless ``wanted`` is one of ``names`` or a user's own file that may run."""
    if catalogue.is_own(wanted):
        find(wanted)
    elif wanted not in names():
        allowed = ", ".join(map(repr, names()))
        raise UserError(f"config.model.attention_kernel is {wanted!r}; allowed: {allowed}")


def find(name: str) -> Kernel:
    """Return the file of the kernel ``name``."""
    return catalogue.find(_CATEGORY.package, name, _CATEGORY.having)  # type: ignore[return-value]


def case_of(model: TransformerConfig, spec: BatchSpec, platform: str, tensor: int, window: int | None = None) -> Case:
    """Return what a layer of a model needs for batches of ``spec``.

    Args:
      tensor: the devices over which heads are divided.
      window: the window of the layer.
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
        causal=model.causal,
    )


def choose(wanted: str, case: Case) -> str:
    """Return the name of what computes ``case``: ``wanted`` if it can, otherwise "plain".

    For "auto" it is the first kernel that can and is worth it for rows of this length.
    """
    if wanted == "auto":
        able = [
            name
            for name, kernel in _in_package().items()
            if kernel.WORTHWHILE is not None and case.length >= kernel.WORTHWHILE and not kernel.obstacle(case)
        ]
        return able[0] if able else "plain"
    return "plain" if wanted == "plain" or find(wanted).obstacle(case) else wanted


def check(wanted: str, cases: Sequence[Case]) -> None:
    """Raise ``UserError`` if ``wanted`` cannot compute one of ``cases``; the message names the kernels that can."""
    if wanted in _NO_KERNEL:
        return
    why = [reason for case in cases if (reason := find(wanted).obstacle(case))]
    if why:
        able = [name for name, kernel in _in_package().items() if not any(kernel.obstacle(case) for case in cases)]
        raise UserError(
            f"config.model.attention_kernel is {catalogue.display_name(wanted)}, which {why[0]}; here "
            f"{' and '.join(map(repr, ['plain', *able]))} can run: choose one, or 'auto'"
        )


def left_to_plain(wanted: str, ordered: Collection[str], decodes: bool = False) -> list[str]:
    """Return a line that says what plain attention computes although the kernel ``wanted`` is named, else [].

    Args:
      ordered: the names of batches whose tokens see each other by ``Visible.order_ids``.
      decodes: whether the model has a decoder, which reads its source.
    """
    left = [f"batches of {', '.join(ordered)}, whose tokens see each other by an order"] if ordered else []
    left += ["what a decoder reads of its source"] if decodes else []
    if wanted in _NO_KERNEL or not left:
        return []
    name = catalogue.display_name(wanted)
    return [f"config.model.attention_kernel is {name}; plain attention computes {', and '.join(left)}"]


@functools.cache
def _in_package() -> dict[str, Kernel]:
    """Return name -> kernel, in the order in which "auto" prefers the kernels."""
    found = {name: find(name) for name in catalogue.parts(_CATEGORY.package, _CATEGORY.having)}
    return dict(sorted(found.items(), key=lambda item: (item[1].WORTHWHILE is None, item[1].WORTHWHILE)))
