"""Runs texts through a frozen encoder: vectors of tokens and of texts, in the order of the texts."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from bert_jax.errors import UserError
from bert_jax.features.encoding import ItemEncoder, TextTokens
from bert_jax.features.inputs import Item
from bert_jax.features.layers import LAYERS, TOP_ONLY, check_depth, check_layers, layer_weights, vector_shape, vectors
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import encoder_of
from bert_jax.rows.encoded import EncodedRows
from bert_jax.tasks.base import pair_sequences
from bert_jax.training import mesh as meshes
from bert_jax.training.forward import Forward
from bert_jax.training.mesh import MeshConfig

if TYPE_CHECKING:
    from bert_jax.features.trained_model import TrainedModel

WINDOW_BATCHES = 16  # a window has the texts of so many batches, which are sorted by length together
WINDOW_BYTES = 128 << 20  # limit for the vectors of the texts of a window


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
    cut_texts: int = 0
    cut_tokens: int = 0

    def add(self, tokens: TextTokens) -> None:
        self.texts += 1
        self.tokens += len(tokens.input_ids)
        self.cut_texts += bool(tokens.num_cut)
        self.cut_tokens += tokens.num_cut


class Extractor:
    """Computes vectors of texts, without dropout. They do not depend on the number of devices."""

    def __init__(
        self,
        model: TrainedModel,
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
        config = model.config
        self.layers, self.max_length = tuple(layers), max_length or config.max_length
        check_layers(self.layers)
        check_depth(self.layers, config.num_layers)
        if not 4 <= self.max_length <= config.max_length:
            raise UserError(f"max_length is {self.max_length}; from 4 to the model's {config.max_length} is allowed")
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; at least 1 is needed")
        if jax.process_count() > 1:
            raise UserError("vectors are written by one process; start one, with all the devices of its machine")
        self.counts, self.dtype, self._batch_size = ReadCounts(), np.dtype(dtype), batch_size
        self._tokenizer, self._encode = model.tokenizer, ItemEncoder(model.tokenizer, self.max_length)
        mesh = meshes.make_mesh(MeshConfig(), devices)
        self._params = jax.device_put(model.params["encoder"], meshes.replicated(mesh))
        chosen = tuple((name, _weights(name, model, weights)) for name in self.layers)
        self._forward = Forward(functools.partial(read_layers, config, chosen, dtype), mesh, batch_size)
        self.shapes = {name: vector_shape(name, config) for name in self.layers}
        self._token_bytes = sum(math.prod(shape) for shape in self.shapes.values()) * self.dtype.itemsize

    @property
    def padding(self) -> float:
        """The share of the positions read so far that were padding."""
        return 1 - self.counts.tokens / max(self._forward.positions, 1)

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
        names = ("input_ids", "token_type_ids")
        rows = EncodedRows.of({name: [getattr(tokens, name) for _, tokens in window] for name in names}, {})
        found: dict[int, dict[str, np.ndarray]] = {}
        lengths = rows.lengths
        for chosen, outputs in self._forward.rows(rows, self.max_length, self._params):
            for place, row in enumerate(chosen):
                # Copies: a view would keep the whole batch in memory.
                mine = {name: outputs[name][place] for name in self.layers}
                found[row] = {
                    name: (value if LAYERS[name].is_sentence else value[: lengths[row]]).copy()
                    for name, value in mine.items()
                }
        for row, (item, tokens) in enumerate(window):
            yield TextFeatures(item, tokens, found.pop(row))

    def texts(self, texts: Sequence[str], progress: Callable[[int], None] = lambda done: None) -> np.ndarray:
        """Return one vector for each text, [N, D], in order; the extractor's only layer is one of whole texts.

        ``progress`` is called after each batch with the number of texts that are done.
        """
        [(layer, shape)] = self.shapes.items()
        rows = EncodedRows.of(pair_sequences(self._tokenizer, texts, [None] * len(texts), self.max_length), {})
        found, done = np.empty((len(texts), *shape), self.dtype), 0
        for chosen, outputs in self._forward.rows(rows, self.max_length, self._params):
            found[chosen] = outputs[layer]
            done += len(chosen)
            progress(done)
        return found


def learned_weights(params: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Return the layer weights that a feature_tagging model has learned, the lowest layer first; None for other models.

    The weights are gamma * softmax(w).
    """
    if "layer_mix" not in params:
        return None
    shares = special.softmax(np.asarray(params["layer_mix"]["weights"], np.float64))
    return tuple((float(params["layer_mix"]["scale"]) * shares).tolist())


def _weights(name: str, model: TrainedModel, given: Sequence[float] | None) -> tuple[float, ...]:
    learned = learned_weights(model.params)
    weighted = LAYERS[name].weighted
    if given is None and learned is not None and weighted is not None:
        fits = len(learned) == (weighted or model.config.num_layers)
        given = learned if fits else None
    return layer_weights(name, model.config.num_layers, given)


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
    hidden = jnp.asarray(read.sequence[None] if top else read.hidden, jnp.float32)
    return {name: vectors(name, hidden, batch["attention_mask"], weights).astype(dtype) for name, weights in layers}
