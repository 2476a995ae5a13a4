"""Models: an encoder and the heads on it."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng
from bert_jax.models.heads import Classifier, Head
from bert_jax.parts import catalogue
from bert_jax.records import Batch

_Named: TypeAlias = Literal["Pooler", "LmHead", "TokenHead"]
BERT = "bert"  # the encoder of a recorded model that does not name its encoder
IDS = ("input_ids", "attention_mask")  # the features that every encoder reads
QUERIES = "query_positions"  # the feature that an encoder with two streams reads (``objectives.permuted``)


class Part(NamedTuple):
    """A head of a model, with the name of its parameters in the tree.

    Attributes:
      head: the head's class, or a name: then it is the class of that name in the encoder's own file. Every encoder has
        a "Pooler" and an "LmHead"; ``token_head`` says which have a "TokenHead".
      options: the fields of the head besides ``config``, as (name, value) pairs.
    """

    name: str
    head: type[Head] | _Named
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, name: str, head: type[Head] | _Named, **options: Any) -> Part:
        """Return the part with this name, head and options of the head."""
        return cls(name, head, tuple(options.items()))


class EncoderPart(NamedTuple):
    """A part of a model that is an encoder with heads of its own, such as the generator beside a discriminator.

    It shares the embeddings of the model's encoder, and these parameters learn from both encoders. ``Model`` does not
    run this part; an objective does, on rows that the objective chooses (``apply``).

    Attributes:
      name: the name of its parameters in the tree, and the site of its dropout.
      config: the settings of its encoder, whose embeddings are as wide as the embeddings of the model's encoder.
      parts: its heads.
    """

    name: str
    config: ModelConfig
    parts: tuple[Part, ...]

    def of_vocabulary(self, size: int) -> EncoderPart:
        """Return this part for a vocabulary of ``size`` pieces."""
        return self._replace(config=dataclasses.replace(self.config, vocab_size=size))

    def init(self, rng: Any, batch: Batch) -> dict[str, Any]:
        """Return newly initialised parameters: ``encoder`` without its embeddings, and a tree for each head."""
        rng = jax.random.fold_in(rng, zlib.crc32(self.name.encode()))
        params = Model(self.config, self.parts).init(rng, batch)["params"]
        if _SHARED not in params["encoder"]:
            raise UserError(
                f"encoder {self.config.encoder!r} has no parameters named {_SHARED!r}, which it would share with "
                f"{self.name!r}; take another config.model.encoder"
            )
        return {**params, "encoder": {name: x for name, x in params["encoder"].items() if name != _SHARED}}

    def whole(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return all that this encoder and its heads read, from the parameters of the model: ``encoder`` and heads."""
        own = params[self.name]
        return {**own, "encoder": {**own["encoder"], _SHARED: params["encoder"][_SHARED]}}

    def apply(self, params: Mapping[str, Any], batch: Batch, rng: RowRng | None = None) -> dict[str, jax.Array]:
        """Return the outputs of this part for a batch, from the parameters of the model (see ``Model``)."""
        model = Model(self.config, self.parts)
        return model.apply({"params": self.whole(params)}, batch, rng and rng.site(self.name))  # type: ignore[return-value]


_SHARED = "embeddings"
POOLER, LM_HEAD = Part.of("pooler", "Pooler"), Part.of("mlm_head", "LmHead")
# Labels of NSP: 0 true next segment, 1 random segment. Labels of SOP: 0 in the order of the text, 1 otherwise.
NSP_HEAD = Part.of("nsp_head", Classifier, num_outputs=2, logits="nsp_logits")
SOP_HEAD = Part.of("sop_head", Classifier, num_outputs=2, logits="sop_logits")


