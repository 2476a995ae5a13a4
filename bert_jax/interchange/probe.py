"""BERT once more, in numpy, on the tensors of a file by the names of that file.

It shares no code with the modules of ``models`` nor with the map of names, so what an import or an export got wrong
(a transposed kernel, two tensors exchanged, a name of another layer) gives other outputs here. Written after Devlin et
al. 2019 and google-research/bert, modeling.py.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interchange.architectures import Head
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import Classifier
from bert_jax.models.model import LM_HEAD, NSP_HEAD, POOLER, Model, Part

TOLERANCE = 1e-4  # relative to the largest output: two orders of float32 sums through 24 layers


def _erf(x: np.ndarray) -> np.ndarray:
    return np.fromiter(map(math.erf, x.ravel().tolist()), x.dtype, x.size).reshape(x.shape)


class HuggingFaceNames:
    """Tensors of a safetensors file: a Linear's weight lies [out, in]; ``bert.`` and gamma/beta may be or not."""

    def __init__(self, tensors: Mapping[str, np.ndarray]):
        self._tensors = tensors

    def get(self, *candidates: str) -> np.ndarray:
        """The first of the names that is there, with or without ``bert.``."""
        found = (self._tensors.get(f"{prefix}{name}") for name in candidates for prefix in ("bert.", ""))
        return next(array for array in found if array is not None)

    def table(self, name: str) -> np.ndarray:
        return self.get(f"embeddings.{name}.weight")

    def dense(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.get(f"{name}.weight").T + self.get(f"{name}.bias")

    def norm(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        return self.get(f"{name}.weight", f"{name}.gamma"), self.get(f"{name}.bias", f"{name}.beta")

    def mlm_bias(self) -> np.ndarray:
        return self.get("cls.predictions.bias", "cls.predictions.decoder.bias")

    def last(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.dense(name, x)


class OriginalNames(HuggingFaceNames):
    """Variables of a TensorFlow checkpoint: kernels lie [in, out], the weights of last layers [out, in]."""

    _LAST = {"cls.seq_relationship": "cls/seq_relationship/", "classifier": "", "qa_outputs": "cls/squad/"}

    def get(self, *candidates: str) -> np.ndarray:
        return super().get(*(f"bert/{name}" for name in candidates), *candidates)

    def table(self, name: str) -> np.ndarray:
        return self.get(f"embeddings/{name}")

    def dense(self, name: str, x: np.ndarray) -> np.ndarray:
        name = name.replace("layer.", "layer_").replace(".", "/")
        return x @ self.get(f"{name}/kernel") + self.get(f"{name}/bias")

    def norm(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        name = name.replace("layer.", "layer_").replace(".", "/")
        return self.get(f"{name}/gamma"), self.get(f"{name}/beta")

    def mlm_bias(self) -> np.ndarray:
        return self.get("cls/predictions/output_bias")

    def last(self, name: str, x: np.ndarray) -> np.ndarray:
        start = self._LAST[name]
        return x @ self.get(f"{start}output_weights").T + self.get(f"{start}output_bias")


def straight_outputs(
    named: HuggingFaceNames, config: ModelConfig, batch: Mapping[str, np.ndarray], parts: frozenset[str], head: Head
) -> dict[str, np.ndarray]:
    """Outputs of the model that the tensors make; ``parts`` of it are there."""

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        scale, bias = named.norm(name)
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.layer_norm_eps) * scale + bias

    def activation(x: np.ndarray) -> np.ndarray:
        if config.activation == "relu":
            return np.maximum(x, 0)
        if config.activation == "gelu":
            return x * (1 + _erf(x / math.sqrt(2))) / 2
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    def attention(name: str, x: np.ndarray) -> np.ndarray:
        q, k, v = (  # [B, H, L, head_dim]
            named.dense(f"{name}.self.{kind}", x).reshape(*x.shape[:2], config.num_heads, -1).swapaxes(1, 2)
            for kind in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1]) + (batch["attention_mask"] - 1.0)[:, None, None] * 10_000
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        return named.dense(f"{name}.output.dense", mixed.swapaxes(1, 2).reshape(x.shape))

    words = named.table("word_embeddings")
    ids = batch["input_ids"]
    x = words[ids] + named.table("position_embeddings")[: ids.shape[1]]
    x = norm("embeddings.LayerNorm", x + named.table("token_type_embeddings")[batch["token_type_ids"]])
    for i in range(config.num_layers):
        layer = f"encoder.layer.{i}"
        x = norm(f"{layer}.attention.output.LayerNorm", x + attention(f"{layer}.attention", x))
        wide = activation(named.dense(f"{layer}.intermediate.dense", x))
        x = norm(f"{layer}.output.LayerNorm", x + named.dense(f"{layer}.output.dense", wide))
    outputs = {"sequence": x}
    if "pooler" in parts:
        outputs["pooled"] = np.tanh(named.dense("pooler.dense", x[:, 0]))
    if "mlm_head" in parts:
        hidden = activation(named.dense("cls.predictions.transform.dense", x))
        hidden = norm("cls.predictions.transform.LayerNorm", hidden)
        outputs["mlm_logits"] = hidden @ words.T + named.mlm_bias()
    if "nsp_head" in parts and "pooler" in parts:
        outputs["nsp_logits"] = named.last("cls.seq_relationship", outputs["pooled"])
    if "classifier" in parts and (read := outputs.get(_read_by_classifier(head))) is not None:
        outputs["logits"] = named.last("classifier", read)
    if "qa_outputs" in parts:
        outputs["qa_logits"] = named.last("qa_outputs", x)
    return outputs


def _read_by_classifier(head: Head) -> str:
    return "sequence" if head.architecture == "BertForTokenClassification" else "pooled"


@functools.partial(jax.jit, static_argnames=("config", "head"))
def module_outputs(params: Any, config: ModelConfig, batch: Mapping[str, np.ndarray], head: Head) -> dict[str, Any]:
    """Return the same outputs from the modules of ``models``, for those parts that ``params`` has."""
    rows, length = batch["input_ids"].shape
    everywhere = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    vectors = _read_by_classifier(head)
    parts = [one for one in (POOLER, LM_HEAD) if one.name in params]
    if "pooler" in params and "nsp_head" in params:
        parts.append(NSP_HEAD)
    if "classifier" in params and (vectors == "sequence" or "pooler" in params):
        parts.append(Part.of("classifier", Classifier, num_outputs=head.num_outputs, vectors=vectors))
    if "qa_outputs" in params:
        parts.append(Part.of("qa_outputs", Classifier, num_outputs=2, vectors="sequence", logits="qa_logits"))
    model = Model(config, tuple(parts))
    return model.apply({"params": params}, {**batch, "masked_positions": everywhere})  # type: ignore[return-value]


def check_outputs(named: HuggingFaceNames, params: Any, config: ModelConfig, head: Head, advice: str) -> str:
    """Compare both on fixed random tokens, one row padded; a line that says how far apart they are.

    Raises:
      UserError: they are not the same model. ``advice`` ends the message.
    """
    config = dataclasses.replace(config, dtype="float32", layers="unrolled", remat="none")
    batch = probe_batch(config)
    expected = straight_outputs(named, config, batch, frozenset(params), head)
    found = module_outputs(params, config, batch, head)
    worst = 0.0
    for name, value in expected.items():
        theirs, ours = _real(value, batch), _real(np.asarray(found[name]), batch)
        error = np.abs(theirs - ours.reshape(theirs.shape)).max() / max(np.abs(theirs).max(), 1.0)
        if not error <= TOLERANCE:
            raise UserError(f"the tensors make another model than ours ({name} differs by {error:.1e}); {advice}")
        worst = max(worst, float(error))
    return f"probe: {', '.join(expected)} equal those of a numpy BERT on the file's tensors within {worst:.0e}"


def _real(x: np.ndarray, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Without the positions that are padding, whose outputs mean nothing."""
    mask = batch["attention_mask"] > 0
    return x[mask] if x.ndim == 3 and x.shape[:2] == mask.shape else x


def probe_batch(config: ModelConfig) -> dict[str, np.ndarray]:
    """Two rows of random tokens, the second with padding."""
    rng = np.random.default_rng(0)
    length = min(16, config.max_length)
    mask = np.arange(length)[None] < np.array([[length], [max(1, length * 3 // 4)]])
    return {
        "input_ids": rng.integers(0, config.vocab_size, (2, length), np.int32),
        "token_type_ids": rng.integers(0, getattr(config, "type_vocab_size", 1), (2, length), np.int32),
        "attention_mask": mask.astype(np.int32),
    }
