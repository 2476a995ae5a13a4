"""Replaced-token detection (Clark et al. 2020, "ELECTRA", section 2; google-research/electra, run_pretraining.py).

A small encoder, the generator, predicts masked tokens. One token is drawn from each prediction and put in the place of
the masked token. The model that is kept, the discriminator, reads that text, which has no masks, and says of each token
whether it is the original. Both have the same embeddings, layer norm included. A token that is drawn as it was counts
as original. No gradient goes through a draw: the generator learns from masked tokens alone, as in ``mlm``.

Here positions are drawn without replacement; there a position may be drawn twice, and then gets an unrelated token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from bert_jax.configuration import LossWeight, check_fields
from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig, TransformerConfig
from bert_jax.models.dropout import RowRng
from bert_jax.models.heads import Outputs, ReplacedTokenHead
from bert_jax.models.model import LM_HEAD, EncoderPart, Part
from bert_jax.objectives import base
from bert_jax.objectives.base import MLM, Setting, Term
from bert_jax.objectives.reading import with_attention
from bert_jax.records import Batch, BatchSpec, Sum
from bert_jax.task import Variables

DISCRIMINATOR = Part.of("discriminator_head", ReplacedTokenHead)


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """The keys of ``config.objective``, besides its name."""

    # widths and heads of the generator, as a share of the model's; if None, a quarter, or 1 where the encoder has no
    # embedding_size of its own
    generator_size: float | None = None
    generator_layers: float = 1.0  # layers of the generator, as a share of the model's
    replaced_weight: LossWeight = 50.0  # of the discriminator's loss; that of the generator has the weight 1
    where: dataclasses.InitVar[str] = "config.objective"

    def __post_init__(self, where: str) -> None:
        shares = ("generator_size", "generator_layers")
        allowed = "more than 0 and at most 1 is needed"
        check_fields(self, where, allowed, *shares, sound=lambda share: share is None or 0 < share <= 1)


class Objective(base.PretrainingObjective):
    """Trains a generator to predict masked tokens, and the model to find the tokens that it has put in their places.

    The loss is the mean over masked positions, plus the weighted mean over all real positions of the binary
    cross-entropy, each over the whole global batch. What is drawn depends on seed, step and row; in an evaluation, on
    the row alone.
    """

    arrangement = "sentences"
    titles: ClassVar[Mapping[str, str]] = {
        "replaced_loss": "Discriminator: loss, nats",
        "replaced_precision": "Discriminator: precision of replaced tokens",
        "replaced_recall": "Discriminator: recall of replaced tokens",
        "replaced_accuracy": "Discriminator: accuracy",
        "replaced_rate": "Share of tokens that are replaced",
        "mlm_loss": "Generator: masked-LM loss, nats",
        "mlm_accuracy": "Generator: masked-LM accuracy",
        "mlm_accuracy_no_punctuation": "Generator: masked-LM accuracy without punctuation",
    }

    def __init__(self, config: Config, setting: Setting):
        model = with_attention(setting.model, self.reads, self.name)
        generator = generator_of(model, config, setting.where)
        self.parts = (DISCRIMINATOR, EncoderPart("generator", generator, (LM_HEAD,)))
        super().__init__(config, setting)

    @property
    def generator(self) -> EncoderPart:
        """The generator, a part of the parameters."""
        return next(part for part in self.parts if isinstance(part, EncoderPart))

    def terms(self, config: Config) -> dict[str, Term]:
        measures = {"accuracy": _accuracy, "precision": _precision, "recall": _recall, "rate": _rate}
        return {"mlm": MLM, "replaced": Term(_loss, config.replaced_weight, measures)}

    def forward(self, variables: Variables, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return the outputs of the discriminator, the generator's ``mlm_logits`` [B, P, V], and its draws.

        The draws are ``drawn_ids`` [B, L], the text that the discriminator reads, and ``is_replaced`` [B, L], 1 or 0.
        """
        logits = self.generator.apply(variables.params, batch, rng)["mlm_logits"]
        draws = (rng or RowRng.of_content(batch["input_ids"])).site("draws")
        original = put_at_masks(batch["input_ids"], batch["masked_labels"], batch)
        drawn = put_at_masks(batch["input_ids"], draw(logits, draws), batch)
        outputs = super().forward(variables, {**batch, "input_ids": drawn}, rng)
        replaced = (drawn != original).astype(jnp.float32)
        return {**outputs, "mlm_logits": logits, "drawn_ids": drawn, "is_replaced": replaced}

    def flops(self, spec: BatchSpec) -> float:
        length, predicted, size = spec["input_ids"].shape[0], spec["masked_positions"].shape[0], self.setting.model
        head = 6.0 * length * size.hidden_size * (size.hidden_size + 1)
        return size.train_flops(length) + head + self.generator.config.train_flops(length, predicted)


