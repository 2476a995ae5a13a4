"""Masked sequence-to-sequence learning (Song et al. 2019, "MASS", section 3): a decoder writes what the encoder misses.

A fragment of each sequence is hidden from the encoder, and the decoder predicts its tokens one after another. It reads
the fragment alone, shifted: what it reads in a step is the token before the predicted one, at that token's own position
in the text. With a fragment of one token this is masked language modelling, with the whole text it is a language model
(section 3.2). Any ``masking.strategy`` works: of several fragments, the decoder reads one after another, as in
microsoft/MASS, MASS-summarization, masked_dataset.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import base
from bert_jax.objectives.base import Setting, Term, prediction
from bert_jax.records import Batch
from bert_jax.rows import ngram_models
from bert_jax.rows.masking import MaskingConfig


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """The keys of ``config.objective``, besides its name.

    Attributes:
      first_decoder_input: what the decoder reads when it predicts the first token of a fragment: "previous" the token
        before the fragment, as the published code does, or "mask" [MASK], as in figure 1 of the paper.
      decoder_reads: which of the encoder's vectors the decoder reads: "all" as for summaries, or all but those at
        [MASK], "not_masks", as MASS-unsupNMT does. The encoder itself reads all.
    """

    masking: MaskingConfig = MaskingConfig(strategy="fragment", rate=0.5)
    first_decoder_input: Literal["previous", "mask"] = "previous"
    decoder_reads: Literal["all", "not_masks"] = "all"


class Objective(base.PretrainingObjective):
    """Predicts the tokens that are hidden from the encoder; the loss is the mean over these tokens of the global batch.

    The encoder reads [MASK], a random token or the token itself, as ``masking`` says; the decoder reads true tokens.
    """

    parts = (LM_HEAD,)
    arrangement = "sentences"
    derived = ("decoder_input_ids", "decoder_position_ids", "decoder_sequence_ids", "masked_positions", "source_ids")
    differs: ClassVar[str] = "has a decoder whose tokens stand at positions of the source"
    titles: ClassVar[Mapping[str, str]] = {
        "fragment_loss": "Loss of the hidden fragment, nats",
        "fragment_accuracy": "Accuracy in the hidden fragment",
    }

    def __init__(self, config: Config, setting: Setting):
        if setting.teacher and not setting.teacher.trained.config.decodes:
            raise UserError(
                f"config.teacher.init={setting.teacher.trained.source} has no decoder, and the objective 'mass' trains "
                "one; take a model that this objective has trained as the teacher"
            )
        self._first, self._hides_masks = config.first_decoder_input, config.decoder_reads == "not_masks"
        super().__init__(config, setting)

    def terms(self, config: Config) -> dict[str, Term]:
        return {"fragment": prediction("mlm_logits", "masked_labels", "masked_weights", baseline="none")}

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with what the decoder reads, [B, P] each, in the order of ``masked_positions`` of the rows.

        ``masked_positions`` then says at which of the decoder's positions tokens are predicted: at all of them.
        """
        ids, places, labels = (batch[name] for name in ("input_ids", "masked_positions", "masked_labels"))
        real, numbers = batch["masked_weights"] > 0, batch.get("sequence_ids")
        positions, of_rows = places, batch.get("position_ids")
        if of_rows is not None:
            positions = jnp.take_along_axis(of_rows, places, axis=1)
        mask = jnp.int32(self.tokenizer.mask_id if self.tokenizer else 0)

        def shifted(x: jnp.ndarray) -> jnp.ndarray:
            return jnp.concatenate([jnp.zeros_like(x[:, :1]), x[:, :-1]], axis=1)

        goes_on = shifted(real) & (shifted(places) == places - 1)  # after another token of the fragment
        previous = jnp.take_along_axis(ids, jnp.maximum(places - 1, 0), axis=1)
        first = jnp.broadcast_to(mask, ids[:, :1].shape) if self._first == "mask" else previous
        tokens = jnp.where(positions > 0, jnp.where(goes_on, shifted(labels), first), mask)  # nothing before a text
        of_source = batch["attention_mask"] if numbers is None else numbers
        of_target = jnp.ones_like(places) if numbers is None else jnp.take_along_axis(numbers, places, axis=1)
        return {
            **batch,
            "decoder_input_ids": jnp.where(real, tokens, 0),
            "decoder_position_ids": jnp.where(real, jnp.maximum(positions - 1, 0), 0),
            "decoder_sequence_ids": jnp.where(real, of_target, 0),
            "masked_positions": jnp.broadcast_to(jnp.arange(places.shape[1], dtype=jnp.int32)[None], places.shape),
            "source_ids": jnp.where(ids == mask, 0, of_source) if self._hides_masks else of_source,
        }

    def baselines(self, kind: str, num_rows: int, part: str | None = None) -> dict[str, float]:
        """Return baselines on the rows of the evaluation: cross-entropies of n-gram models, in nats per hidden token.

        The larger model predicts a token from the two tokens before it, which the decoder or the encoder reads.
        """
        rows = self.heldout_rows(kind, num_rows, part)
        ids, (row, slot) = rows["input_ids"].astype(np.int64), np.nonzero(rows["masked_weights"])
        place, label = rows["masked_positions"][row, slot], rows["masked_labels"][row, slot].astype(np.int64)
        ids[row, place] = label
        shown = np.where(np.isin(ids, self.special_ids), ngram_models.HIDDEN, ids)
        ids = np.pad(shown, ((0, 0), (2, 0)), constant_values=ngram_models.HIDDEN)
        before = ngram_models.Cloze(ids[row, place + 1], ids[row, place], label)
        corpora = [corpus for name, corpus in self._mixture.corpora.items() if part in (None, name)]
        tokens = ngram_models.read_tokens([corpus.split("train") for corpus in corpora])
        return ngram_models.cross_entropies(before, tokens, self.vocab_size, "trigram", context=(-1, -2))

    def _check_model(self, model: ModelConfig) -> None:
        if not model.decodes:
            raise UserError(
                f"objective 'mass' trains an encoder with a decoder, and encoder {model.encoder!r} has none; take "
                "config.model.encoder 'seq2seq'"
            )
        super()._check_model(model)
