"""A model as ``bert_jax.load`` returns it: vectors of texts, filled masks, and the parts that it is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.extract import Encoder, Extractor, TextFeatures
from bert_jax.features.fill_mask import Filled, fill_mask
from bert_jax.features.inputs import Item
from bert_jax.interchange.initial import load_initial
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import Pooling
from bert_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, repr=False)
class LoadedModel:
    """A trained model with its tokenizer. All methods run without dropout.

    Attributes:
      params: numpy tree, one entry for each part (``encoder``, ``mlm_head``, ...), layers unrolled.
      config: the architecture: number of layers, hidden size and so on.
      pooling: what ``encode`` does by default: as the model was trained, else "mean".
    """

    source: str
    params: Mapping[str, Any]
    config: ModelConfig
    tokenizer: Tokenizer
    pooling: Pooling = "mean"

    def __repr__(self) -> str:
        c = self.config
        return (
            f"LoadedModel({self.source!r}: {c.encoder}, {c.num_layers} layers of {c.hidden_size}, "
            f"{self.tokenizer.size:,} pieces, at most {c.max_length} tokens; parts: {', '.join(self.params)})"
        )

    def encode(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
    ) -> np.ndarray:
        """Return a vector for each text, float32 [number of texts, D].

        Args:
          pooling: "mean": the mean of the last layer's vectors over the tokens of a text; "cls": that of ``[CLS]``.
            None means as the model was trained to do, else "mean".
          max_length: the most tokens of a text, special tokens included; longer texts are cut. None means as many as
            the model can read.
          batch_size: the number of texts that are computed together.

        Raises:
          UserError: a text is no string, or an argument is not allowed.
        """
        layer = pooling or self.pooling
        if layer not in ("mean", "cls"):
            raise UserError(f"pooling is {pooling!r}; allowed: 'mean', 'cls'")
        found = [one.vectors[layer] for one in self._read(texts, layer, max_length, batch_size)]
        return np.stack(found) if found else np.zeros((0, self.config.hidden_size), np.float32)

    def hidden_states(
        self, texts: Iterable[str], *, max_length: int | None = None, batch_size: int = 32
    ) -> list[np.ndarray]:
        """Return the outputs of every layer for each text, float32 [N + 1, T, D], the embeddings first.

        The T tokens of a text are those of ``tokenizer.encode(text)``, ``[CLS]`` and ``[SEP]`` included.

        Args:
          max_length, batch_size: see ``encode``.

        Raises:
          UserError: a text is no string, or an argument is not allowed.
        """
        found = self._read(texts, "all", max_length, batch_size)  # [T, N + 1, D] each
        return [np.ascontiguousarray(one.vectors["all"].swapaxes(0, 1)) for one in found]

    def fill_mask(self, text: str, *, best: int = 5) -> Filled:
        """Return the ``best`` most likely words for each ``[MASK]`` of ``text``, with their probabilities.

        Raises:
          UserError: the text has no mask or is too long, or the model has no masked-LM head or reads left to right.
        """
        if not isinstance(text, str):
            raise UserError(f"text is a {type(text).__name__}; one string with a [MASK] is needed")
        if best < 1:
            raise UserError(f"best is {best}; at least 1 is needed")
        [filled] = fill_mask(self.params, self.config, self.tokenizer, [text], best)
        return filled

    def _read(
        self, texts: Iterable[str], layer: str, max_length: int | None, batch_size: int
    ) -> Iterator[TextFeatures]:
        if isinstance(texts, str):
            raise UserError(f"texts is one string; a list of strings is needed: [{texts[:40]!r}]")
        if not isinstance(texts, Iterable):
            raise UserError(f"texts is {texts!r}; a list of strings is needed")
        texts = list(texts)
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise UserError(f"texts has {wrong[0]!r} of type {type(wrong[0]).__name__}; a list of strings is needed")
        encoder = Encoder(self.params["encoder"], self.config, self.tokenizer)
        extractor = Extractor(encoder, [layer], max_length, batch_size)
        return extractor.run(Item(str(number), text) for number, text in enumerate(texts))


def load_model(source: str) -> LoadedModel:
    """Return the model at ``source``, which takes the same values as the flag ``--init``.

    Raises:
      UserError: there is no model, or it cannot be read.
    """
    initial = load_initial(source, flag="")
    task = initial.facts.get("task") or {}
    pooling: Pooling = task["pooling"] if task.get("name") == "sentence_embeddings" else "mean"
    return LoadedModel(source, initial.params, initial.model, initial.tokenizer, pooling)