def generator_of(model: ModelConfig, config: Config, where: str) -> ModelConfig:
    """Return the settings of the generator of a model.

    Its heads are as wide as the model's heads (google-research/electra, util/training_utils.py).

    Raises:
      UserError: ``generator_size`` gives no whole heads, or the encoder's embeddings have no width of their own.
    """
    narrows = "embedding_size" in {field.name for field in dataclasses.fields(model)}
    share = config.generator_size or (0.25 if narrows else 1.0)
    if not isinstance(model, TransformerConfig) or not (narrows or share == 1):
        if share == config.generator_layers == 1:
            return model
        raise UserError(
            f"{where}.generator_size is {share}, and in the encoder {model.encoder!r} embeddings, which the generator "
            "shares, are as wide as the layers; leave it out, or take config.model.encoder 'electra'"
        )
    heads, width = max(1, round(share * model.num_heads)), round(share * model.hidden_size)
    if width % heads or not width:
        raise UserError(
            f"{where}.generator_size is {share}: {width} of {model.hidden_size} numbers, which {heads} attention heads "
            f"do not divide; {heads / model.num_heads:.5g} gives {heads} of the model's {model.num_heads} heads"
        )
    return dataclasses.replace(
        model,
        hidden_size=width,
        num_heads=heads,
        mlp_dim=max(1, round(share * model.mlp_dim)),
        num_layers=max(1, round(config.generator_layers * model.num_layers)),
    )


def draw(logits: jax.Array, rng: RowRng) -> jax.Array:
    """Return ids [B, P] int32 drawn from softmax(logits [B, P, V]), by row; there is no gradient.

    The largest sum of a logit and Gumbel noise, -log E with E from an exponential distribution, is such a draw.
    """
    uniform = (rng.bits(logits.shape).astype(jnp.float32) + 0.5) * 2.0**-32
    noise = -jnp.log(-jnp.log1p(-uniform))
    return jnp.argmax(jax.lax.stop_gradient(logits) + noise, axis=-1).astype(jnp.int32)


def put_at_masks(row: jax.Array, values: jax.Array, batch: Batch) -> jax.Array:
    """Return ``row`` [B, L] with ``values`` [B, P] at the masked positions."""
    length, count = row.shape[1], values.shape[1]
    # A place outside of the row is no place.
    places = jnp.where(batch["masked_weights"] > 0, batch["masked_positions"], length + jnp.arange(count))

    def put(row: jax.Array, at: jax.Array, new: jax.Array) -> jax.Array:
        return row.at[at].set(new, mode="drop", unique_indices=True)

    return jax.vmap(put)(row, places, values.astype(row.dtype))


def _read(outputs: Outputs, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return logits, labels (1 is replaced) and weights, each [B, L] float32 or wider."""
    logits, labels = outputs["replaced_logits"], outputs["is_replaced"]
    weights = batch["attention_mask"].astype(jnp.float32) * batch["row_weights"][:, None]
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32)), labels, weights


def _loss(outputs: Outputs, batch: Batch) -> Sum:
    logits, labels, weights = _read(outputs, batch)
    return Sum(jnp.sum((jax.nn.softplus(logits) - logits * labels) * weights), jnp.sum(weights))


def _accuracy(outputs: Outputs, batch: Batch) -> Sum:
    logits, labels, weights = _read(outputs, batch)
    return Sum(jnp.sum(((logits > 0) == (labels > 0)) * weights), jnp.sum(weights))


def _precision(outputs: Outputs, batch: Batch) -> Sum:
    logits, labels, weights = _read(outputs, batch)
    return Sum(jnp.sum((logits > 0) * labels * weights), jnp.sum((logits > 0) * weights))


def _recall(outputs: Outputs, batch: Batch) -> Sum:
    logits, labels, weights = _read(outputs, batch)
    return Sum(jnp.sum((logits > 0) * labels * weights), jnp.sum(labels * weights))


def _rate(outputs: Outputs, batch: Batch) -> Sum:
    _, labels, weights = _read(outputs, batch)
    return Sum(jnp.sum(labels * weights), jnp.sum(weights))
