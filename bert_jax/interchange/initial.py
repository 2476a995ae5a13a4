"""Starting from a model: continued pretraining on new text, with the same or another vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.interchange.hugging_face import import_model
from bert_jax.interchange.workdir import load_trained
from bert_jax.models.config import ModelConfig
from bert_jax.models.layers import stack_layers
from bert_jax.text.wordpiece import WordPiece
from bert_jax.training.checkpoints import Checkpoints, CheckpointConfig
from bert_jax.training.state import TrainState, abstract

# Leaves whose rows are pieces of the vocabulary.
VOCABULARY_LEAVES = ("word_embeddings", "output_bias")


@dataclasses.dataclass(frozen=True)
class Initial:
    """A model to go on from."""

    source: str
    params: dict[str, Any]  # numpy tree, layers unrolled; parts may be missing
    model: ModelConfig
    tokenizer: WordPiece
    missing: tuple[str, ...]  # parts that start fresh


def load_initial(source: str) -> Initial:
    """``source`` is a Hugging Face directory, or a workdir of ours with an optional ``@step``.

    Raises:
      UserError: neither of the two, or a model that is not a BERT.
    """
    if (files.as_path(source) / "config.json").exists():
        imported = import_model(source)
        return Initial(source, imported.params, imported.config, imported.tokenizer, imported.missing)
    workdir, _, step = source.partition("@")
    if step and not step.isdigit():
        raise UserError(f"--init={source}: after @ comes a step number")
    if not (files.as_path(workdir) / "checkpoints").exists():
        raise UserError(f"--init={source} is neither a Hugging Face directory (config.json) nor a workdir (checkpoints/)")
    trained = load_trained(workdir, int(step) if step else None)
    return Initial(source, trained.params, trained.config, trained.tokenizer, ())
