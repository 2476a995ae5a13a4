"""A second implementation of every family, in numpy: it computes outputs from the tensors of a file, under the file's
names.

It shares no code with the modules in ``models`` or with the maps of the families. Therefore a mistake in a map (a
transposed kernel, two tensors exchanged, the name of another layer) makes the outputs differ. Written after Devlin et
al. 2019 and modeling.py of google-research/bert.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from bert_jax.interchange.architectures import HeadClass
from bert_jax.models.config import ModelConfig
from tests.interchange.numpy_gpt import gpt_outputs
from tests.interchange.numpy_layers import activated, mixed_values, normalised
from tests.interchange.numpy_xlnet import xlnet_outputs
from tests.interchange.outputs import eager_outputs, random_batch, read_by_classifier

TOLERANCE = 1e-4  # relative to the largest output; the order of float32 sums matters less


def assert_same_outputs(tensors: Mapping[str, np.ndarray], params: Any, config: ModelConfig, head: HeadClass) -> None:
    """Check that our modules, with ``params``, and the numpy model of the file's ``tensors`` give the same outputs."""
    config = dataclasses.replace(config, dtype="float32", layers="unrolled", remat="none")
    batch = random_batch(config)
    expected = numpy_outputs(tensors, config, batch, frozenset(params), head.architecture)
    found = eager_outputs(params, config, batch, head)
    real = batch["attention_mask"] > 0
    assert set(expected) == set(found)
    for name, theirs in expected.items():
        ours = np.asarray(found[name]).reshape(theirs.shape)
        if theirs.ndim == 3:  # outputs at padding have no meaning
            ours, theirs = ours[real], theirs[real]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * max(np.abs(theirs).max(), 1.0), err_msg=name)


