"""Predicts the class of a pair of texts by a stochastic answer network, as MT-DNN does (Liu et al. 2019, section 3).

Examples, rows, loss and metrics are as in ``classification``; both texts are needed.
"""

from __future__ import annotations

import dataclasses

from bert_jax.configuration import ONE, check_fields
from bert_jax.examples.columns import Roles
from bert_jax.models.model import Part
from bert_jax.models.san import StochasticAnswer
from bert_jax.tasks import classification


@dataclasses.dataclass(frozen=True)
class Config(classification.Config):
    """The keys of ``config.task``, besides its name: all keys of ``classification``, and the following."""

    reading_steps: int = 5  # steps in which the premise is read
    step_dropout_rate: float = 0.1  # probability that a step is left out of a prediction in training

    def __post_init__(self) -> None:
        check_fields(self, "config.task", "at least 1 is needed", "reading_steps", sound=lambda value: value >= 1)
        allowed = "from 0 to below 1 is allowed"
        check_fields(self, "config.task", allowed, "step_dropout_rate", sound=lambda value: 0 <= value < ONE)


class Task(classification.Task):
    """The classification task with the head ``StochasticAnswer``: the text is the premise, the pair the hypothesis."""

    roles = Roles(("text", "pair"), ("label",))
    exported_as = None  # transformers has no class with this head
    reads_one_vector = False
    packs = False  # the head reads all vectors of a row
    config: Config

    def head(self, dropout_rate: float) -> tuple[Part, ...]:
        options = {"reading_steps": self.config.reading_steps, "step_dropout_rate": self.config.step_dropout_rate}
        number = len(self.setting.labels)
        part = Part.of("classifier", StochasticAnswer, num_outputs=number, dropout_rate=dropout_rate, **options)
        return (part,)
