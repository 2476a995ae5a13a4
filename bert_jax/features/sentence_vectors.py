"""Describes how a model makes one vector of a text: the layer that is read, the pooling, and the steps after it.

The steps have the names that sentence-transformers gives them, whose folders ``interchange.sentence_files`` reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from bert_jax.configuration import nearest
from bert_jax.errors import UserError
from bert_jax.models.heads import DEFAULT_POOLING, Pooling, pool

Activation = Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
ACTIVATIONS: Mapping[Activation, Callable[[jax.Array], jax.Array]] = {
    "identity": lambda x: x,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
}
# The prompts that a search puts before its queries and documents: the first name that the model has.
QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")


@dataclasses.dataclass(frozen=True)
class Step:
    """A step after the pooling: a dense layer and its activation, or the division of a vector by its length.

    Attributes:
      dense: the part of the model's parameters that has the layer's ``kernel`` [in, out] and ``bias`` [out], if any;
        "" for the division.
    """

    dense: str = ""
    activation: Activation = "identity"

    def __str__(self) -> str:
        return f"{self.dense} ({self.activation})" if self.dense else "length 1"


@dataclasses.dataclass(frozen=True)
class SentenceVectors:
    """How the vector of a text is made.

    Attributes:
      pooling: how the vectors of tokens become one vector; the results of several poolings are joined.
      truncate_dim: how many values of the vector are kept; None: all.
      max_length: the most tokens of a text, special tokens included; None: as many as the model can read.
      lowercase: whether a text is converted to lower case before the tokenizer reads it.
      prompts: (name, text) of each prompt that can be put before a text.
      default_prompt: the name of the prompt that is put before a text if no prompt is named.
      include_prompt: whether the tokens of the prompt, and ``[CLS]`` before it, are pooled too.
      similarity: how two vectors are compared.
    """

    pooling: tuple[Pooling, ...] = (DEFAULT_POOLING,)
    steps: tuple[Step, ...] = ()
    truncate_dim: int | None = None
    max_length: int | None = None
    lowercase: bool = False
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None
    include_prompt: bool = True
    similarity: Similarity = "cosine"

    def __str__(self) -> str:
        parts = [f"{' + '.join(self.pooling)} pooling", *(f"then {step}" for step in self.steps)]
        parts += [f"the first {self.truncate_dim} values"] if self.truncate_dim else []
        parts += [f"at most {self.max_length:,} tokens"] if self.max_length else []
        parts += ["in lower case"] if self.lowercase else []
        default = f" ({self.default_prompt} by default)" if self.default_prompt else ""
        named = [f"{name} {text!r}" for name, text in self.prompts if text]
        parts += [f"prompts {', '.join(named)}{default}"] if named else []
        return ", ".join(parts)

    def prompt(self, name: str | None = None) -> str:
        """Return the prompt ``name``, or the default prompt, "" if there is none. Raises ``UserError`` for a name."""
        name, prompts = self.default_prompt if name is None else name, dict(self.prompts)
        if name is None:
            return ""
        if name not in prompts:
            known = nearest(str(name), prompts) if prompts else "the model has none: put the text before yours"
            raise UserError(f"prompt_name is {name!r}; {known}")
        return prompts[name]

    def of_role(self, names: tuple[str, ...]) -> str:
        """Return the first prompt of ``names`` that the model has and that is not empty; "" if it has none."""
        return next((text for name in names if (text := dict(self.prompts).get(name))), "")

    def dense_parts(self) -> list[str]:
        """Return the names of the parts of the model's parameters that ``of_tokens`` reads."""
        return [step.dense for step in self.steps if step.dense]

    def size(self, params: Mapping[str, Any], hidden_size: int) -> int:
        """Return the number of values of a vector. Raises ``UserError`` if a dense layer reads another number."""
        size = len(self.pooling) * hidden_size
        for step in filter(lambda step: step.dense, self.steps):
            inputs, outputs = params[step.dense]["kernel"].shape
            if inputs != size:
                raise UserError(
                    f"{step.dense} reads vectors of {inputs} values, and {' + '.join(self.pooling)} pooling of "
                    f"{hidden_size} gives {size}; take the pooling that the model's files name"
                )
            size = outputs
        return min(size, self.truncate_dim or size)

    def of_tokens(self, params: Mapping[str, Any], sequence: jax.Array, attention_mask: jax.Array) -> jax.Array:
        """Return vectors [B, E] from the last layer [B, L, D] and a mask [B, L] of the tokens that are pooled."""
        vectors = jnp.concatenate([pool(sequence, attention_mask, one) for one in self.pooling], axis=-1)
        for step in self.steps:
            if step.dense:
                layer = params[step.dense]
                vectors = jnp.dot(vectors, layer["kernel"], precision=jax.lax.Precision.HIGHEST)
                vectors = ACTIVATIONS[step.activation](vectors + layer["bias"][None] if "bias" in layer else vectors)
            else:
                vectors /= jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        return vectors[:, : self.truncate_dim]
