"""Predicts the relation of two entities that a text mentions, head and tail (Zhang et al. 2019, section 3.4).

Marks stand around both mentions, and the relation is predicted from [CLS], as in ``classification``. Any encoder may
learn it; ERNIE (THU) gets the vectors of the entities too.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bert_jax.examples.columns import Roles
from bert_jax.records import Example
from bert_jax.tasks import classification, mentions
from bert_jax.tasks.findings import Judge, PredictionRecord
from bert_jax.tasks.mentions import MentionTask


@dataclasses.dataclass(frozen=True)
class Config(classification.Config, mentions.Config):
    """The keys of ``config.task``, besides its name: all keys of ``classification``, and the following."""

    marks: tuple[str, ...] = ("#", "$")  # around the head and around the tail, as published


def _show(example: Example, record: PredictionRecord) -> dict[str, Any]:
    head, tail = (example["text"][slice(*example[role])] for role in ("head", "tail"))
    return classification.show({**example, "pair": f"{head} – {tail}"}, record)


class Task(MentionTask):
    """The relation-classification task. Its loss is the mean cross-entropy of softmax(C W^T + b)."""

    roles = Roles(("text", "head", "tail"), ("head_entity", "tail_entity", "label"))
    mentions = ("head", "tail")
    judge = Judge("classes", classification.weigh, _show)
