"""Runs texts through a frozen encoder: vectors of tokens and of texts, in the order of the texts.

The layers are named as in Devlin et al. 2019, table 7.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configuration import choose
from bert_jax.errors import UserError
from bert_jax.features.inputs import Item
from bert_jax.features.sentence_vectors import SentenceVectors
from bert_jax.features.text_model import TextModel
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import NEEDED, combine, pool
from bert_jax.models.model import encoder_of
from bert_jax.rows.example_rows import EncodedRows, pair_sequences
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training import mesh as meshes
from bert_jax.training.forward import Forward
from bert_jax.training.mesh import MeshConfig

WINDOW_BATCHES = 16  # a window has the texts of so many batches, which are sorted by length together
WINDOW_BYTES = 128 << 20  # limit for the vectors of the texts of a window
# These layers give a vector for each text, all other layers a vector for each token. "sentence" is the vector that
# ``vectors`` of the model describes: the files of the model, or its training, say how it is made.
SENTENCE = ("mean", "cls", "sentence")
LAYERS = ("embeddings", "second_to_last", "last", "sum_last_four", "concat_last_four", "all", *SENTENCE)


@dataclasses.dataclass(frozen=True)
class TextTokens:
    """The T tokens of one text, including ``[CLS]`` and ``[SEP]``."""

    input_ids: np.ndarray  # [T] int32
    token_type_ids: np.ndarray  # [T] int32
    offsets: np.ndarray  # [T, 2] int32: characters [start, stop) of the text (or pair); (0, 0) for special tokens
    word_ids: np.ndarray  # [T] int32: the number of the token's word, from 0; -1 for special tokens
    num_cut: int = 0  # the number of tokens left out because the text was too long


def encode_item(tokenizer: Tokenizer, item: Item, max_length: int) -> TextTokens:
    """Return an item's tokens, at most ``max_length``: ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]``."""
    encoded = tokenizer.encode(item.text, item.pair)
    num_cut = max(0, len(encoded.input_ids) - max_length)
    if num_cut:
        encoded = tokenizer.encode(item.text, item.pair, max_length)
    offsets = _int32(encoded.offsets)
    inside = offsets[:, 1] > offsets[:, 0]
    # The first token always begins a word, even if the tokenizer says otherwise (after a mark that it drops).
    word_ids = np.where(inside, np.maximum(np.cumsum(encoded.word_starts) - 1, 0), -1).astype(np.int32)
    return TextTokens(_int32(encoded.input_ids), _int32(encoded.token_type_ids), offsets, word_ids, num_cut)


def _int32(values: Sequence[object]) -> np.ndarray:
    return np.asarray(values, np.int32)


@dataclasses.dataclass(frozen=True)
class TextFeatures:
    """A text with its tokens and vectors."""

    item: Item
    tokens: TextTokens
    vectors: dict[str, np.ndarray]  # layer -> [T, ...] for each token, or [D] for the text


