"""The attributes of a trained model that vectors of texts and filled masks are computed from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, Self

from bert_jax.features.sentence_vectors import SentenceVectors
from bert_jax.models.config import ModelConfig
from bert_jax.text.tokenizer import Tokenizer


class TextModel(Protocol):
    """A trained model with its tokenizer; ``interchange.trained_model.TrainedModel`` says what the attributes are."""

    @property
    def params(self) -> Mapping[str, Any]: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def facts(self) -> Mapping[str, Any]: ...

    @property
    def vectors(self) -> SentenceVectors: ...

    def with_parts(self, parts: Collection[str]) -> Self: ...
