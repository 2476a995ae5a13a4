"""Predicts a number for a text or a pair of texts, such as a similarity from 0 to 5 (STS-B, Devlin et al. 2019)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError, few
from bert_jax.examples.columns import Roles
from bert_jax.models.heads import Classifier
from bert_jax.models.model import POOLER, Part
from bert_jax.records import Batch, Example, Sum
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.task import Term
from bert_jax.tasks.base import ExampleTask, with_error
from bert_jax.tasks.findings import Judge, PredictionRecord, clip
from bert_jax.tasks.metrics import standard_errors
from bert_jax.tasks.metrics.regression import TITLES, check_names, regression_metrics

_LARGEST = 1e15  # of the labels: a sum of squares of such numbers is finite in float32


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of ``config.task``, besides its name."""

    metrics: tuple[str, ...] = ("pearson", "spearmanr")  # or mean_squared_error, mean_absolute_error
    # on the pooled output; if None, the rate of an imported model's classifier, else the model's rate
    dropout_rate: float | None = None

    def __post_init__(self) -> None:
        check_names(self.metrics)


def _weigh(record: PredictionRecord) -> tuple[float, float]:
    gap = abs(record["label"] - record["prediction"])
    return 1.0, gap if math.isfinite(gap) else math.inf


def _show(example: Example, record: PredictionRecord) -> dict[str, Any]:
    shown = {name: clip(example[name]) for name in ("text", "pair") if example.get(name)}
    return {"id": record["id"], **shown, "label": record["label"], "prediction": record["prediction"]}


class Task(ExampleTask):
    """The regression task. Its loss is the mean squared error; the model's one output predicts the label unscaled."""

    roles = Roles(("text",), ("pair", "label"))
    answer, main_metric = "label", "spearmanr"
    titles: ClassVar[Mapping[str, str]] = TITLES
    exported_as = ("ForSequenceClassification", "regression")
    head_dropout = "classifier_dropout_rate"
    judge = Judge("numbers", _weigh, _show, by_degree=True)
    reads_one_vector = True
    packs = True

    @classmethod
    def metric(cls, config: Config) -> str:
        return config.metrics[0] if config.metrics and cls.main_metric not in config.metrics else cls.main_metric

    def check(self, splits: Mapping[str, Sequence[Example]]) -> None:
        given = [
            (_number(example["label"]), f"{example['id']} of {split} has {example['label']!r}")
            for split, examples in splits.items()
            for example in examples
            if example.get("label") is not None
        ]
        if wrong := [text for number, text in given if number is None]:
            raise UserError(
                f"{len(wrong):,} labels are not finite numbers: {few(wrong, 5, '; ')}; a regression needs numbers, "
                "config.task.name='classification' takes names"
            )
        if large := [text for number, text in given if abs(number or 0.0) > _LARGEST]:
            raise UserError(
                f"{len(large):,} labels are beyond {_LARGEST:g}: {few(large, 5, '; ')}; their squares are infinite in "
                "float32: divide the labels by a number"
            )

    def encode(self, split: str, examples: Sequence[Example]) -> EncodedRows:
        del split
        given = [_number(e.get("label")) for e in examples]
        known = [value for value in given if value is not None]
        if known:
            self.notes.append(f"labels from {min(known):g} to {max(known):g}, mean {np.mean(known):.4g}")
        sequences = self.pair_sequences([e["text"] for e in examples], [e.get("pair") for e in examples])
        return self.make_rows(sequences, self.targets(given, "float32"))

    def head(self, dropout_rate: float) -> tuple[Part, ...]:
        return (POOLER, Part.of("classifier", Classifier, dropout_rate=dropout_rate))

    def terms(self, config: Config) -> dict[str, Term]:
        return {"": Term(_SquaredError())}

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        given = [_number(example.get("label")) for example in self.setting.splits[part]]
        pairs = [(y, float(x)) for y, x in zip(given, outputs["logits"][:, 0], strict=True) if y is not None]
        return regression_metrics(self.config.metrics, [y for y, _ in pairs], [x for _, x in pairs])

    def errors(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the standard errors of mean errors and of the loss, and the jackknife errors of correlations."""
        given = np.array([_number(example.get("label")) for example in self.setting.splits[part]], np.float64)
        known = np.isfinite(given)
        truth, found = given[known], outputs["logits"][known, 0].astype(np.float64)
        gaps = {"mean_squared_error": (found - truth) ** 2, "mean_absolute_error": np.abs(found - truth)}

        def error(metric: str) -> float:
            if metric in gaps:
                return standard_errors.of_mean(gaps[metric])

            def score(kept: np.ndarray) -> float:
                return regression_metrics([metric], truth[kept].tolist(), found[kept].tolist())[metric]

            return standard_errors.jackknife(score, len(truth))

        return {"loss": error("mean_squared_error"), **{metric: error(metric) for metric in self.config.metrics}}

    def predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        records = []
        for example, value in zip(self.setting.splits[split], outputs["logits"][:, 0], strict=True):
            record: dict[str, Any] = {"id": example["id"], "prediction": round(float(value), 6)}
            if example.get("label") is not None:
                record["label"] = _number(example["label"])
            records.append(record)
        return records

    def guess(self) -> dict[str, float]:
        """Return the mean squared error on the evaluated rows of always predicting the mean training label."""
        train = [self.rows[name].arrays["labels"] for name in self.setting.names("train")]
        labels = np.concatenate([self.rows[part].arrays["labels"] for part in self.heldout_parts])
        if not train:
            return {}
        squares = (labels.astype(np.float64) - np.concatenate(train).mean()) ** 2
        return with_error("mean_label_loss", float(np.mean(squares)), standard_errors.of_mean(squares))


@dataclasses.dataclass(frozen=True)
class _SquaredError:
    """The sum of squared errors, and the number of labels."""

    scores: ClassVar[tuple[str, ...]] = ("logits",)

    def __call__(self, outputs: Mapping[str, jax.Array], batch: Batch) -> Sum:
        return self._from(outputs, batch["labels"], batch)

    def taught(
        self, outputs: Mapping[str, jax.Array], said: Mapping[str, jax.Array], batch: Batch, temperature: float
    ) -> Sum:
        """Return the sum of squared differences from a teacher's numbers, and the number of labels."""
        del temperature
        return self._from(outputs, said["logits"][..., 0], batch)

    def _from(self, outputs: Mapping[str, jax.Array], numbers: jax.Array, batch: Batch) -> Sum:
        errors, weights = outputs["logits"][..., 0] - numbers, batch["label_weights"]  # [B], or [B, K] of packed rows
        return Sum(jnp.sum(errors**2 * weights), jnp.sum(weights))


def _number(value: Any) -> float | None:
    """Return a label as a finite number; None if the label is no finite number."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None
