"""Writes a target text for a source text: summaries, titles, translations, questions.

The model says how a target is written:

- A model that reads left to right continues the source: ``[CLS] source [SEP] target [SEP]``, and predicts each token of
  the target, and the [SEP] at its end, from the tokens before it (Radford et al. 2018, section 3.3).
- A decoder reads the source through its encoder, and predicts each token of the target from the tokens before it.
- Any other model, such as a BERT, reads the same rows with the mask of a prefix: the source sees itself, the target
  sees the source and what came before. A share of the target's tokens, its last [SEP] too, is masked and predicted
  (Dong et al. 2019, section 2.5). It writes a token by reading a [MASK] at the place of the token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import configuration
from bert_jax.errors import UserError, few
from bert_jax.examples.columns import Roles
from bert_jax.examples.values import is_blank
from bert_jax.generation.search import Search, tokens_of
from bert_jax.generation.settings import Settings
from bert_jax.generation.steppers import MASK_AT_END, LeftToRight, keeping, stepper_of, token_types
from bert_jax.losses.cross_entropy import prediction
from bert_jax.models.config import TransformerConfig
from bert_jax.models.dropout import RowRng
from bert_jax.models.kernels.choice import left_to_plain
from bert_jax.models.model import LM_HEAD, Part
from bert_jax.records import Batch, Example
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.task import Term, Variables
from bert_jax.tasks.base import ExampleTask, Setting, with_error
from bert_jax.tasks.findings import Judge, PredictionRecord, clip
from bert_jax.tasks.metrics import standard_errors
from bert_jax.tasks.metrics.generated import TITLES, check_names, generated_metrics, is_mean, of_each
from bert_jax.text.sentences import split_sentences

_MOST_SPECIAL = 4  # [CLS] and up to three [SEP]
_MASKED, _RANDOM = 0.8, 0.1  # shares of the masked tokens that become [MASK], and that become another token


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of ``config.task``, besides its name.

    A row has up to ``config.phases.train.max_length`` tokens; a source is cut where source and target do not fit.
    """

    metrics: tuple[str, ...] = ("rouge_l", "bleu", "chrf")  # of metrics/generated.py, the first is the main one
    max_target_length: int = 64  # the most tokens of a target; longer targets are cut
    masked_share: float = 0.7  # of the tokens of a target; for models that read both sides (UniLM: 0.7)
    num_beams: int = 1  # texts that are followed at a time; with 1, the likeliest token is taken each time
    length_penalty: float = 1.0  # a beam's log-probability is divided by its length to this power
    no_repeat_ngram: int = 0  # no run of so many tokens comes twice in a target; 0 allows it

    def __post_init__(self) -> None:
        check, where = configuration.check_fields, "config.task"
        counts = ("max_target_length", "num_beams")
        check(self, where, "at least 1 is needed", *counts, sound=lambda value: value >= 1)
        share = "more than 0 and at most 1 is needed"
        check(self, where, share, "masked_share", sound=lambda value: 0 < value <= 1)
        if not self.metrics:
            raise UserError(f"{where}.metrics is empty; name at least one of {', '.join(TITLES)}")
        check(self, where, "0 or more is needed", "no_repeat_ngram", sound=lambda value: value >= 0)

    @property
    def writes(self) -> Settings:
        """How targets are written."""
        beams = {"method": "beam", "beams": self.num_beams, "length_penalty": self.length_penalty}
        chosen: dict[str, Any] = beams if self.num_beams > 1 else {}
        return Settings(max_new_tokens=self.max_target_length, no_repeat_ngram=self.no_repeat_ngram, **chosen)


def _weigh(record: PredictionRecord) -> tuple[float, float]:
    """Return whether the texts differ, and how much: without a shared beginning, longer texts come first."""
    return float(record["label"].split() != record["prediction"].split()), float(len(record["prediction"]))


def _show(example: Example, record: PredictionRecord) -> dict[str, Any]:
    shown = {"id": record["id"], "text": clip(example["text"])}
    return shown | {"target": clip(record["label"]), "prediction": clip(record["prediction"])}


