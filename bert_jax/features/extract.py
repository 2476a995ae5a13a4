"""Runs a stream of texts through a frozen encoder, in batches of similar length that are split over the mesh."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.encoding import ItemEncoder, TextTokens, padded_length
from bert_jax.features.inputs import Item
from bert_jax.features.layers import LAST_FOUR, LAYERS, TOP_ONLY, check_depth, check_layers, layer_weights
from bert_jax.interchange.initial import load_initial
from bert_jax.interchange.workdir import load_trained
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import encoder_of
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig

WINDOW_BATCHES = 16  # a window has the texts of so many batches, which are sorted by length together
WINDOW_BYTES = 128 << 20  # limit for the vectors of the texts of a window


class Encoder(NamedTuple):
    """A trained encoder with its tokenizer, loaded from any kind of model."""

    params: Any  # numpy tree of ``encoder_of(config)``, layers unrolled
    config: ModelConfig
    tokenizer: Tokenizer
    weights: tuple[float, ...] | None = None  # layer weights, if a feature_tagging model has learned them


def load_encoder(workdir: str | None, init: str | None, step: int | None = None) -> Encoder:
    """Return the encoder of a run's workdir (the best checkpoint of a fine-tuned run), or of a model in ``init``.

    ``init`` takes the same values as the flag ``--init``.

    Raises:
      UserError: neither or both of ``workdir`` and ``init`` are given, or there is no model.
    """
    if (workdir is None) == (init is None):
        raise UserError("give either --workdir=DIR, a run of ours, or --init=DIR, a Hugging Face directory")
    if workdir is not None:
        trained = load_trained(workdir, step)
        return Encoder(trained.params["encoder"], trained.config, trained.tokenizer, learned_weights(trained.params))
    assert init is not None
    if step is not None:
        raise UserError("--step goes with --workdir; write --init=WORKDIR@step")
    initial = load_initial(init)
    return Encoder(initial.params["encoder"], initial.model, initial.tokenizer, learned_weights(initial.params))


def learned_weights(params: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Return the layer weights that a feature_tagging model has learned, the lowest layer first; None for other models.

    The weights are gamma * softmax(w).
    """
    if "layer_mix" not in params:
        return None
    logits = np.asarray(params["layer_mix"]["weights"], np.float64)
    shares = np.exp(logits - logits.max())
    return tuple((float(params["layer_mix"]["scale"]) * shares / shares.sum()).tolist())


@dataclasses.dataclass(frozen=True)
class TextFeatures:
    """A text with its tokens and vectors."""

    item: Item
    tokens: TextTokens
    vectors: dict[str, np.ndarray]  # layer -> [T, ...] for each token, or [D] for the text


@dataclasses.dataclass
class ReadCounts:
    """Counts of the texts and tokens that were read so far."""

    texts: int = 0
    tokens: int = 0
    positions: int = 0  # positions in all batches, padding included
    cut_texts: int = 0
    cut_tokens: int = 0

    def add(self, tokens: TextTokens) -> None:
        self.texts += 1
        self.tokens += len(tokens.input_ids)
        self.cut_texts += bool(tokens.num_cut)
        self.cut_tokens += tokens.num_cut


