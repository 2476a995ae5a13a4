"""Compares the outputs of two models, such as a user's own encoder and its export as a known encoder."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from bert_jax.models.config import ModelConfig
from bert_jax.models.model import IDS, LM_HEAD, POOLER, Model, encoder_file

TOLERANCE = 1e-4  # a share of the largest value; the same products in another order differ by 1e-6
LENGTH = 128  # most positions of a row


def other_output(one: tuple[Any, ModelConfig], other: tuple[Any, ModelConfig]) -> str:
    """Return the name of the first output of two models that differs, on two rows of random ids; "" if none does.

    It compares the vectors of real positions and, as far as both models have the heads, the pooled vectors and the
    logits of masked pieces.

    Args:
      one, other: parameters (unrolled) and config of a model.
    """
    heads = [part for part in (POOLER, LM_HEAD) if all(part.name in params for params, _ in (one, other))]
    batch = random_rows(one[1], other[1])
    found, wanted = (
        jax.jit(Model(dataclasses.replace(config.plain(), dtype="float32"), tuple(heads)).apply)(
            {"params": {name: tree for name, tree in params.items() if name in ("encoder", *(p.name for p in heads))}},
            batch,
        )
        for params, config in (one, other)
    )
    for name in wanted:
        ours, theirs = (np.asarray(outputs[name], np.float32) for outputs in (found, wanted))
        if name == "sequence":
            ours, theirs = (x[np.asarray(batch["attention_mask"]) > 0] for x in (ours, theirs))
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=0, atol=TOLERANCE * np.abs(theirs).max()):
            return name
    return ""


def random_rows(*configs: ModelConfig, number: int = 2) -> dict[str, Any]:
    """Return rows with the features that the encoders of ``configs`` read; every second row ends in padding."""
    length, ids = min(LENGTH, *(config.max_length for config in configs)), min(config.vocab_size for config in configs)
    mask = np.ones((number, length), np.int32)
    mask[1::2, length // 2 :] = 0
    types = np.zeros_like(mask)
    first = encoder_file(configs[0].encoder).Encoder.reads
    if "token_type_ids" in first and configs[0].type_vocab_size > 1:
        types[::2, length // 2 :] = 1
    reads = {name for config in configs for name in encoder_file(config.encoder).Encoder.reads}
    rows = {name: np.zeros_like(mask) for name in reads - {"position_ids", "sequence_ids", *IDS}}
    draw = np.random.default_rng(0).integers(0, ids, (number, length), np.int32)
    places = np.resize(np.array([[1, length - 1], [0, 1]], np.int32), (number, 2))
    return {**rows, "token_type_ids": types, "input_ids": draw, "attention_mask": mask, "masked_positions": places}