class Model(nn.Module):
    """An encoder and heads on it. The parameters are ``encoder`` and a tree for each part, under the part's name.

    Attributes:
      parts: the heads in order; each reads the outputs of the parts before it and adds its own outputs.
      trains_encoder: if False, the encoder's vectors are treated as data: no dropout inside the encoder, no gradient
        into it.
    """

    config: ModelConfig
    parts: tuple[Part, ...] = ()
    trains_encoder: bool = True

    def setup(self) -> None:
        self.encoder = encoder_of(self.config)
        for name, head, options in self.parts:
            setattr(self, name, head_class(self.config, head)(self.config, **dict(options)))

    def __call__(self, batch: Batch, rng: RowRng | None = None) -> dict[str, jax.Array]:
        """Return the outputs for a batch; the encoder and each part read the features that they need.

        Args:
          batch: features with ``input_ids`` [B, L], or [B, C, L] if a row has C sequences; then every output is [B, C,
            ...].
          rng: the randomness of dropout. If None, there is no dropout.

        Returns:
          ``sequence`` [B, L, D], the outputs that the parts add and, if the batch has them, the encoder's arrays of
          memory.
        """
        *rows, length = batch["input_ids"].shape
        if len(rows) == 2:
            flat = {name: x.reshape(-1, length) for name, x in _inputs_of(self.config, batch).items()}
            batch = {**batch, **flat}
            rng = rng and rng.repeat(rows[1])  # a sequence keeps its randomness wherever its row is computed
        outputs = self._outputs(batch, rng)
        return {name: x.reshape(*rows, *x.shape[1:]) for name, x in outputs.items()} if len(rows) == 2 else outputs

    def _outputs(self, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        hidden = any(head_class(self.config, part.head).reads_hidden for part in self.parts)
        encoding = self.encoder(batch, rng if self.trains_encoder else None, "all" if hidden else "last")
        if not self.trains_encoder:
            encoding = jax.lax.stop_gradient(encoding)
        outputs = {name: x for name, x in encoding._asdict().items() if x is not None}
        outputs |= outputs.pop("past", {})
        for part in self.parts:
            outputs |= getattr(self, part.name)(outputs, batch, rng)
        return {name: x for name, x in outputs.items() if name not in ("word_embeddings", "hidden")}


def encoder_file(name: str) -> ModuleType:
    """Return the module ``models.encoders.<name>``.

    Raises ``UserError``, which suggests the nearest name, if there is no such module.
    """
    return catalogue.find("models.encoders", name, having="Encoder")


def encoder_of(config: ModelConfig) -> nn.Module:
    """Return the encoder that ``config`` describes."""
    return encoder_file(config.encoder).Encoder(config)  # type: ignore[no-any-return]


def has_queries(encoder: str) -> bool:
    """Return whether an encoder has a second stream, which predicts tokens at positions without reading them there."""
    return QUERIES in getattr(encoder_file(encoder).Encoder, "reads_if_given", ())


def token_head(config: ModelConfig) -> tuple[Part, ...]:
    """Return the part that transforms the vectors of tokens before a classifier of tokens, if the encoder has one."""
    return (Part.of("token_head", "TokenHead"),) if hasattr(encoder_file(config.encoder), "TokenHead") else ()


def _inputs_of(config: ModelConfig, batch: Batch) -> dict[str, Any]:
    """Return the features of ``batch`` that the encoder of ``config`` reads."""
    reads = encoder_file(config.encoder).Encoder.reads
    return {name: x for name, x in batch.items() if name in IDS or name in reads}


def config_facts(config: ModelConfig) -> dict[str, Any]:
    """Return ``config`` as a dictionary, in the form stored in the facts (the metadata) of a checkpoint.

    ``attention_kernel`` is left out: it is a choice for one machine, and whoever reads the model may have another.
    """
    fields = dataclasses.asdict(config)
    fields.pop("attention_kernel", None)
    return {"encoder": config.encoder, **fields}


def config_of(facts: Mapping[str, Any]) -> ModelConfig:
    """Return the config that ``config_facts`` stored in ``facts``."""
    kind = encoder_file(facts["encoder"]).Config
    return configuration.build(kind, facts, "model", also=("encoder",))  # type: ignore[no-any-return]


def fresh_params(config: ModelConfig) -> dict[str, Any]:
    """Return newly initialised parameters of the encoder and its pretraining heads, without logical axis names."""
    names = (*IDS, *encoder_file(config.encoder).Encoder.reads, "masked_positions", "cls_positions")
    batch = {name: jnp.zeros((1, 1), jnp.int32) for name in names}
    model = Model(config, (POOLER, LM_HEAD, NSP_HEAD))
    return nn.unbox(jax.jit(model.init)(jax.random.key(0), batch)["params"])  # type: ignore[no-any-return]


def shapes_of(model: Model, features: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the shapes of the outputs of a model for one token, and of its parameters; nothing is computed.

    ``features``: the features that its heads read besides those of the encoder.
    """
    names = {*IDS, *encoder_file(model.config.encoder).Encoder.reads, *features}
    batch = {name: jnp.zeros((1, 1), jnp.int32) for name in names}
    outputs, variables = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), batch))
    return outputs, nn.unbox(variables)["params"]


def head_class(config: ModelConfig, head: type[Head] | str) -> type[Head]:
    """Return the class of a part's head. ``head`` is the class, or the name of a class in the encoder's file."""
    return getattr(encoder_file(config.encoder), head) if isinstance(head, str) else head


def heads_of(config: ModelConfig, part: Part | EncoderPart) -> list[type[Head]]:
    """Return the classes of the heads of a part, of a model with ``config``."""
    if isinstance(part, EncoderPart):
        return [head_class(part.config, one.head) for one in part.parts]
    return [head_class(config, part.head)]