class Extractor:
    """Computes vectors of texts, without dropout, and returns them in the order of the texts.

    The vectors do not depend on the number of devices.
    """

    def __init__(
        self,
        encoder: Encoder,
        layers: Sequence[str],
        max_length: int | None = None,
        batch_size: int = 32,
        dtype: Literal["float32", "float16"] = "float32",
        weights: Sequence[float] | None = None,
        devices: list[jax.Device] | None = None,
    ):
        """
        Args:
          max_length: the most tokens of a text, special tokens included; longer texts are cut. None means as many as
            the model can read.
          batch_size: the number of texts in a batch, rounded up to a multiple of the number of devices.
          weights: the layer weights of weighted sums, the lowest layer first. None means the weights that
            a feature_tagging model has learned, or equal weights for any other model.

        Raises:
          UserError: the model does not have such layers, needs another number of weights, or cannot read such a length.
        """
        config = encoder.config
        self.layers, self.max_length = tuple(layers), max_length or config.max_length
        check_layers(self.layers)
        check_depth(self.layers, config.num_layers)
        if not 4 <= self.max_length <= config.max_length:
            raise UserError(f"max_length is {self.max_length}; from 4 to the model's {config.max_length} is allowed")
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; at least 1 is needed")
        if jax.process_count() > 1:
            raise UserError("vectors are written by one process; start one, with all the devices of its machine")
        self.counts = ReadCounts()
        self.dtype = np.dtype(dtype)
        self._encode = ItemEncoder(encoder.tokenizer, self.max_length)
        self._mesh = meshes.make_mesh(MeshConfig(), devices)
        self._shards = self._mesh.shape["data"]
        self._batch_size = -(-batch_size // self._shards) * self._shards
        self._params = jax.device_put(encoder.params, meshes.replicated(self._mesh))
        chosen = tuple((name, _weights(name, encoder, weights)) for name in self.layers)
        self._apply = functools.partial(read_layers, config, chosen, dtype)
        self.shapes = {name: vector_shape(name, config) for name in self.layers}
        self._token_bytes = sum(math.prod(shape) for shape in self.shapes.values()) * self.dtype.itemsize

    def run(self, items: Iterable[Item]) -> Iterator[TextFeatures]:
        """Yield the vectors of each item, in order. Only one window of vectors is in memory at a time."""
        window: list[tuple[Item, TextTokens]] = []
        num_bytes = 0
        for item in items:
            tokens = self._encode(item)
            self.counts.add(tokens)
            window.append((item, tokens))
            num_bytes += self._token_bytes * len(tokens.input_ids)
            is_full = len(window) % self._batch_size == 0 and num_bytes >= WINDOW_BYTES
            if is_full or len(window) >= WINDOW_BATCHES * self._batch_size:
                yield from self._window(window)
                window, num_bytes = [], 0
        yield from self._window(window)

    def _window(self, window: Sequence[tuple[Item, TextTokens]]) -> Iterator[TextFeatures]:
        order = np.argsort([len(tokens.input_ids) for _, tokens in window], kind="stable")
        found: list[dict[str, np.ndarray]] = [{} for _ in window]
        for start in range(0, len(window), self._batch_size):
            rows = order[start : start + self._batch_size]
            for row, vectors in zip(rows, self._batch([window[row][1] for row in rows]), strict=True):
                found[row] = vectors
        for (item, tokens), vectors in zip(window, found, strict=True):
            yield TextFeatures(item, tokens, vectors)

    def _batch(self, texts: Sequence[TextTokens]) -> Iterator[dict[str, np.ndarray]]:
        longest = max(len(tokens.input_ids) for tokens in texts)
        length = padded_length(longest, self.max_length)
        rows = _rows(len(texts), self._shards, self._batch_size)
        self.counts.positions += rows * length
        batch = {name: np.zeros((rows, length), np.int32) for name in ("input_ids", "token_type_ids", "attention_mask")}
        for i, tokens in enumerate(texts):
            n = len(tokens.input_ids)
            batch["input_ids"][i, :n] = tokens.input_ids
            batch["token_type_ids"][i, :n] = tokens.token_type_ids
            batch["attention_mask"][i, :n] = 1
        with meshes.activations(self._mesh):
            outputs = jax.device_get(self._apply(self._params, meshes.to_devices(batch, self._mesh)))
        for i, tokens in enumerate(texts):
            n = len(tokens.input_ids)
            # Copies: a view would keep the whole batch in memory.
            yield {
                name: outputs[name][i].copy() if LAYERS[name].is_sentence else outputs[name][i, :n].copy()
                for name in self.layers
            }


def vector_shape(name: str, config: ModelConfig) -> tuple[int, ...]:
    """Return the shape of one vector of the layer ``name``."""
    if name == "all":
        return (config.num_layers + 1, config.hidden_size)
    return ((LAST_FOUR if name == "concat_last_four" else 1) * config.hidden_size,)


def _weights(name: str, encoder: Encoder, given: Sequence[float] | None) -> tuple[float, ...]:
    learned = encoder.weights
    weighted = LAYERS[name].weighted
    if given is None and learned is not None and weighted is not None:
        fits = len(learned) == (weighted or encoder.config.num_layers)
        given = learned if fits else None
    return layer_weights(name, encoder.config.num_layers, given)


def _rows(wanted: int, shards: int, most: int) -> int:
    """Return the number of rows to use for a batch of ``wanted`` texts.

    The result takes only a few values, so that few shapes are compiled.
    """
    rows = shards
    while rows < wanted:
        rows *= 2
    return min(rows, most)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def read_layers(
    config: ModelConfig,
    layers: tuple[tuple[str, tuple[float, ...]], ...],
    dtype: str,
    params: Any,
    batch: Mapping[str, jax.Array],
) -> dict[str, jax.Array]:
    """Return vectors by layer, [B, L, ...] or [B, D], of a batch of ids [B, L]. ``layers`` has names and weights."""
    top = {name for name, _ in layers} <= set(TOP_ONLY)
    read: Any = encoder_of(config).apply({"params": params}, batch, hidden_states="last" if top else "all")
    hidden, mask = jnp.asarray(read.sequence[None] if top else read.hidden, jnp.float32), batch["attention_mask"]
    return {
        name: LAYERS[name].of(hidden, mask, jnp.asarray(given, jnp.float32)).astype(dtype) for name, given in layers
    }
