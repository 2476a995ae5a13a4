"""Predicts which of two or more choices is right (Devlin et al. 2019, section 4.4: SWAG).

A row has C sequences, one per choice: ``[CLS] context [SEP] question choice [SEP]``. The same learned vector scores
each sequence. If the data has no context, name the question's column for both roles, context and question; the second
segment is then only the choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import special

from bert_jax.errors import UserError
from bert_jax.examples.columns import Roles
from bert_jax.records import Example
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.tasks.base import Setting
from bert_jax.tasks.choices import ChoiceTask
from bert_jax.tasks.findings import Judge, PredictionRecord, clip
from bert_jax.tasks.metrics import standard_errors
from bert_jax.tasks.metrics.counting import ratio

_READINGS = ("index", "letter", "text")


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of ``config.task``, besides its name.

    Attributes:
      label: how a label names the right choice: by "index" (from 0), "letter" (from A) or "text"; "auto" takes the
        first of these that fits every example.
      dropout_rate: the dropout rate on the pooled output. If None, the rate of an imported model's classifier, else
        the model's rate.
    """

    label: Literal["auto", "index", "letter", "text"] = "auto"
    dropout_rate: float | None = None


def _weigh(record: PredictionRecord) -> tuple[float, float]:
    return float(record["label"] != record["prediction"]), max(record["probabilities"])


def _show(example: Example, record: PredictionRecord) -> dict[str, Any]:
    shown = {name: clip(example[name]) for name in ("context", "question") if example.get(name)}
    choices = [clip(choice, 300) for choice in example["choices"]]
    answer = {"label": record["label"], "prediction": record["prediction"], "shares": record["probabilities"]}
    return {"id": record["id"], **shown, "choices": choices, **answer}


class Task(ChoiceTask):
    """The multiple-choice task. Its loss is the mean cross-entropy of the softmax over the choices of a row."""

    roles = Roles(("context", "choices"), ("question", "label"))
    answer, main_metric = "label", "accuracy"
    titles: ClassVar[Mapping[str, str]] = {"accuracy": "Accuracy"}
    judge = Judge("choices", _weigh, _show)

    def __init__(self, config: Config, setting: Setting):
        self.num_choices = max(
            (len(example["choices"]) for examples in setting.splits.values() for example in examples), default=1
        )
        self.reading = reading(config.label, [e for examples in setting.splits.values() for e in examples])
        super().__init__(config, setting)

    def check(self, splits: Mapping[str, Sequence[Example]]) -> None:
        problems, every = [], [example for examples in splits.values() for example in examples]
        if single := [example["id"] for example in every if len(example["choices"]) < 2]:
            problems.append(f"{len(single):,} examples have fewer than 2 choices, such as {single[0]}")
        if self.reading is None:
            problems.append(_misread(self.config.label, every))
        if problems:
            raise UserError("; ".join(problems))

    def encode(self, split: str, examples: Sequence[Example]) -> EncodedRows:
        del split
        choices = [[(e["context"], _join(e, choice)) for choice in e["choices"]] for e in examples]
        return self.choice_rows(choices, _right_choices(self.reading, examples))

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        arrays = self.rows[part].arrays
        known = arrays["label_weights"] > 0
        right = arrays["labels"] == self.scores(part, outputs).argmax(axis=-1)
        return {"accuracy": ratio(int(np.sum(right & known)), int(np.sum(known)))}

    def errors(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the binomial standard error of the accuracy."""
        known = int(np.sum(self.rows[part].arrays["label_weights"] > 0))
        return {"accuracy": standard_errors.of_share(self.finish(part, outputs)["accuracy"], known)}

    def predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Return one record per example: index and text of the predicted choice, and the probability of each choice."""
        shares = special.softmax(self.scores(split, outputs), axis=-1)
        arrays, records = self.rows[split].arrays, []
        for i, example in enumerate(self.setting.splits[split]):
            index = int(shares[i].argmax())
            record: dict[str, Any] = {"id": example["id"], "prediction": index, "text": example["choices"][index]}
            if arrays["label_weights"][i]:
                record["label"] = int(arrays["labels"][i])
            record["probabilities"] = [round(float(p), 6) for p in shares[i, : len(example["choices"])]]
            records.append(record)
        return records

    def guess(self) -> dict[str, float]:
        """Return the accuracy of guessing a choice at random."""
        chances = [1 / len(e["choices"]) for part in self.heldout_parts for e in self.setting.splits[part]]
        return {"chance_rate": float(np.mean(chances))}


def _join(example: Example, choice: str) -> str:
    """Return the second segment: the question (or the beginning of the sentence), if any, then the choice."""
    question = example.get("question")
    return f"{question} {choice}" if question and question != example["context"] else choice


def reading(wanted: str, examples: Sequence[Example]) -> str | None:
    """Return how labels name choices: ``wanted``, or for "auto" the first of ``_READINGS`` that fits all examples.

    Returns None if no allowed reading fits.
    """
    for name in _READINGS if wanted == "auto" else (wanted,):
        places = _right_choices(name, examples)
        if all(place is not None or e.get("label") is None for place, e in zip(places, examples, strict=True)):
            return name
    return None


def _right_choices(name: str | None, examples: Sequence[Example]) -> list[int | None]:
    """Return the index of each example's right choice; None if the label is missing or does not name a choice."""
    return [None if e.get("label") is None else _place(name, e["label"], e["choices"]) for e in examples]


def _place(name: str | None, label: Any, choices: Sequence[str]) -> int | None:
    text = str(label).strip()
    if name == "text":
        stripped = [choice.strip() for choice in choices]
        return stripped.index(text) if text in stripped else None
    if name == "index":
        place = int(text) if text.isdecimal() else -1
    else:
        place = ord(text.upper()) - ord("A") if len(text) == 1 else -1
    return place if 0 <= place < len(choices) else None


def _misread(wanted: str, examples: Sequence[Example]) -> str:
    names = _READINGS if wanted == "auto" else (wanted,)
    # Assume that the user meant the reading that fits the most labels.
    name = max(names, key=lambda one: sum(place is not None for place in _right_choices(one, examples)))
    places = zip(_right_choices(name, examples), examples, strict=True)
    wrong = [e for place, e in places if place is None and e.get("label") is not None]
    listed = ", ".join(f"{e['label']!r} in {e['id']} of {len(e['choices'])} choices" for e in wrong[:3])
    return (
        f"{len(wrong):,} labels name no choice: {listed}; allowed is the {name} of a choice (indices count from 0, "
        "letters from A); config.data.columns.label or config.task.label may be another"
    )
