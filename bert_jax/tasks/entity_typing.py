"""Predicts the types of an entity that a text mentions, none, one or several (Zhang et al. 2019, section 3.4).

Marks stand around the mention. Each type is predicted from [CLS] by a sigmoid, apart from the other types, as published
for FIGER and Open Entity. Any encoder may learn it; ERNIE (THU) gets the vectors of entities too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import special

from bert_jax.examples.columns import Roles
from bert_jax.examples.labels import label_names
from bert_jax.records import Batch, Example, Sum
from bert_jax.task import Term
from bert_jax.tasks import mentions
from bert_jax.tasks.base import ProblemType
from bert_jax.tasks.findings import Judge, PredictionRecord, clip
from bert_jax.tasks.mentions import MentionTask
from bert_jax.tasks.metrics import standard_errors
from bert_jax.tasks.metrics.counting import precision_recall_f1, ratio


@dataclasses.dataclass(frozen=True)
class Config(mentions.Config):
    """The keys of ``config.task``, besides its name."""

    marks: tuple[str, ...] = ("。",)  # around the mention, as published
    dropout_rate: float | None = None  # on the pooled output; if None, as in ``classification``


def _weigh(record: PredictionRecord) -> tuple[float, float]:
    wrong = {*record["label"]} ^ {*record["prediction"]}
    return float(bool(wrong)), max((abs(record["probabilities"][name] - 0.5) for name in wrong), default=0.0)


def _show(example: Example, record: PredictionRecord) -> dict[str, Any]:
    shown = {"id": record["id"], "text": clip(example["text"]), "mention": example["text"][slice(*example["mention"])]}
    return shown | {name: ", ".join(record[name]) for name in ("label", "prediction")}


class Task(MentionTask):
    """The entity-typing task. Its loss is the mean binary cross-entropy over the types of all examples.

    A type is predicted if its probability is above a half. ``f1``, ``precision`` and ``recall`` count the types of all
    examples (loose micro), ``f1_of_examples`` is from the means over examples (loose macro), and ``accuracy`` is the
    share of examples whose types are all right (strict), each as Ling and Weld 2012 define it.
    """

    roles = Roles(("text", "mention"), ("entity", "types"))
    mentions = ("mention",)
    answer, main_metric = "types", "f1"
    titles: ClassVar[Mapping[str, str]] = {
        "f1": "F1 of types",
        "f1_of_examples": "F1, mean over examples",
        "precision": "Precision",
        "recall": "Recall",
        "accuracy": "Share of examples with all types right",
    }
    exported_as: tuple[str, ProblemType | None] | None = ("ForSequenceClassification", "multi_label_classification")
    judge = Judge("types", _weigh, _show)

    @classmethod
    def metric(cls, config: Any) -> str:
        return cls.main_metric

    @classmethod
    def labels(cls, config: Any, examples: Sequence[Example]) -> tuple[str, ...]:
        return label_names(examples, "types")

    def answer_names(self, example: Example) -> Sequence[str]:
        return example.get("types") or ()

    def label_arrays(self, examples: Sequence[Example]) -> dict[str, np.ndarray]:
        """Return ``labels`` [N, K] float32, 1 for each type of an example, and ``label_weights`` [N]."""
        known = np.array([example.get("types") is not None for example in examples], np.float32)
        types = [[name in (example.get("types") or ()) for name in self.setting.labels] for example in examples]
        return {"labels": np.array(types, np.float32).reshape(len(examples), -1), "label_weights": known}

    def terms(self, config: Any) -> dict[str, Term]:
        return {"": Term(_binary_cross_entropy)}

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        return _scores(*self._types(part, outputs))

    def errors(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the jackknife errors of all scores over examples, and the binomial error of the accuracy."""
        truth, found = self._types(part, outputs)

        def error(metric: str) -> float:
            return standard_errors.jackknife(lambda kept: _scores(truth[kept], found[kept])[metric], len(truth))

        share = float((truth == found).all(axis=1).mean()) if len(truth) else 0.0
        return {name: error(name) for name in self.titles if name != "accuracy"} | {
            "accuracy": standard_errors.of_share(share, len(truth))
        }

    def _types(self, part: str, outputs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the true and the predicted types, bool [N, K], of the examples whose types are known."""
        arrays = self.rows[part].arrays
        known = arrays["label_weights"] > 0
        return arrays["labels"][known] > 0, outputs["logits"][known] > 0

    def predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Return one record per example: its types (``prediction``) and the probability of every type."""
        records, names = [], self.setting.labels
        for example, row in zip(self.setting.splits[split], outputs["logits"].astype(np.float64), strict=True):
            record = {"id": example["id"], "prediction": [name for name, x in zip(names, row, strict=True) if x > 0]}
            if example.get("types") is not None:
                record["label"] = list(example["types"])
            shares = {name: round(float(p), 6) for name, p in zip(names, special.expit(row), strict=True)}
            records.append(record | {"probabilities": shares})
        return records

    def guess(self) -> dict[str, float]:
        return {}


def _binary_cross_entropy(outputs: Mapping[str, jax.Array], batch: Batch) -> Sum:
    """Return the sum of the mean cross-entropies of the types of each example, and the number of examples."""
    weights = batch["label_weights"]  # [B], or [B, K] of packed rows
    each = optax.sigmoid_binary_cross_entropy(outputs["logits"], batch["labels"]).mean(axis=-1)
    return Sum(jnp.sum(each * weights), jnp.sum(weights))


def _scores(truth: np.ndarray, found: np.ndarray) -> dict[str, float]:
    """Return the scores of predicted types ``found``, bool [N, K]."""
    both = truth & found
    right, predicted, true = (x.sum(axis=1) for x in (both, found, truth))  # [N]
    named, typed = predicted > 0, true > 0
    precision = ratio((right[named] / predicted[named]).sum(), named.sum())
    recall = ratio((right[typed] / true[typed]).sum(), typed.sum())
    return {
        **precision_recall_f1(right.sum(), predicted.sum(), true.sum()),
        "f1_of_examples": ratio(2 * precision * recall, precision + recall),
        "accuracy": ratio((truth == found).all(axis=1).sum(), len(truth)),
    }
