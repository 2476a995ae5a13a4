"""The keys of ``config.model``, checked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import BERT, encoder_file
from bert_jax.parts import catalogue

# Keys that change how the model is computed, not what it learns. An objective says what reads ``attention``.
_FREE_KEYS = ("remat", "attention_kernel", "attention")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The model that a recipe describes.

    Attributes:
      config: the config of the encoder, for as many pieces as the vocabulary is expected to have.
      keys: the keys of ``config.model`` as the recipe gives them.
    """

    config: ModelConfig
    keys: Mapping[str, Any]

    @classmethod
    def of(cls, keys: Mapping[str, Any], vocabulary_size: int) -> Architecture:
        """Return the model that the ``keys`` of ``config.model`` describe.

        Raises ``UserError`` for an encoder, a size or a key that does not exist, or a wrong value.
        """
        encoder = keys.get("encoder", BERT)
        fields = {"vocab_size": vocabulary_size} | _fields(keys)
        config = configuration.build(encoder_file(encoder).Config, fields, "config.model", also=("encoder", "size"))
        if config.encoder != encoder:  # later, only the config says which encoder it is
            raise UserError(
                f"{catalogue.display_name(str(encoder))} imports its Config, which is that of the encoder "
                f"{config.encoder!r}: derive a class Config of its own from it"
            )
        return cls(config, keys)

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """The fields of the encoder's ``Config`` that the recipe sets, by naming a size or the fields themselves."""
        return _fields(self.keys)

    @property
    def of_size(self) -> Mapping[str, Any]:
        """The fields that the size of the recipe sets."""
        sizes: Mapping[str, Mapping[str, Any]] = encoder_file(self.config.encoder).SIZES
        return sizes.get(self.keys.get("size", ""), {})

    def with_vocabulary(self, size: int) -> ModelConfig:
        """Return the config for a vocabulary of ``size`` pieces, unless the recipe says how many embeddings it has."""
        return dataclasses.replace(self.config, vocab_size=self.given.get("vocab_size", size))

    def identity(self) -> dict[str, Any]:
        """Return the keys that a resumed run may not change, with the encoder's default for each that is not given."""
        tree = {"encoder": BERT, **configuration.defaults(type(self.config)), **self.keys}
        return configuration.without(tree, *_FREE_KEYS)


def _fields(keys: Mapping[str, Any]) -> dict[str, Any]:
    size = keys.get("size")
    sizes = encoder_file(keys.get("encoder", BERT)).SIZES
    fields = configuration.choose("model size", size, sizes) if size else {}
    return {**fields, **configuration.without(keys, "encoder", "size")}
