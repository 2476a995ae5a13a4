"""Pretraining of BERT-family encoders with JAX: text in, checkpoints and Hugging Face models out.

bert_jax/README.md documents the functions for Python below. Each package can be imported by itself too; README.md has
a map of the packages. ``import bert_jax`` takes no time, because a function is imported when it is first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax.errors import UserError
    from bert_jax.runs.api import batches, curves, finetune, load, predict, pretrain

__version__ = "0.1.0"
__all__ = ["UserError", "batches", "curves", "finetune", "load", "predict", "pretrain"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bert_jax' has no attribute {name!r}; it has {', '.join(__all__)}, and packages")
    return getattr(importlib.import_module("bert_jax.errors" if name == "UserError" else "bert_jax.runs.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
