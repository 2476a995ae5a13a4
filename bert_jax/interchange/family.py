"""The base class of encoder families: the classes, tensor names and ``config.json`` of one encoder in transformers.

Each family is a file in ``interchange/families``.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from bert_jax import catalogue, configuration
from bert_jax.errors import UserError
from bert_jax.interchange import names
from bert_jax.interchange.names import Entry
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import encoder_file

PACKAGE = "interchange.families"
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


class Family(abc.ABC):
    """A kind of encoder in transformers. ``interchange/families/<encoder>.py`` defines a subclass named ``Family``.

    Class attributes of a family:
      name: the beginning of the family's class names, such as "Bert".
      title: the family's name in a sentence.
      model_type: the ``model_type`` in ``config.json``.
      prefix: the prefix of the encoder's tensors in a model that has a head.
      classes: the end of a class name -> the parts of our tree that a model of the class has.
      fields: a key of ``config.json`` -> the field of the encoder's ``Config`` that holds the same value.
      defaults: the values of keys that older files leave out.
      decoder: the name of the MLM decoder. Its weights are the word embeddings, of which a file may hold a second copy.
      classifier_dropout: the key of ``config.json`` for the dropout rate before the classifier.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    model_type: ClassVar[str]
    prefix: ClassVar[str]
    classes: ClassVar[Mapping[str, tuple[str, ...]]]
    fields: ClassVar[Mapping[str, str]]
    defaults: ClassVar[Mapping[str, float]]
    decoder: ClassVar[str]
    classifier_dropout: ClassVar[str] = "classifier_dropout"

    @property
    def encoder(self) -> str:
        """The name of the encoder, which is also the name of the file of this family."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def architectures(self) -> dict[str, tuple[str, ...]]:
        """Full name of each transformers class -> the parts of our tree that a model of the class has."""
        return {f"{self.name}{ending}": parts for ending, parts in self.classes.items()}

    @abc.abstractmethod
    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        """Return an entry for every tensor that a file of the class ``architecture`` may hold."""

    def entries(self, num_layers: int, architecture: str = "", pad_id: int = 0) -> Iterator[Entry]:
        """Yield the entries of ``map``. An entry with ``{i}`` is replaced by one entry per layer."""
        return names.written_out(self.map(architecture, pad_id), num_layers)

    def modern(self, name: str) -> str:
        """Return the current name of a tensor, given a name that may be outdated or lack the family's prefix."""
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        return f"{self.prefix}{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name

    def folded(
        self, tensors: dict[str, np.ndarray], theirs: Mapping[str, Any], where: str
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Return the tensors of the file as our modules have them, and lines that say what was added to what.

        Args:
          tensors: the tensors under their current names.
          theirs: the content of ``config.json``.
          where: the folder's name for error messages.
        """
        del theirs, where
        return tensors, ()

    @property
    def redundant(self) -> tuple[str, ...]:
        """The names of tensors that an import ignores if a file has them: copies of other tensors, and buffers."""
        return f"{self.prefix}embeddings.position_ids", f"{self.decoder}.weight", f"{self.decoder}.bias"

    @property
    def decoder_bias(self) -> str:
        """The name of the MLM output bias. Some files store it only as ``<decoder>.bias``."""
        return f"{self.decoder.rpartition('.')[0]}.bias"

    @abc.abstractmethod
    def outputs(
        self,
        tensors: Mapping[str, np.ndarray],
        config: Any,
        batch: Mapping[str, np.ndarray],
        parts: frozenset[str],
        architecture: str,
    ) -> dict[str, np.ndarray]:
        """Return the model's outputs, computed in numpy from the tensors of a file, independently of our modules.

        Args:
          tensors: the tensors under the names that they have in the file.
          parts: the parts of our tree whose outputs are wanted.
          architecture: the model's class in transformers.
        """

    def to_config(self, config: Any, pad_id: int) -> dict[str, Any]:
        """Return the fields of ``config.json`` that describe the encoder."""
        return {
            "model_type": self.model_type,
            **{theirs: getattr(config, ours) for theirs, ours in self.fields.items()},
            "hidden_act": ACTIVATIONS[config.activation],
            "pad_token_id": pad_id,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
        }

    def from_config(self, theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
        """Return our config for a model whose ``config.json`` has the content ``theirs``.

        Args:
          where: the folder's name for error messages.
          file: the file's name for error messages.

        Raises:
          UserError: the model is not of this family, or has a feature that our modules do not have.
        """
        if theirs.get("position_embedding_type", "absolute") != "absolute":
            raise UserError(
                f"{where} has {theirs['position_embedding_type']} positions; only absolute ones can be read"
            )
        activations = {name: ours for ours, name in ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu_tanh"}
        activation = str(theirs.get("hidden_act", "gelu"))
        if activation not in activations:
            raise UserError(f"{where} has hidden_act {activation!r}; known: {', '.join(activations)}")
        missing = [name for name in self.fields if name not in theirs and name not in self.defaults]
        if missing:
            raise UserError(f"{where}/{file} has no {', '.join(missing)}: it is not of the {self.title} family")
        values = {ours: theirs.get(name, self.defaults.get(name)) for name, ours in self.fields.items()}
        values |= {"activation": activations[activation]}
        try:
            return configuration.build(encoder_file(self.encoder).Config, self.adapted(values, theirs), "config")  # type: ignore[no-any-return]
        except UserError as error:
            raise UserError(f"{where}/{file} does not describe a model of the {self.title} family: {error}") from error

    def adapted(self, values: dict[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values`` for our config, corrected where ``theirs`` uses a name with another meaning."""
        del theirs
        return values


@functools.cache
def families() -> dict[str, Family]:
    """Return a dict: name of an encoder -> its family."""
    found = catalogue.parts(PACKAGE, having="Family")
    return {name: catalogue.find(PACKAGE, name).Family() for name in found}


def family_of(encoder: str) -> Family:
    """Return the family of an encoder. Raises ``UserError`` if transformers has no class for the encoder."""
    if encoder not in families():
        raise UserError(
            f"models of the encoder {encoder!r} cannot be exported: transformers has no class for it; models of "
            f"{', '.join(families())} can be exported"
        )
    return families()[encoder]


def family_with(architecture: str) -> Family:
    """Return the family that has the class ``architecture``.

    Raises ``UserError`` if no family has the class; the message suggests the nearest name.
    """
    known = {name: family for family in families().values() for name in family.architectures}
    return configuration.choose("architecture", architecture, known)


def family_described(theirs: Mapping[str, Any], where: str) -> Family:
    """Return the family that ``config.json`` names, or BERT's if it names none.

    Args:
      theirs: the content of ``config.json``.
      where: the folder's name for error messages.

    Raises:
      UserError: no family has this ``model_type``.
    """
    by_type = {family.model_type: family for family in families().values()}
    kind = theirs.get("model_type", "bert")
    if not isinstance(kind, str) or kind not in by_type:
        raise UserError(f"{where} is a {kind!r} model; readable model types: {', '.join(sorted(by_type))}")
    return by_type[kind]
