"""The outputs of our modules for a class of transformers, and a batch of fixed random tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.interchange.architectures import HeadClass
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import Classifier
from bert_jax.models.model import LM_HEAD, NSP_HEAD, POOLER, SOP_HEAD, Model, Part, token_head
from bert_jax.objectives.replaced_tokens import DISCRIMINATOR


def read_by_classifier(architecture: str) -> str:
    """Return which output a classifier reads: "sequence" (a vector per token) or "pooled" (a vector per text)."""
    return "sequence" if architecture.endswith("ForTokenClassification") else "pooled"


def eager_outputs(params: Any, config: ModelConfig, batch: Mapping[str, np.ndarray], head: HeadClass) -> dict[str, Any]:
    """Return the outputs of our modules, by name, for all parts that ``params`` has.

    Nothing is compiled but single operations, which models of all classes share.
    """
    rows, length = batch["input_ids"].shape
    everywhere = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    vectors = read_by_classifier(head.architecture)
    decodes = {LM_HEAD.name} if head.ending == head.family.causal else set()  # the head of a GPT has no parameters
    parts = [one for one in (POOLER, LM_HEAD, *token_head(config)) if one.name in {*params, *decodes}]
    parts += [one for one in (NSP_HEAD, SOP_HEAD) if "pooler" in params and one.name in params]
    parts += [DISCRIMINATOR] if DISCRIMINATOR.name in params else []
    if "classifier" in params and (vectors == "sequence" or "pooler" in params):
        parts.append(Part.of("classifier", Classifier, num_outputs=head.num_outputs, vectors=vectors))
    if "qa_outputs" in params:
        parts.append(Part.of("qa_outputs", Classifier, num_outputs=2, vectors="sequence", logits="qa_logits"))
    model = Model(config, tuple(parts))
    return model.apply({"params": params}, {**batch, "masked_positions": everywhere})  # type: ignore[return-value]


module_outputs = jax.jit(eager_outputs, static_argnames=("config", "head"))


def random_batch(config: ModelConfig) -> dict[str, np.ndarray]:
    """Return a batch of two rows of random tokens; the second row ends in padding."""
    rng = np.random.default_rng(0)
    length = min(16, config.max_length)
    mask = np.arange(length)[None] < np.array([[length], [max(1, length * 3 // 4)]])
    return {
        "input_ids": rng.integers(0, config.vocab_size, (2, length), np.int32),
        "token_type_ids": rng.integers(0, max(1, config.type_vocab_size), (2, length), np.int32),
        "attention_mask": mask.astype(np.int32),
    }
