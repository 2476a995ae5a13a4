"""Checks an import or export: compares our modules with a numpy model of the file's tensors, on fixed random tokens."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.errors import RepeatingError, UserError
from bert_jax.interchange.architectures import Head
from bert_jax.interchange.reference import read_by_classifier
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import Classifier
from bert_jax.models.model import LM_HEAD, NSP_HEAD, POOLER, SOP_HEAD, Model, Part

TOLERANCE = 1e-4  # relative to the largest output; the order of float32 sums matters less, even in 24 layers
Reference = Callable[[ModelConfig, Mapping[str, np.ndarray], frozenset[str], str], dict[str, np.ndarray]]


@functools.partial(jax.jit, static_argnames=("config", "head"))
def module_outputs(params: Any, config: ModelConfig, batch: Mapping[str, np.ndarray], head: Head) -> dict[str, Any]:
    """Return the outputs of our modules, by name, for all parts that ``params`` has."""
    rows, length = batch["input_ids"].shape
    everywhere = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    vectors = read_by_classifier(head.architecture)
    parts = [one for one in (POOLER, LM_HEAD) if one.name in params]
    parts += [one for one in (NSP_HEAD, SOP_HEAD) if "pooler" in params and one.name in params]
    if "classifier" in params and (vectors == "sequence" or "pooler" in params):
        parts.append(Part.of("classifier", Classifier, num_outputs=head.num_outputs, vectors=vectors))
    if "qa_outputs" in params:
        parts.append(Part.of("qa_outputs", Classifier, num_outputs=2, vectors="sequence", logits="qa_logits"))
    model = Model(config, tuple(parts))
    return model.apply({"params": params}, {**batch, "masked_positions": everywhere})  # type: ignore[return-value]


def check_outputs(reference: Reference, params: Any, config: ModelConfig, head: Head, advice: str) -> str:
    """Compare the outputs of our modules with those of ``reference``; return a line with the largest difference.

    Args:
      reference: a function that computes the outputs in numpy from the tensors of the file.
      advice: text to put at the end of error messages.

    Raises:
      UserError: the outputs differ by more than ``TOLERANCE``, or are not finite.
    """
    config = dataclasses.replace(config, dtype="float32", layers="unrolled", remat="none")
    batch = random_batch(config)
    with np.errstate(all="ignore"):  # overflow is reported below
        expected = reference(config, batch, frozenset(params), head.architecture)
    found = module_outputs(params, config, batch, head)
    worst = 0.0
    for name, value in expected.items():
        theirs, ours = _real(value, batch), _real(np.asarray(found[name]), batch)
        if not np.isfinite(theirs).all():
            raise RepeatingError(
                f"the model's outputs are not finite numbers ({name}): its weights are too large; {advice}"
            )
        error = np.abs(theirs - ours.reshape(theirs.shape)).max() / max(np.abs(theirs).max(), 1.0)
        if not error <= TOLERANCE:
            raise UserError(
                f"the file's tensors give other outputs than our modules ({name} differs by {error:.1e}); {advice}"
            )
        worst = max(worst, float(error))
    numpy = f"those of a numpy {head.family.title} on the file's tensors"
    return f"checked: {', '.join(expected)} equal {numpy} within {worst:.0e}"


def _real(x: np.ndarray, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the part of an output ``x`` at real tokens. Outputs at padding have no meaning."""
    mask = batch["attention_mask"] > 0
    return x[mask] if x.ndim == 3 and x.shape[:2] == mask.shape else x


def random_batch(config: ModelConfig) -> dict[str, np.ndarray]:
    """Return a batch of two rows of random tokens; the second row ends in padding."""
    rng = np.random.default_rng(0)
    length = min(16, config.max_length)
    mask = np.arange(length)[None] < np.array([[length], [max(1, length * 3 // 4)]])
    return {
        "input_ids": rng.integers(0, config.vocab_size, (2, length), np.int32),
        "token_type_ids": rng.integers(0, getattr(config, "type_vocab_size", 1), (2, length), np.int32),
        "attention_mask": mask.astype(np.int32),
    }
