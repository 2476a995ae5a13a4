"""What transformers has of one kind of encoder: classes, names, ``config.json``. A family is a file of ``families``."""

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
    """``Family`` of ``interchange/families/<encoder>.py``.

    Class attributes of a family:
      name: what its classes begin with, such as "Bert".
      title: its name in a sentence.
      model_type: of ``config.json``.
      prefix: of the encoder's tensors under a head.
      classes: the end of a class's name -> the parts of our tree that it has.
      fields: ``config.json``'s name of each number of the encoder's ``Config``.
      defaults: of the numbers that older files leave out.
      decoder: the name of the tied decoder, of which a file may hold a copy.
      classifier_dropout: ``config.json``'s name of it.
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
        """The name of the encoder, which is that of the family's file."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def architectures(self) -> dict[str, tuple[str, ...]]:
        """The classes of transformers by their whole names, with the parts of our tree that they have."""
        return {f"{self.name}{ending}": parts for ending, parts in self.classes.items()}

    @abc.abstractmethod
    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        """Return the names of all parts that ``architecture`` can be read beside."""

    def entries(self, num_layers: int, architecture: str = "", pad_id: int = 0) -> Iterator[Entry]:
        """Yield the names of ``map``, layers written out."""
        return names.written_out(self.map(architecture, pad_id), num_layers)

    def modern(self, name: str) -> str:
        """Return the present name of a tensor of an older file; encoders saved without the prefix get it."""
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        return f"{self.prefix}{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name

    @property
    def redundant(self) -> tuple[str, ...]:
        """Names of copies of other tensors, and of buffers, that a file may hold beside the model."""
        return f"{self.prefix}embeddings.position_ids", f"{self.decoder}.weight", f"{self.decoder}.bias"

    @property
    def decoder_bias(self) -> str:
        """The name of the decoder's bias, which some files have as that of the decoder alone."""
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
        """Return in numpy the outputs of the model that the tensors of a file make, by the file's own names."""

    def to_config(self, config: Any, pad_id: int) -> dict[str, Any]:
        """Return what ``config.json`` says of an encoder."""
        return {
            "model_type": self.model_type,
            **{theirs: getattr(config, ours) for theirs, ours in self.fields.items()},
            "hidden_act": ACTIVATIONS[config.activation],
            "pad_token_id": pad_id,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
        }

    def from_config(self, theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
        """Return our config. Raises ``UserError`` for a model that is not quite of this family."""
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
        """Return the fields of our config where they differ from the values in theirs."""
        del theirs
        return values


@functools.cache
def families() -> dict[str, Family]:
    """Return every family by the name of its encoder."""
    found = catalogue.parts(PACKAGE, having="Family")
    return {name: catalogue.find(PACKAGE, name).Family() for name in found}


def family_of(encoder: str) -> Family:
    """Return the family of an encoder. Raises ``UserError`` for one that transformers has no class for."""
    if encoder not in families():
        raise UserError(
            f"no class of transformers is known for the encoder {encoder!r}, so its models stay here; those of "
            f"{', '.join(families())} can be exported"
        )
    return families()[encoder]


def family_with(architecture: str) -> Family:
    """Return the family that has a class of transformers. Raises ``UserError`` with the nearest name for none."""
    known = {name: family for family in families().values() for name in family.architectures}
    return configuration.choose("architecture", architecture, known)


def family_described(theirs: Mapping[str, Any], where: str) -> Family:
    """Return the family that ``config.json`` names; BERT's where it names none."""
    by_type = {family.model_type: family for family in families().values()}
    kind = theirs.get("model_type", "bert")
    if kind not in by_type:
        raise UserError(f"{where} is a {kind!r} model; those of model_type {', '.join(sorted(by_type))} can be read")
    return by_type[kind]
