"""Predicts the class of a text or of a pair of texts (Devlin et al. 2019, section 4.1, figure 4 a and b)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy import special

from bert_jax.errors import UserError
from bert_jax.examples.columns import Roles
from bert_jax.examples.labels import label_names
from bert_jax.losses.cross_entropy import prediction
from bert_jax.models.heads import Classifier
from bert_jax.models.model import POOLER, Part
from bert_jax.records import Example
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.task import Term
from bert_jax.tasks.base import ExampleTask, ProblemType, with_error
from bert_jax.tasks.findings import Judge, PredictionRecord, clip
from bert_jax.tasks.metrics import standard_errors
from bert_jax.tasks.metrics.classification import TITLES, check_names, classification_metrics


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of ``config.task``, besides its name."""

    metrics: tuple[str, ...] = ("accuracy",)  # of a file in bert_jax/tasks/metrics, the first is the main one
    positive: str | None = None  # the positive label of a binary F1; if None, the label whose name sorts last
    # on the pooled output; if None, the rate of an imported model's classifier, else the model's rate
    dropout_rate: float | None = None


def weigh(record: PredictionRecord) -> tuple[float, float]:
    """Return whether a prediction is wrong, and its probability."""
    return float(record["label"] != record["prediction"]), max(record["probabilities"].values())


def show(example: Example, record: PredictionRecord) -> dict[str, Any]:
    """Return the entries of the report about a prediction."""
    shown = {"id": record["id"], "text": clip(example["text"])}
    if example.get("pair") is not None:
        shown["pair"] = clip(example["pair"])
    shares = record["probabilities"]
    truth, found = record["label"], record["prediction"]
    return shown | {"label": truth, "prediction": found, "share": shares[found], "label_share": shares.get(truth)}


class Task(ExampleTask):
    """The classification task.

    Its loss is the mean cross-entropy of softmax(C W^T + b), with C the pooled [CLS] vector.
    """

    roles = Roles(("text",), ("pair", "label"))
    answer, main_metric = "label", "accuracy"
    titles: ClassVar[Mapping[str, str]] = TITLES
    exported_as: tuple[str, ProblemType | None] | None = ("ForSequenceClassification", "single_label_classification")
    head_dropout = "classifier_dropout_rate"
    judge = Judge("classes", weigh, show)
    reads_one_vector = True
    packs = True

    @classmethod
    def labels(cls, config: Config, examples: Sequence[Example]) -> tuple[str, ...]:
        names = label_names(examples, "label")
        if len(names) < 2:
            raise UserError(
                f"all {len(examples):,} examples to train on have the label {names[0]!r}; at least two labels are"
                " needed"
            )
        check_names(config.metrics, names, config.positive)
        return names

    def answer_names(self, example: Example) -> Sequence[str]:
        return () if example.get("label") is None else (str(example["label"]),)

    def encode(self, split: str, examples: Sequence[Example]) -> EncodedRows:
        del split
        texts, pairs = [e["text"] for e in examples], [e.get("pair") for e in examples]
        return self.make_rows(self.pair_sequences(texts, pairs), self.label_arrays(examples))

    def label_arrays(self, examples: Sequence[Example]) -> dict[str, np.ndarray]:
        """Return the arrays ``labels`` and ``label_weights``, as ``targets`` does."""
        number = {name: i for i, name in enumerate(self.setting.labels)}
        labels = [None if e.get("label") is None else number[str(e["label"])] for e in examples]
        return self.targets(labels, "int32")

    def head(self, dropout_rate: float) -> tuple[Part, ...]:
        number = len(self.setting.labels)
        return (POOLER, Part.of("classifier", Classifier, num_outputs=number, dropout_rate=dropout_rate))

    def terms(self, config: Config) -> dict[str, Term]:
        return {"": prediction("logits", "labels", "label_weights")}

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        names = [metric for metric in self.config.metrics if metric != "accuracy"]
        truth, found = self.rows[part].arrays["labels"], outputs["logits"].argmax(axis=-1)
        known = self.rows[part].arrays["label_weights"] > 0
        labels = self.setting.labels
        return classification_metrics(names, truth[known].tolist(), found[known].tolist(), labels, self.config.positive)

    def errors(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the binomial standard error of the accuracy, and the jackknife errors of the other metrics."""
        known = self.rows[part].arrays["label_weights"] > 0
        truth, found = self.rows[part].arrays["labels"][known], outputs["logits"].argmax(axis=-1)[known]

        def error(metric: str) -> float:
            def score(kept: np.ndarray) -> float:
                labels, positive = self.setting.labels, self.config.positive
                return classification_metrics([metric], truth[kept], found[kept], labels, positive)[metric]

            return standard_errors.jackknife(score, len(truth))

        others = {metric: error(metric) for metric in self.config.metrics if metric != "accuracy"}
        return {"accuracy": standard_errors.of_share(float(np.mean(truth == found)), len(truth)), **others}

    def predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        shares = special.softmax(np.asarray(outputs["logits"], np.float64), axis=-1)
        records = []
        for example, row in zip(self.setting.splits[split], shares, strict=True):
            record = {"id": example["id"], "prediction": self.setting.labels[int(row.argmax())]}
            if example.get("label") is not None:
                record["label"] = str(example["label"])
            record["probabilities"] = {
                name: round(float(p), 6) for name, p in zip(self.setting.labels, row, strict=True)
            }
            records.append(record)
        return records

    def guess(self) -> dict[str, float]:
        """Return the accuracy of always predicting the most common label of the evaluated rows."""
        labels = np.concatenate([self.rows[part].arrays["labels"] for part in self.heldout_parts])
        share = float(np.bincount(labels).max() / len(labels))
        return with_error("majority_rate", share, standard_errors.of_share(share, len(labels)))
