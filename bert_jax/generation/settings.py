"""The settings of generation: how the next token is chosen, and when a text ends."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError

MOST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a model writes. The settings do what they do in ``generate`` of transformers; some names are shorter.

    method:
      greedy  takes the most likely token at each step.
      sample  draws a token by its probability, after ``temperature``, then ``top_k``, then ``top_p``.
      beam    keeps the ``beams`` most likely texts at each step and returns the best texts that ended. The score of a
        text is the sum of the log-probabilities of its tokens divided by its number of tokens to the power of
        ``length_penalty``.
    """

    method: Literal["greedy", "sample", "beam"] = "greedy"  # how the next token is chosen
    max_new_tokens: int = 40  # the most tokens that follow a prompt
    temperature: float = 1.0  # divides the logits of sample: below 1, likely tokens become likelier
    top_k: int = 0  # sample draws from so many most likely tokens; 0: from all
    top_p: float = 1.0  # sample draws from the fewest most likely tokens whose probabilities reach this sum
    seed: int = 0  # of sample; the same seed draws the same texts
    beams: int = 4  # texts that beam keeps at each step
    length_penalty: float = 1.0  # of beam: above 0 prefers long texts, below 0 short texts
    no_repeat_ngram: int = 0  # so many tokens in a row do not occur twice; 0: they may
    num_results: int = 1  # texts for each prompt; beam returns its best, at most ``beams``

    # the settings that a single method reads
    of_method: ClassVar[dict[str, str]] = {
        "temperature": "sample",
        "top_k": "sample",
        "top_p": "sample",
        "seed": "sample",
        "beams": "beam",
        "length_penalty": "beam",
    }

    def __post_init__(self) -> None:
        where = "generate"
        if self.method not in ("greedy", "sample", "beam"):
            raise UserError(f"{where}.method is {self.method!r}; allowed: 'greedy', 'sample', 'beam'")
        whole = ("max_new_tokens", "beams", "num_results")
        check_fields(self, where, f"1 to {MOST:,} are allowed", *whole, sound=lambda value: 1 <= value <= MOST)
        counts = ("top_k", "no_repeat_ngram", "seed")
        check_fields(self, where, f"0 to {MOST:,} are allowed", *counts, sound=lambda value: 0 <= value <= MOST)
        heat = "a number from 0.001 to 1,000 is needed (--method=greedy takes the most likely token)"
        check_fields(self, where, heat, "temperature", sound=lambda value: 0.001 <= value <= 1000)
        check_fields(self, where, "more than 0 and at most 1 is needed", "top_p", sound=lambda value: 0 < value <= 1)
        finite = "a number from -100 to 100 is needed"
        check_fields(
            self, where, finite, "length_penalty", sound=lambda value: math.isfinite(value) and abs(value) <= 100
        )
        self._check_method()

    def _check_method(self) -> None:
        """Raise ``UserError`` for a setting that the method does not read."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name, method in self.of_method.items():
            if method != self.method and getattr(self, name) != defaults[name]:
                raise UserError(
                    f"generate.{name} is {getattr(self, name)!r}, which acts in method {method!r} alone; leave it out, "
                    f"or give method={method}"
                )
        if self.method == "greedy" and self.num_results > 1:
            raise UserError(
                f"generate.num_results is {self.num_results}, and greedy has one result; give method=sample or beam"
            )
        if self.method == "beam" and self.num_results > self.beams:
            raise UserError(
                f"generate.num_results is {self.num_results}, and beam keeps {self.beams} texts; give as many beams"
            )

    @property
    def rows(self) -> int:
        """The rows that a model computes for each prompt."""
        return self.beams if self.method == "beam" else self.num_results
