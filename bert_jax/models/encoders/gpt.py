"""GPT (Radford et al. 2018), also called GPT-1: GPT-2 with layer norms after each residual sum, and none at the end.

The parameters are the same as GPT-2's (``models.encoders.gpt2``) without ``layer_norm`` of the encoder. The form is
transformers' OpenAIGPTModel, which computes what openai/finetune-transformer-lm, train.py, does, but for dropout on
embeddings: there whole rows of the table are dropped, here entries of their sum.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from bert_jax.configuration import check_fields
from bert_jax.models.config import Block
from bert_jax.models.encoders import gpt2
from bert_jax.models.encoders.bert import size_of
from bert_jax.models.encoders.gpt2 import LmHead as LmHead
from bert_jax.models.encoders.gpt2 import Pooler as Pooler


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(gpt2.Config):
    """The settings of a GPT. Defaults are the published model."""

    max_length: int = 512  # the most positions of a row
    activation: Literal["gelu_tanh", "relu"] = "gelu_tanh"  # transformers has no class with the exact GELU

    def __post_init__(self) -> None:
        super().__post_init__()
        width = 4 * self.hidden_size
        only = f"a GPT has four times hidden_size, {width:,}, and transformers has no key for another"
        check_fields(self, "config.model", only, "mlp_dim", sound=lambda value: value == width)

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (Block(fused=True),) * self.num_layers


class Encoder(gpt2.Encoder):
    """Applies the embeddings and ``num_layers`` layers, each normalised at its end."""

    norm_at_end: ClassVar[bool] = False


SIZES: dict[str, dict[str, int]] = {"base": size_of(12, 768, 12)}  # Radford et al. 2018, section 4.1
