"""Denoising entity alignment, with masked words and next sentences (Zhang et al. 2019, "ERNIE", sections 3.4 and 4.1).

The column ``entity_ids`` of the corpus says which entity each mention is of. Of the mentions, 5 % are given another
entity of the batch, 15 % are given none, and the model says of each mention which entity of the batch it really is of
(thunlp/ERNIE, code/run_pretrain.py). All entities of the global batch are candidates, and "no entity" is one of them,
with a vector of zeros: the more entities a batch has, the harder it is. There each of the 8 GPUs has the candidates of
its 32 rows; there too the other entity may be the same one, and rows with fewer than 5 entities are left out, which
this objective reads.

The table of vectors lies on every device: 2.0 GB for the 5.04 million entities of the paper, 1.0 GB in float16. To look
up a batch of 256 rows of 256 takes 13 ms there, on 2 shared CPU cores (AMD EPYC), and 8 to 78 ms on the host, which
would have to send 26 MB a batch besides (2026-11-28).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configuration import LossWeight, check_fields
from bert_jax.corpora.annotators import entities
from bert_jax.corpora.columns import Column
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.losses.cross_entropy import cross_entropy, prediction
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders.ernie_thu import ENTITY_IDS, ENTITY_VECTORS, EntityHead
from bert_jax.models.entity_table import EntityTable
from bert_jax.models.gradients import look_up
from bert_jax.models.heads import Outputs
from bert_jax.models.masks import NEVER
from bert_jax.models.model import Part, encoder_file
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import activation_dtype
from bert_jax.objectives import mlm_nsp
from bert_jax.objectives.base import Setting, Term
from bert_jax.records import Batch, BatchSpec, Sum
from bert_jax.task import Variables
from bert_jax.text.tokenizer import Tokenizer

REPLACED, REMOVED = 0.05, 0.15  # shares of mentions
_NO_ID = np.iinfo(np.int32).max  # stands behind the ids of the candidates, which are sorted
_READ = 1 << 24  # tokens in which entities without a vector are counted


@dataclasses.dataclass(frozen=True)
class Config(mlm_nsp.Config):
    """The keys of ``config.objective``, besides its name.

    Attributes:
      max_entities: the mentions of a row that are predicted, from its first on. Further mentions are read as they are.
    """

    entities: str = dataclasses.field(default="", metadata={"file": True})  # .npy of vectors [N, E]; row 0 is zeros
    alignment_weight: LossWeight = 1.0  # of the loss of entities; if 0, it is measured but does not train the model
    max_entities: int = 64
    where: dataclasses.InitVar[str] = "config.objective"

    def __post_init__(self, where: str) -> None:
        check_fields(self, where, "at least 1 is needed", "max_entities", sound=lambda n: n >= 1)


class Objective(mlm_nsp.Objective):
    """Predicts masked tokens, whether B follows A, and the entities of mentions.

    The loss is the mean over masked positions plus the weighted means over pairs and over mentions, each over the whole
    global batch. What is replaced depends on seed, step and row; in an evaluation, on the row alone.
    """

    config: Config
    parts = (*mlm_nsp.Objective.parts, Part.of("entity_head", EntityHead))
    columns = (ENTITY_IDS,)
    derived = ("entity_positions", "entity_labels", "entity_classes", "entity_weights")
    whole_batches = True
    titles: ClassVar[Mapping[str, str]] = {
        **mlm_nsp.Objective.titles,
        "alignment_loss": "Entities: loss, nats",
        "alignment_accuracy": "Entities: accuracy",
        "alignment_changed_accuracy": "Entities: accuracy where the alignment was replaced or removed",
        "alignment_copied": "Entities: accuracy of a copy of what is read",
    }

    def __init__(self, config: Config, setting: Setting):
        self.table = EntityTable.load(config.entities, f"{setting.where}.entities")
        super().__init__(config, setting)

    def terms(self, config: Any) -> dict[str, Term]:
        names = ("entity_logits", "entity_classes", "entity_weights")
        alignment = prediction(*names, config.alignment_weight, baseline="none")
        measures = {**alignment.measures, "changed_accuracy": _changed_accuracy, "copied": _copied}
        return {**super().terms(config), "alignment": alignment._replace(measures=measures)}

    def frozen(self) -> Mapping[str, Any]:
        return {**super().frozen(), "entities": self.table.vectors}

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with the mentions of each row, in order.

        They are ``entity_positions``, ``entity_labels`` (ids), ``entity_classes`` (the candidates that they are of) and
        ``entity_weights``, each [B, M].
        """
        ids, length = batch[ENTITY_IDS], batch[ENTITY_IDS].shape[1]
        places = jnp.where(ids > 0, jnp.arange(length, dtype=jnp.int32)[None], length)
        places = jnp.sort(places, axis=1)[:, : self.config.max_entities]
        weights = (places < length) * batch["row_weights"][:, None]
        places = jnp.minimum(places, length - 1)
        labels = jnp.where(weights > 0, jnp.take_along_axis(ids, places, axis=1), 0)
        of_labels = {"entity_labels": labels, "entity_classes": candidates(labels)[1]}
        return {**batch, "entity_positions": places, "entity_weights": weights, **of_labels}

    def forward(self, variables: Variables, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return the model's outputs, and for each mention the logits of the candidates and what the model reads.

        They are ``entity_logits`` [B, M, C] and ``read_classes`` [B, M]; candidate 0 is no entity.
        """
        model, table = self.setting.model, jax.lax.stop_gradient(variables.frozen["entities"])
        known, classes = candidates(batch["entity_labels"])
        draws = (rng or RowRng.of_content(batch["input_ids"])).site("entities")
        read = corrupted(classes, jnp.sum(known < _NO_ID), draws)
        ids = _put(batch[ENTITY_IDS], known[read], batch["entity_weights"])
        vectors = look_up(table, ids, activation_dtype(model))
        outputs = super().forward(variables, {**batch, ENTITY_IDS: ids, ENTITY_VECTORS: vectors}, rng)
        of_candidates = look_up(table, jnp.where(known < _NO_ID, known, 0), activation_dtype(model))  # [C, E]
        predicted = outputs.pop("predicted_entities")
        logits = jnp.einsum("bme,ce->bmc", predicted, of_candidates, preferred_element_type=model.param_dtype)
        logits = constrain(jnp.where((known < _NO_ID)[None, None], logits, NEVER), "batch", None, None)
        return {**outputs, "entity_logits": logits, "read_classes": read}

    def flops(self, spec: BatchSpec) -> float:
        """Return the FLOPs of a row, without the products with candidates, whose number is the batch's."""
        model: Any = self.setting.model
        mentions = min(self.config.max_entities, spec["input_ids"].shape[0])
        return super().flops(spec) + 6.0 * mentions * model.hidden_size * model.entity_size

    # ---- Checks ----------------------------------------------------------------------------------------------------

    def _check_model(self, model: ModelConfig) -> None:
        if ENTITY_VECTORS not in getattr(encoder_file(model.encoder).Encoder, "reads_if_given", ()):
            raise UserError(
                f"objective {self.name!r} needs an encoder that reads entities, and encoder {model.encoder!r} reads "
                "none; set config.model.encoder to 'ernie_thu'"
            )
        self.table.check_width(model.entity_size)  # type: ignore[attr-defined]
        super()._check_model(model)

    def check_columns(self, columns: Mapping[str, Column]) -> None:
        if column := columns.get(ENTITY_IDS):
            _check_facts(column.identity() | {"annotator": column.file}, "the corpus that is to be built")
            if isinstance(column.annotator, entities.Annotator):
                self.table.check_ids(column.annotator.ids(), f"the lexicon {column.annotator.path}")

    def with_text(self, corpus: Corpus | Mixture, tokenizer: Tokenizer, vocab_size: int | None = None) -> Self:
        other = super().with_text(corpus, tokenizer, vocab_size)
        for one in other._mixture.corpora.values():
            facts = one.manifest["columns"][ENTITY_IDS]
            _check_facts(facts, f"the corpus {one.folder}")
            if facts["largest_id"] >= self.table.size:
                split = one.split("train")
                count = np.array([min(split.num_tokens, _READ)])
                self.table.check_ids(split.read(np.zeros(1, np.int64), count, ENTITY_IDS), f"the text in {one.folder}")
        return other


def _check_facts(facts: Mapping[str, Any], corpus: str) -> None:
    """Raise ``UserError`` if the column of entities of a ``corpus``, which ``facts`` describe, has no ids."""
    if "largest_id" not in facts:
        raise UserError(
            f"the column {ENTITY_IDS!r} of {corpus} is of the annotator {facts['annotator']!r}, which gives no ids of "
            "entities (a largest_id among its facts); build the corpus with the annotator 'entities' and a lexicon "
            "whose lines are a phrase, a tab and an id"
        )


def candidates(labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the ids of the entities of a batch, [C] ascending, and the index among them of each of ``labels`` [B, M].

    The first id is 0, no entity. C is fixed, one more than there are labels; the last ids are ``_NO_ID``.
    """
    every = jnp.sort(jnp.concatenate([jnp.zeros(1, labels.dtype), labels.reshape(-1)]))
    again = jnp.concatenate([jnp.zeros(1, bool), every[1:] == every[:-1]])
    ids = jnp.sort(jnp.where(again, _NO_ID, every))
    return ids, jnp.searchsorted(ids, labels).astype(jnp.int32)


def corrupted(classes: jax.Array, count: jax.Array, rng: RowRng) -> jax.Array:
    """Return the candidates [B, M] that stand in the places of ``classes`` [B, M], of ``count`` candidates.

    Of the mentions, ``REMOVED`` get candidate 0 and ``REPLACED`` another candidate than 0 and their own, if there is
    one. The others, and class 0, are kept.
    """
    kind, place = jnp.split(rng.bits((*classes.shape, 2)).astype(jnp.float32) * 2.0**-32, 2, axis=-1)  # in [0, 1]
    others = jnp.maximum(count - 2, 0)
    other = 1 + jnp.minimum((place[..., 0] * others).astype(jnp.int32), others - 1)
    other = other + (other >= classes)
    replaced = jnp.where((kind[..., 0] < REMOVED + REPLACED) & (others > 0), other, classes)
    return jnp.where(classes == 0, 0, jnp.where(kind[..., 0] < REMOVED, 0, replaced))


def _put(ids: jax.Array, read: jax.Array, weights: jax.Array) -> jax.Array:
    """Return ``ids`` [B, L] with ``read`` [B, M] at the mentions of weight above 0, which are the first of a row."""
    slots = jnp.cumsum(ids > 0, axis=1) - 1
    inside = jnp.clip(slots, 0, read.shape[1] - 1)
    new, counts = (jnp.take_along_axis(x, inside, axis=1) for x in (read, weights))
    return jnp.where((ids > 0) & (slots == inside) & (counts > 0), new, ids)


def _changed_accuracy(outputs: Outputs, batch: Batch) -> Sum:
    changed = batch["entity_weights"] * (outputs["read_classes"] != batch["entity_classes"])
    return cross_entropy(outputs["entity_logits"], batch["entity_classes"], changed)[1]


def _copied(outputs: Outputs, batch: Batch) -> Sum:
    weights = batch["entity_weights"]
    return Sum(jnp.sum((outputs["read_classes"] == batch["entity_classes"]) * weights), jnp.sum(weights))
