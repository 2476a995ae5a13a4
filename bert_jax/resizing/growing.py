"""Begins a larger model with the weights of a smaller one, as ModernBERT-large was begun from base.

Warner et al. 2024 (arXiv 2412.13663), section 2.2; AnswerDotAI/ModernBERT, bert_layers/model.py and initialization.py
("tile_weights_from_middle"). The published code begins the last layer norm at 1, and an odd number of new heads in the
middle of a head. Here the norm begins as the smaller model's, and heads stay whole.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from bert_jax import configuration
from bert_jax.errors import UserError, few
from bert_jax.interchange.conversion import leaf
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import exported_head
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import TransformerConfig
from bert_jax.models.model import config_facts, encoder_file
from bert_jax.models.transformer import UNROLLED


def grown(model: TrainedModel, size: str) -> TrainedModel:
    """Return the model of ``size``, one of its encoder's ``SIZES``, with the weights of ``model``.

    Layer i begins as layer ``layers_of(...)[i]`` and every array as ``tiled``; queries, keys, values and the two halves
    of a gated MLP have separate axes, so each is tiled alone. A norm that the layer does not have (ModernBERT's
    first has none before attention) begins at 1. Parts that the transformers class of the model lacks are left out.

    Raises ``UserError`` if there is no such size, ``model`` does not fit into it, or transformers has no class for it.
    """
    head, new = exported_head(model), _config(model, size)
    family = family_of(new.encoder)
    begins = layers_of(model.config.num_layers, new.num_layers)
    names = {f"{UNROLLED}{i}": f"{UNROLLED}{old}" for i, old in enumerate(begins)}

    def begun(path: Any, shape: tuple[int, ...]) -> np.ndarray:
        array = leaf(model.params, "/".join(names.get(key.key, key.key) for key in path))
        if array is None:
            assert path[-1].key == "scale", path
            return np.ones(shape, np.float32)
        return tiled(np.asarray(array), shape)

    shapes = {part: tree for part, tree in family.shapes(new, head.num_outputs).items() if part in head.parts}
    shapes = {part: tree for part, tree in shapes.items() if part in model.params}
    params = jax.tree_util.tree_map_with_path(begun, shapes, is_leaf=lambda x: isinstance(x, tuple))
    old = {name: fact for name, fact in model.facts.items() if name != "sentence_vectors"}
    facts = {"model": config_facts(new), "vocabulary_sha256": model.tokenizer.sha256, "run": {}}
    return dataclasses.replace(model, params=params, config=new, head=head, facts={**old, **facts}, step=0)


def _config(model: TrainedModel, size: str) -> TransformerConfig:
    old, sizes = model.config, encoder_file(model.config.encoder).SIZES
    if not isinstance(old, TransformerConfig):
        raise UserError(f"{model.source} is of the encoder {old.encoder!r}, which has no Transformer layers to tile")
    new = dataclasses.replace(old, **configuration.choose(f"size of {old.encoder}", size, sizes))
    if problem := _misfit(old, new):
        fitting = [name for name, values in sizes.items() if not _misfit(old, dataclasses.replace(old, **values))]
        can = f"it can grow to {few(fitting)}" if fitting else f"it fits into no size of {old.encoder}"
        raise UserError(f"--size={size} has {problem} of {model.source}; {can}")
    return new


def _misfit(old: TransformerConfig, new: TransformerConfig) -> str:
    """Return what of ``new`` does not fit ``old``; "" if nothing."""
    for name in ("num_layers", "hidden_size", "num_heads", "mlp_dim", "embedding_size"):
        if getattr(new, name) < getattr(old, name):
            return f"{name} {getattr(new, name):,}, less than the {getattr(old, name):,}"
    if new.head_dim != old.head_dim:
        return f"heads of width {new.head_dim}, not {old.head_dim} like the heads"
    if bool(new.embedding_projection) == bool(old.embedding_projection):
        return ""
    has = "with" if new.embedding_projection else "without"
    return f"embeddings {has} a projection to its layers, unlike the embeddings"


def layers_of(old: int, new: int) -> list[int]:
    """Return, for each of ``new`` layers, the number of the old layer that it begins as; 0 1 2 2 ... 20 20 21 for 28.

    It is round(i * old / new), a half to the even number, but at most the last layer: with twice as many or more, the
    published code fails here.
    """
    return [min(round(i * old / new), old - 1) for i in range(new)]


def tiled(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of ``shape`` with ``array`` in its middle, repeated to both sides along each axis that is longer.

    Along an axis, new[i] = old[(i - (new_size - old_size) // 2) % old_size].
    """
    for axis, (old, new) in enumerate(zip(array.shape, shape, strict=True)):
        if old != new:
            array = np.take(array, (np.arange(new) - (new - old) // 2) % old, axis)
    return array