class Task(ExampleTask):
    """The task of writing texts. Its loss is the mean cross-entropy of the predicted tokens of targets."""

    roles = Roles(("text",), ("target",))
    exported_as = ("LMHeadModel", None)  # of a model that reads left to right; others have no class
    writes = MASK_AT_END  # as a model that reads both sides learns to
    answer, main_metric = "target", "rouge_l"
    titles: ClassVar[Mapping[str, str]] = {"loss": "Loss", "accuracy": "Accuracy of predicted tokens", **TITLES}
    gathered_outputs = ("written",)
    judge = Judge("texts", _weigh, _show)

    def __init__(self, config: Config, setting: Setting):
        check_names(config.metrics, "config.task.metrics")
        self._check_model(config, setting)
        every = [example for examples in setting.splits.values() for example in examples]
        if empty := [e["id"] for e in every if e.get("target") is not None and is_blank(str(e["target"]), "target")]:
            raise UserError(f"{len(empty):,} targets are empty ({few(empty)}); write them, or leave the examples out")
        room = setting.max_length - config.max_target_length
        if not setting.model.decodes and room < _MOST_SPECIAL + 1:
            raise UserError(
                f"config.phases.train.max_length is {setting.max_length} and config.task.max_target_length "
                f"{config.max_target_length}; at least {_MOST_SPECIAL + 1} tokens more are needed for the source"
            )
        model = keeping(setting.model)
        stepper = stepper_of(model, setting.tokenizer, (self.writes,))
        assert stepper is not None
        # A target may repeat what its source says.
        self.stepper = dataclasses.replace(stepper, goes_on=False) if isinstance(stepper, LeftToRight) else stepper
        self._search = Search(self.stepper, config.writes, tokens_of(setting.tokenizer))
        if isinstance(model, TransformerConfig):
            ordered = ["this task"] if not (model.causal or model.decodes) else []
            self.notes = left_to_plain(model.attention_kernel, ordered, model.decodes)
        super().__init__(config, setting)
        if self._longest_source < self._longest_target:
            self.notes.append(
                f"rows of {setting.max_length} tokens leave {self._longest_source} for a source; a smaller "
                "config.task.max_target_length leaves more"
            )

    def _check_model(self, config: Config, setting: Setting) -> None:
        """Raise ``UserError`` if the setting has what the task cannot use."""
        if setting.bilstm_layers:
            raise UserError("config.bilstm_layers puts layers before a classifier, and text_generation has none; set 0")
        if (beams := config.num_beams) > setting.tokenizer.size:
            raise UserError(
                f"config.task.num_beams is {beams:,}, and the vocabulary has {setting.tokenizer.size:,} pieces; give "
                "at most as many"
            )
        if not setting.tokenizer.around[1]:
            raise UserError("the tokenizer has no token that ends a text ([SEP], or an end token); take another model")

    @classmethod
    def metric(cls, config: Config) -> str:
        return config.metrics[0]

    # ---- Rows ------------------------------------------------------------------------------------------------------

    def encode(self, split: str, examples: Sequence[Example]) -> EncodedRows:
        """Return rows of sources and targets; a decoder's rows have the target in features of their own."""
        tokenizer, most = self.setting.tokenizer, self.config.max_target_length
        before, after = (np.array(special, np.int32) for special in tokenizer.around)
        between = np.repeat(after, max(tokenizer.pair_separators, 1))
        sources = tokenizer.encode_batch([example["text"] for example in examples])
        texts = ["" if example.get("target") is None else str(example["target"]) for example in examples]
        known = [example.get("target") is not None for example in examples]
        whole = tokenizer.encode_batch(texts)
        targets = [np.concatenate([ids[:most], after]) if one else ids for ids, one in zip(whole, known, strict=True)]
        room = self._longest_source - len(before) - len(between)
        beginnings = [np.concatenate([before, ids[:room], between]) for ids in sources]
        if cut := sum(len(ids) > room for ids in sources):
            self.notes.append(f"{cut:,} of {len(sources):,} sources are longer than {room} tokens and were cut")
        if cut := sum(len(ids) > most for ids in whole):
            self.notes.append(f"{cut:,} of {len(targets):,} targets are longer than {most} tokens and were cut")
        arrays = self._of_targets(targets, [len(ids) for ids in beginnings], self._longest_target)
        if self._decodes:
            return self.make_rows({"input_ids": beginnings}, arrays)
        rows = [np.concatenate(pair).astype(np.int32) for pair in zip(beginnings, targets, strict=True)]
        first, second = (0, 0) if self.setting.model.causal else token_types(self.setting.model)
        types = [np.repeat([first, second], [len(a), len(b)]) for a, b in zip(beginnings, targets, strict=True)]
        return self.make_rows({"input_ids": rows, "token_type_ids": types}, arrays)

    @property
    def _longest_source(self) -> int:
        """The most tokens of a source with its special tokens: a target of any length fits after it."""
        return self.setting.max_length - (0 if self._decodes else self._longest_target)

    @property
    def _longest_target(self) -> int:
        """The most tokens of a target with the token that ends it."""
        return self.config.max_target_length + len(self.setting.tokenizer.around[1])

    @property
    def _decodes(self) -> bool:
        return self.setting.model.decodes

    def _of_targets(self, targets: Sequence[np.ndarray], starts: Sequence[int], most: int) -> dict[str, np.ndarray]:
        """Return what is predicted of each target, [N, most] each, and the length of each source.

        A model that reads both sides predicts a token at the token's place; other models at the place before it.
        """
        shape = len(targets), most
        labels, weights, places = np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(shape, np.int32)
        reads_masks = not (self._decodes or self.setting.model.causal)
        for row, (ids, start) in enumerate(zip(targets, starts, strict=True)):
            labels[row, : len(ids)], weights[row, : len(ids)] = ids, 1.0
            first = 0 if self._decodes else start if reads_masks else start - 1
            places[row, : len(ids)] = first + np.arange(len(ids))
        arrays = {"masked_labels": labels, "target_weights": weights, "masked_positions": places}
        if self._decodes:
            first_read = np.full((len(targets), 1), self.stepper.begin, np.int32)  # type: ignore[attr-defined]
            read = np.concatenate([first_read, labels[:, :-1]], axis=1)
            arrays |= {"decoder_input_ids": read, "decoder_sequence_ids": (weights > 0).astype(np.int32)}
        return arrays | {"source_lengths": np.array(starts, np.int32)}

    # ---- The model -------------------------------------------------------------------------------------------------

    def head(self, dropout_rate: float) -> tuple[Part, ...]:
        return (LM_HEAD,)

    def terms(self, config: Config) -> dict[str, Term]:
        return {"": prediction("mlm_logits", "masked_labels", "masked_weights", baseline="none")}

    def forward(self, variables: Variables, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return ``mlm_logits`` [B, P, V] and ``masked_weights`` [B, P] of the predicted tokens.

        Without ``rng``, a model that reads both sides has the same masks each time.
        """
        weights = batch["target_weights"] * batch["row_weights"][:, None]
        if not (self._decodes or self.setting.model.causal):
            batch, weights = self._masked(batch, weights, rng or RowRng.create(0, 0, batch["example_ids"]))
        return {**super().forward(variables, batch, rng), "masked_weights": weights}

    def _masked(self, batch: Batch, weights: jax.Array, rng: RowRng) -> tuple[Batch, jax.Array]:
        """Return the batch with ``masked_share`` of each target masked, and weights [B, P] of the masked tokens."""
        tokenizer, labels, real = self.setting.tokenizer, batch["masked_labels"], batch["target_weights"] > 0
        number = jnp.sum(real, axis=1, keepdims=True)
        wanted = jnp.maximum(1, jnp.round(self.config.masked_share * number).astype(jnp.int32))
        draw = rng.site("masked_targets").bits(labels.shape) >> 1
        rank = jnp.argsort(jnp.argsort(jnp.where(real, draw, jnp.uint32(2**32 - 1)), axis=1), axis=1)
        chosen = real & (rank < wanted)
        fate = rng.site("fate_of_masked").bits(labels.shape)
        other = rng.site("other_tokens").bits(labels.shape) % jnp.uint32(tokenizer.size)
        shown = jnp.where(fate < _of_bits(_MASKED + _RANDOM), other.astype(jnp.int32), labels)
        shown = jnp.where(fate < _of_bits(_MASKED), jnp.int32(tokenizer.mask_id), shown)
        ids = batch["input_ids"]
        after = (
            jnp.arange(ids.shape[1], dtype=jnp.int32)[None] - batch["source_lengths"][:, None]
        )  # place in the target
        place = jnp.clip(after, 0, labels.shape[1] - 1)
        shown, taken = (jnp.take_along_axis(x, place, axis=1) for x in (shown, chosen))
        ids = jnp.where(taken & (place == after), shown, ids)
        order = jnp.maximum(after + 1, 0)
        return {**batch, "input_ids": ids, "order_ids": order}, weights * chosen

    def outputs(self, variables: Variables, batch: Batch) -> dict[str, jax.Array]:
        """Return the outputs of ``forward``, and ``written`` [B, T] int32: the tokens of the texts that are written."""
        known = {**variables.params, **variables.frozen}
        params = {name: known[name] for name in ("encoder", LM_HEAD.name) if name in known}  # a tied head has none
        ids = batch["input_ids"][:, : self._longest_source]
        in_source = jnp.arange(ids.shape[1])[None] < batch["source_lengths"][:, None]
        prompt = {"input_ids": ids, "attention_mask": in_source.astype(jnp.int32)}
        found = self._search({"params": params}, jnp.int32(0), prompt, batch["example_ids"])
        ids, length = found.ids[:, 0], found.lengths[:, :1]
        texts = jnp.where(jnp.arange(ids.shape[1])[None] < length, ids, -1)
        return {**self.forward(variables, batch, None), "written": texts}

    # ---- Scores ----------------------------------------------------------------------------------------------------

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        references, texts = self._pairs(part, outputs)
        return generated_metrics(self.config.metrics, references, texts)

    def errors(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the standard errors of the metrics that are means over texts."""
        references, texts = self._pairs(part, outputs)
        means = [name for name in self.config.metrics if is_mean(name)]
        return {name: standard_errors.of_mean(of_each(name, references, texts)) for name in means}

    def predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        records = []
        for example, ids in zip(self.setting.splits[split], outputs["written"], strict=True):
            record = {"id": example["id"], "prediction": self._decoded(ids)}
            if example.get("target") is not None:
                record["label"] = str(example["target"])
            records.append(record)
        return records

    def guess(self) -> dict[str, float]:
        """Return the scores of copying the source, cut to the length of the longest target, and its first sentence."""
        examples = [e for part in self.heldout_parts for e in self.setting.splits[part] if e.get("target") is not None]
        references, sources = [str(e["target"]) for e in examples], [e["text"] for e in examples]
        first = [next(iter(split_sentences(text)), "") for text in sources]
        found: dict[str, float] = {}
        for ending, texts in (("of_copies", sources), ("of_first_sentences", first)):
            for name, score in generated_metrics(self.config.metrics, references, texts).items():
                error = standard_errors.of_mean(of_each(name, references, texts)) if is_mean(name) else 0.0
                found |= with_error(f"{name}_{ending}", score, error)
        return found

    def _pairs(self, part: str, outputs: dict[str, np.ndarray]) -> tuple[list[str], list[str]]:
        """Return the references of a part, and the written texts, of the examples that have a target."""
        both = [
            (str(example["target"]), self._decoded(ids))
            for example, ids in zip(self.setting.splits[part], outputs["written"], strict=True)
            if example.get("target") is not None
        ]
        return [one for one, _ in both], [other for _, other in both]

    def _decoded(self, ids: np.ndarray) -> str:
        return self.setting.tokenizer.decode(ids[ids >= 0]).strip()


def _of_bits(share: float) -> jax.Array:
    """Return the uint32 below which uniform bits are with probability ``share``."""
    return jnp.uint32(round(share * 2**32) - 1)