class Extractor:
    """Computes vectors of texts, without dropout. They do not depend on the number of devices.

    Attributes:
      counts: the number of ``texts`` and ``tokens`` read so far, of ``cut_texts`` and of ``cut_tokens``.
    """

    def __init__(
        self,
        model: TextModel,
        layers: Sequence[str],
        max_length: int | None = None,
        batch_size: int = 32,
        dtype: Literal["float32", "float16"] = "float32",
        devices: list[jax.Device] | None = None,
    ):
        """
        Args:
          layers: names of ``LAYERS``.
          max_length: the most tokens of a text, special tokens included; longer texts are cut. None means as many as
            the model can read or, if all layers are vectors of texts, as ``vectors`` of the model says.
          batch_size: the number of texts in a batch, rounded up to a multiple of the number of devices.

        Raises:
          UserError: the model does not have such layers, or cannot read such a length.
        """
        config, vectors = model.config, model.vectors
        check_layers(layers, config.num_layers)
        usual = vectors.max_length if {*layers} <= {*SENTENCE} else None
        usual = min(usual or config.max_length, config.max_length)
        self.model, self.layers, self.max_length = model, tuple(layers), usual if max_length is None else max_length
        self._sentence, self.size = vectors, vectors.size(model.params, config.hidden_size)
        self._prompt = vectors.prompt() if "sentence" in layers else ""
        if not 4 <= self.max_length <= config.max_length:
            raise UserError(f"max_length is {self.max_length}; from 4 to the model's {config.max_length} is allowed")
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; at least 1 is needed")
        if jax.process_count() > 1:
            raise UserError("vectors are written by one process; start one, with all the devices of its machine")
        self.counts = Counter(texts=0, tokens=0, cut_texts=0, cut_tokens=0)
        self.dtype, self._batch_size = np.dtype(dtype), batch_size
        mesh = meshes.make_mesh(MeshConfig(), devices)
        params = {name: model.params[name] for name in ("encoder", *vectors.dense_parts())}
        self._params = jax.device_put(params, meshes.replicated(mesh))
        self._forward = Forward(functools.partial(_read_layers, config, self.layers, dtype, vectors), mesh, batch_size)
        widths = {"all": config.num_layers + 1, "concat_last_four": 4}
        self._token_bytes = sum(widths.get(name, 1) for name in layers) * config.hidden_size * self.dtype.itemsize

    def run(self, items: Iterable[Item]) -> Iterator[TextFeatures]:
        """Return the vectors of each item, in order, as an iterator."""
        return itertools.chain.from_iterable(self.windows(items))

    def windows(self, items: Iterable[Item]) -> Iterator[list[TextFeatures]]:
        """Yield the vectors of each item, in order, in lists of limited size, each computed when it is asked for."""
        window: list[tuple[Item, TextTokens]] = []
        num_bytes = 0
        for given in items:
            item = dataclasses.replace(given, text=self._lower(self._prompt + given.text), pair=self._lower(given.pair))
            tokens = encode_item(self.model.tokenizer, item, self.max_length)
            self.counts.update(texts=1, tokens=len(tokens.input_ids))
            self.counts.update(cut_texts=bool(tokens.num_cut), cut_tokens=tokens.num_cut)
            window.append((item, tokens))
            num_bytes += self._token_bytes * len(tokens.input_ids)
            is_full = len(window) % self._batch_size == 0 and num_bytes >= WINDOW_BYTES
            if is_full or len(window) >= WINDOW_BATCHES * self._batch_size:
                yield self._vectors(window)
                window, num_bytes = [], 0
        if window:
            yield self._vectors(window)

    def _vectors(self, window: Sequence[tuple[Item, TextTokens]]) -> list[TextFeatures]:
        names = ("input_ids", "token_type_ids")
        rows = EncodedRows.of({name: [getattr(tokens, name) for _, tokens in window] for name in names}, {})
        vectors: dict[int, dict[str, np.ndarray]] = {}
        for chosen, outputs in self._read(rows, self._prompt):
            for place, row in enumerate(chosen):
                # Copies: a view would keep the whole batch in memory.
                vectors[row] = {
                    name: outputs[name][place][: None if name in SENTENCE else rows.lengths[row]].copy()
                    for name in self.layers
                }
        return [TextFeatures(item, tokens, vectors[row]) for row, (item, tokens) in enumerate(window)]

    def texts(
        self, texts: Sequence[str], prompt: str | None = None, progress: Callable[[int], None] = lambda done: None
    ) -> np.ndarray:
        """Return a vector for each text, [N, E], in order; the extractor's only layer gives vectors of whole texts.

        Args:
          prompt: is put before each text. None means the model's default prompt, if the layer is "sentence".
          progress: is called after each batch with the number of texts that are done.
        """
        tokenizer, [layer], prompt = self.model.tokenizer, self.layers, self._prompt if prompt is None else prompt
        read = [self._lower(prompt + text) for text in texts]
        rows = EncodedRows.of(pair_sequences(tokenizer, read, [None] * len(texts), self.max_length), {})
        size = self.size if layer == "sentence" else self.model.config.hidden_size
        vectors, done = np.empty((len(texts), size), self.dtype), 0
        for chosen, outputs in self._read(rows, prompt):
            vectors[chosen] = outputs[layer]
            done += len(chosen)
            progress(done)
        return vectors

    def _read(self, rows: EncodedRows, prompt: str) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yield (numbers of rows, vectors by layer); ``prompt`` begins the text of every row."""
        skipped = 0
        if prompt and not self._sentence.include_prompt:
            [ids] = self.model.tokenizer.encode_batch([self._lower(prompt)])
            skipped = 1 + len(ids)  # [CLS] and the prompt
        return self._forward.rows(rows, self.max_length, {"params": self._params, "skipped": np.int32(skipped)})

    def _lower(self, text: Any) -> Any:
        return text.lower() if text and self._sentence.lowercase else text


def check_layers(names: Sequence[str], num_layers: int | None = None) -> None:
    """Raise ``UserError`` if a name is unknown or given twice, or there is no name.

    If ``num_layers`` is given, also raise it if a name needs more layers than ``num_layers``.
    """
    for name in names:
        choose("layer", name, dict.fromkeys(LAYERS))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not names:
        raise UserError(
            f"layers names {', '.join(twice) or 'none'}{' twice' * bool(twice)}; allowed: {', '.join(LAYERS)}"
        )
    if num_layers is not None and (lacking := [name for name in names if NEEDED.get(name, 0) > num_layers]):
        allowed = ", ".join(name for name in LAYERS if NEEDED.get(name, 0) <= num_layers)
        raise UserError(f"the model has {num_layers} layers, too few for {', '.join(lacking)}; allowed: {allowed}")


def _read_layers(
    config: ModelConfig,
    layers: tuple[str, ...],
    dtype: str,
    sentence: SentenceVectors,
    variables: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
) -> dict[str, jax.Array]:
    """Return vectors by layer, [B, L, ...] or [B, D], of a batch of ids [B, L].

    "all" is [B, L, N + 1, D], the embeddings first. "sentence" does not pool the first tokens, of which ``variables``
    has the number as ``skipped`` beside the model's ``params``.
    """
    hidden = _hidden(config, {*layers} <= {"last", *SENTENCE}, variables["params"]["encoder"], batch)
    return _vectors_of(layers, dtype, sentence, variables, (hidden, batch["attention_mask"]))


# Compiled apart from what reads its layers, so that another pooling compiles no encoder again.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _hidden(config: ModelConfig, top: bool, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Return the outputs of the layers, [N + 1, B, L, D] with the embeddings first; if ``top``, of the last layer."""
    encoded: Any = encoder_of(config).apply({"params": params}, batch, hidden_states="last" if top else "all")
    return jnp.asarray(encoded.sequence[None] if top else encoded.hidden, jnp.float32)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _vectors_of(
    layers: tuple[str, ...],
    dtype: str,
    sentence: SentenceVectors,
    variables: Mapping[str, Any],
    states: tuple[jax.Array, jax.Array],
) -> dict[str, jax.Array]:
    hidden, attention_mask = states

    def vectors(name: str) -> jax.Array:
        if name == "sentence":
            pooled = attention_mask * (jnp.arange(hidden.shape[2]) >= variables["skipped"])[None]
            return sentence.of_tokens(variables["params"], hidden[-1], pooled)
        if name in SENTENCE:
            return pool(hidden[-1], attention_mask, name)  # type: ignore[arg-type]
        if name == "all":
            return jnp.moveaxis(hidden, 0, 2)
        return combine(name, hidden)

    return {name: vectors(name).astype(dtype) for name in layers}