class HuggingFaceNames:
    """Finds the tensors of a safetensors file by the names of BERT's modules. A Linear's weight is [out, in].

    A name is found with or without the prefix; the tensors of a layer norm also under their older names gamma and beta.

    Args:
      prefix: the prefix of the encoder's tensors.
      renamed: a module's name in BERT -> its name in another family.
      first_position: the row of the position table for the first position. A negative number counts from the table's
        end.
    """

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        prefix: str = "bert.",
        renamed: Mapping[str, str] = MappingProxyType({}),
        first_position: int = 0,
    ):
        self._tensors, self._prefix, self._renamed, self._first = tensors, prefix, renamed, first_position

    def get(self, *candidates: str) -> np.ndarray:
        """Return the tensor under the first of ``candidates`` that the file has, with or without the prefix."""
        found = (self._tensors.get(f"{prefix}{name}") for name in candidates for prefix in (self._prefix, ""))
        return next(array for array in found if array is not None)

    def table(self, name: str) -> np.ndarray:
        """Return an embedding table."""
        return self.get(f"embeddings.{name}.weight")

    def positions(self, length: int) -> np.ndarray:
        """Return the position embeddings of the first ``length`` positions."""
        table = self.table("position_embeddings")
        return table[self._first % len(table) :][:length]

    def dense(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return x W + b for the dense layer ``name``."""
        name = self._renamed.get(name, name)
        return x @ self.get(f"{name}.weight").T + self.get(f"{name}.bias")

    def norm(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the scale and the bias of the layer norm ``name``."""
        name = self._renamed.get(name, name)
        return self.get(f"{name}.weight", f"{name}.gamma"), self.get(f"{name}.bias", f"{name}.beta")

    def mlm_bias(self) -> np.ndarray:
        """Return the bias [V] of the MLM decoder."""
        name = self._renamed.get("cls.predictions", "cls.predictions")
        return self.get(f"{name}.bias", f"{name}.decoder.bias")

    def last(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return x W + b for the output layer ``name``."""
        return self.dense(name, x)

    def pooled(self, x: np.ndarray) -> np.ndarray:
        """Return the pooled vectors [B, D] for the vectors x [B, D] of the first tokens."""
        return np.tanh(self.dense("pooler.dense", x))


class OriginalNames(HuggingFaceNames):
    """Finds the variables of a TensorFlow checkpoint by the names of BERT's modules.

    Kernels are [in, out], except for the kernels of output layers, which are [out, in].
    """

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


def reference_outputs(
    named: HuggingFaceNames,
    config: ModelConfig,
    batch: Mapping[str, np.ndarray],
    parts: frozenset[str],
    architecture: str,
) -> dict[str, np.ndarray]:
    """Return the model's outputs by name, computed from the tensors in ``named``.

    Args:
      batch: ``input_ids``, ``token_type_ids`` and ``attention_mask``, each [B, L].
      parts: the parts of the model whose outputs are computed.
      architecture: the model's class in transformers, which determines the input of its classifier.
    """

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return normalised(x, *named.norm(name), config.layer_norm_eps)

    def activation(x: np.ndarray) -> np.ndarray:
        return activated(x, config.activation)

    def attention(name: str, x: np.ndarray) -> np.ndarray:
        q, k, v = (named.dense(f"{name}.self.{kind}", x) for kind in ("query", "key", "value"))
        mixed = mixed_values(q, k, v, config.num_heads, batch["attention_mask"])
        return named.dense(f"{name}.output.dense", mixed)

    words = named.table("word_embeddings")
    ids = batch["input_ids"]
    x = words[ids] + named.positions(ids.shape[1])
    x = norm("embeddings.LayerNorm", x + named.table("token_type_embeddings")[batch["token_type_ids"]])
    if config.embedding_size != config.hidden_size:
        x = named.dense("embeddings_project", x)
    for i in range(config.num_layers):
        layer = f"encoder.layer.{i}"
        x = norm(f"{layer}.attention.output.LayerNorm", x + attention(f"{layer}.attention", x))
        wide = activation(named.dense(f"{layer}.intermediate.dense", x))
        x = norm(f"{layer}.output.LayerNorm", x + named.dense(f"{layer}.output.dense", wide))
    outputs = {"sequence": x}
    if "pooler" in parts:
        outputs["pooled"] = named.pooled(x[:, 0])
    if "mlm_head" in parts:
        hidden = activation(named.dense("cls.predictions.transform.dense", x))
        hidden = norm("cls.predictions.transform.LayerNorm", hidden)
        outputs["mlm_logits"] = hidden @ words.T + named.mlm_bias()
    if "discriminator_head" in parts:
        hidden = activation(named.dense("discriminator_predictions.dense", x))
        outputs["replaced_logits"] = named.dense("discriminator_predictions.dense_prediction", hidden)[..., 0]
    if "nsp_head" in parts and "pooler" in parts:
        outputs["nsp_logits"] = named.last("cls.seq_relationship", outputs["pooled"])
    if "classifier" in parts and (read := outputs.get(read_by_classifier(architecture))) is not None:
        outputs["logits"] = named.last("classifier", read)
    if "qa_outputs" in parts:
        outputs["qa_logits"] = named.last("qa_outputs", x)
    return outputs


_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"


def _albert(
    tensors: Mapping[str, np.ndarray],
    config: Any,
    batch: Mapping[str, np.ndarray],
    parts: frozenset[str],
    architecture: str,
) -> dict[str, np.ndarray]:
    own = {name.removeprefix("albert."): array for name, array in tensors.items()}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ own[f"{name}.weight"].T + own[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return normalised(x, own[f"{name}.weight"], own[f"{name}.bias"], config.layer_norm_eps)

    ids = batch["input_ids"]
    words, positions, types = (own[f"embeddings.{of}_embeddings.weight"] for of in ("word", "position", "token_type"))
    narrow = norm("embeddings.LayerNorm", words[ids] + positions[: ids.shape[1]] + types[batch["token_type_ids"]])
    x = linear("encoder.embedding_hidden_mapping_in", narrow)
    for _ in range(config.num_layers):
        q, k, v = (linear(f"{_LAYER}.attention.{kind}", x) for kind in ("query", "key", "value"))
        mixed = mixed_values(q, k, v, config.num_heads, batch["attention_mask"])
        x = norm(f"{_LAYER}.attention.LayerNorm", x + linear(f"{_LAYER}.attention.dense", mixed))
        wide = activated(linear(f"{_LAYER}.ffn", x), config.activation)
        x = norm(f"{_LAYER}.full_layer_layer_norm", x + linear(f"{_LAYER}.ffn_output", wide))
    found = {"sequence": x}
    if "pooler" in parts:
        found["pooled"] = np.tanh(linear("pooler", x[:, 0]))
    if "mlm_head" in parts:
        hidden = norm("predictions.LayerNorm", activated(linear("predictions.dense", x), config.activation))
        found["mlm_logits"] = hidden @ words.T + own.get("predictions.bias", own.get("predictions.decoder.bias"))
    if "sop_head" in parts and "pooler" in parts:
        found["sop_logits"] = linear("sop_classifier.classifier", found["pooled"])
    if "classifier" in parts and (read := found.get(read_by_classifier(architecture))) is not None:
        found["logits"] = linear("classifier", read)
    if "qa_outputs" in parts:
        found["qa_logits"] = linear("qa_outputs", x)
    return found


def _modernbert(
    tensors: Mapping[str, np.ndarray],
    config: Any,
    batch: Mapping[str, np.ndarray],
    parts: frozenset[str],
    architecture: str,
) -> dict[str, np.ndarray]:
    """Written after modeling_modernbert.py of transformers; every third layer from the first on sees all."""
    own = {name.removeprefix("model."): array for name, array in tensors.items()}
    ids, mask = batch["input_ids"], batch["attention_mask"]
    places = np.arange(ids.shape[1])
    far = np.abs(places[:, None] - places[None]) > config.local_attention // 2
    width = config.hidden_size // config.num_heads

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return normalised(x, own[f"{name}.weight"], np.zeros(1), config.layer_norm_eps)

    def turned(x: np.ndarray, base: float) -> np.ndarray:
        """Each pair (j, j + width / 2) as a complex number, multiplied by one of length 1."""
        x = x.reshape(*ids.shape, config.num_heads, width)
        turns = np.exp(1j * places[:, None] * base ** (-np.arange(0, width, 2) / width))[None, :, None]
        pairs = (x[..., : width // 2] + 1j * x[..., width // 2 :]) * turns
        return np.concatenate([pairs.real, pairs.imag], axis=-1).astype(np.float32)

    def attention(name: str, x: np.ndarray, is_global: bool) -> np.ndarray:
        query, key, value = np.split(x @ own[f"{name}.Wqkv.weight"].T, 3, axis=-1)
        query, key = (turned(v, config.global_theta if is_global else config.local_theta) for v in (query, key))
        scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(width)
        scores -= 10_000 * ((mask == 0)[:, None, None] | (far & (not is_global))[None, None])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("bhqk,bkhd->bqhd", weights, value.reshape(*ids.shape, -1, width)).reshape(x.shape)
        return mixed @ own[f"{name}.Wo.weight"].T

    def head(x: np.ndarray) -> np.ndarray:
        return norm("head.norm", activated(x @ own["head.dense.weight"].T, config.activation))

    x = norm("embeddings.norm", own["embeddings.tok_embeddings.weight"][ids])
    for i in range(config.num_layers):
        layer = f"layers.{i}"
        x = x + attention(f"{layer}.attn", norm(f"{layer}.attn_norm", x) if i else x, i % config.global_every == 0)
        first, gate = np.split(norm(f"{layer}.mlp_norm", x) @ own[f"{layer}.mlp.Wi.weight"].T, 2, axis=-1)
        x = x + (activated(first, config.activation) * gate) @ own[f"{layer}.mlp.Wo.weight"].T
    found = {"sequence": norm("final_norm", x)}
    weights = mask[..., None] / mask.sum(1)[:, None, None]
    if "pooler" in parts:
        of_text = (
            (found["sequence"] * weights).sum(1) if config.classifier_pooling == "mean" else found["sequence"][:, 0]
        )
        found["pooled"] = head(of_text.astype(np.float32))
    if "token_head" in parts:
        found["sequence"] = head(found["sequence"])
    if "mlm_head" in parts:
        logits = head(found["sequence"]) @ own["embeddings.tok_embeddings.weight"].T
        found["mlm_logits"] = logits + own["decoder.bias"]
    last = {"classifier": ("logits", read_by_classifier(architecture)), "qa_outputs": ("qa_logits", "sequence")}
    for part, (name, read) in last.items():
        if part in parts and read in found:
            found[name] = found[read] @ own["classifier.weight"].T + own["classifier.bias"]
    return found


class _ErnieNames(HuggingFaceNames):
    """Finds tensors by the names of BERT's modules; every position has the embedding of task 0, if there is one."""

    def positions(self, length: int) -> np.ndarray:
        tasks = (array for name, array in self._tensors.items() if name.endswith("task_type_embeddings.weight"))
        return super().positions(length) + next((array[0] for array in tasks), 0)


class _DistilBertNames(HuggingFaceNames):
    """Finds tensors by the names of BERT's modules; there are no token types, and texts are pooled with ReLU."""

    _OF_LAYER = MappingProxyType(
        {
            "attention.self.query": "attention.q_lin",
            "attention.self.key": "attention.k_lin",
            "attention.self.value": "attention.v_lin",
            "attention.output.dense": "attention.out_lin",
            "attention.output.LayerNorm": "sa_layer_norm",
            "intermediate.dense": "ffn.lin1",
            "output.dense": "ffn.lin2",
            "output.LayerNorm": "output_layer_norm",
        }
    )

    def __init__(self, tensors: Mapping[str, np.ndarray], config: ModelConfig):
        renamed = {
            f"encoder.layer.{i}.{of_bert}": f"transformer.layer.{i}.{own}"
            for i in range(config.num_layers)
            for of_bert, own in self._OF_LAYER.items()
        }
        head = {"transform.dense": "vocab_transform", "transform.LayerNorm": "vocab_layer_norm"}
        renamed |= {f"cls.predictions.{of_bert}": own for of_bert, own in head.items()}
        super().__init__(tensors, "distilbert.", {**renamed, "cls.predictions": "vocab_projector"})

    def table(self, name: str) -> np.ndarray:
        return np.zeros((1, 1)) if name == "token_type_embeddings" else super().table(name)

    def pooled(self, x: np.ndarray) -> np.ndarray:
        return np.maximum(self.dense("pre_classifier", x), 0)


class _ElectraNames(HuggingFaceNames):
    """Finds tensors by the names of BERT's modules; texts are pooled with a GELU."""

    def __init__(self, tensors: Mapping[str, np.ndarray], architecture: str):
        renamed = {
            "cls.predictions.transform.dense": "generator_predictions.dense",
            "cls.predictions.transform.LayerNorm": "generator_predictions.LayerNorm",
            "cls.predictions": "generator_lm_head",
            "pooler.dense": "sequence_summary.summary",
        }
        if architecture.endswith("ForSequenceClassification"):
            renamed |= {"pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}
        super().__init__(tensors, "electra.", renamed)

    def pooled(self, x: np.ndarray) -> np.ndarray:
        return activated(self.dense("pooler.dense", x), "gelu")


def _roberta_names(tensors: Mapping[str, np.ndarray], config: ModelConfig, architecture: str) -> HuggingFaceNames:
    renamed = {
        "cls.predictions.transform.dense": "lm_head.dense",
        "cls.predictions.transform.LayerNorm": "lm_head.layer_norm",
        "cls.predictions": "lm_head",
    }
    if architecture.endswith("ForSequenceClassification"):
        renamed |= {"pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}
    return HuggingFaceNames(tensors, "roberta.", renamed, first_position=-config.max_length)


def numpy_outputs(
    tensors: Mapping[str, np.ndarray],
    config: Any,
    batch: Mapping[str, np.ndarray],
    parts: frozenset[str],
    architecture: str,
) -> dict[str, np.ndarray]:
    """Return the outputs of a model by name, computed from the tensors of a safetensors file or TensorFlow checkpoint.

    Args:
      parts: the parts of our tree whose outputs are wanted.
      architecture: the model's class in transformers.
    """
    if config.encoder == "modernbert":
        return _modernbert(tensors, config, batch, parts, architecture)
    if config.encoder in ("gpt", "gpt2"):
        return gpt_outputs(tensors, config, batch, parts)
    if config.encoder == "xlnet":
        return xlnet_outputs(tensors, config, batch, parts)
    if config.encoder == "albert":
        return _albert(tensors, config, batch, parts, architecture)
    if config.encoder == "roberta":
        batch = {**batch, "token_type_ids": np.zeros_like(batch["input_ids"])}
        named = _roberta_names(tensors, config, architecture)
    elif config.encoder == "distilbert":
        named = _DistilBertNames(tensors, config)
    elif config.encoder == "electra":
        named = _ElectraNames(tensors, architecture)
    elif "bert/embeddings/word_embeddings" in tensors:
        named = OriginalNames(tensors)
    else:
        named = (_ErnieNames if config.encoder == "ernie" else HuggingFaceNames)(tensors, f"{config.encoder}.")
    return reference_outputs(named, config, batch, parts, architecture)
