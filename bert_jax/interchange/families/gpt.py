"""GPT-1 in transformers (Radford et al. 2018): the names of GPT-2's layers, and other names for the two tables.

The activation that ``config.json`` calls "gelu" is the tanh approximation, which other families call "gelu_new".
OpenAIGPTForSequenceClassification is left out for the reasons that ``families.gpt2`` gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bert_jax.errors import UserError
from bert_jax.interchange.families import gpt2
from bert_jax.interchange.names import Entry
from bert_jax.models.config import ModelConfig

_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu"}  # name in config.json -> name of the same function elsewhere


class Family(gpt2.Family):
    name, title, model_type, prefix, decoder = "OpenAIGPT", "GPT", "openai-gpt", "transformer.", "lm_head"
    activation, usual_activation = "afn", "gelu"
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Model": ("encoder",),
        "LMHeadModel": ("encoder",),  # its head is the word embeddings
    }
    fixed: ClassVar[Mapping[str, Any]] = {"is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}
    others: ClassVar[tuple[str, ...]] = (*gpt2.Family.others, "n_inner", "n_special", "predict_special_tokens")

    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        del architecture, pad_id
        return gpt2.encoder_entries(self.prefix, "tokens_embed", "positions_embed")

    def redundant(self, architecture: str) -> tuple[str, ...]:
        return *super().redundant(architecture), f"{self.prefix}position_ids"

    def to_config(self, config: Any, pad_id: int) -> dict[str, Any]:
        written = super().to_config(config, pad_id)
        del written["n_inner"]
        names = {name: ours for ours, name in _ACTIVATIONS.items()}
        return written | {self.activation: names[written[self.activation]]}

    def from_config(self, theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
        name = theirs.get(self.activation, self.usual_activation)
        if name not in (None, *_ACTIVATIONS):
            raise UserError(f"{where}/{file} has {self.activation} {name!r}; known: {', '.join(_ACTIVATIONS)}")
        given = {key: value for key, value in theirs.items() if key != "n_inner"}
        return super().from_config(given | {self.activation: _ACTIVATIONS.get(name, name)}, where, file)
