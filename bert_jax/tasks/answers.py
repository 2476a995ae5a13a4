"""Finds the given answers in their contexts, and describes the answers that are wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from bert_jax.records import Example
from bert_jax.tasks.windows import Passage

SHOWN = 5


class Located(NamedTuple):
    """Characters [start, end) of an answer: "moved" if it is elsewhere than given, "absent" if it is nowhere."""

    start: int
    end: int
    state: Literal["right", "moved", "absent"]


class Gold(NamedTuple):
    """The answer of a question to train on.

    Attributes:
      states: ``Located.state`` of all its answers.
      tokens: first and last passage token of the first usable answer; None if the question has no usable answer.
      within_a_token: whether that answer begins or ends inside a token, so that no prediction can be equal to it.
    """

    states: tuple[str, ...]
    tokens: tuple[int, int] | None = None
    within_a_token: bool = False

    @property
    def unusable(self) -> bool:
        """Whether the question has answers, but none to train on."""
        return bool(self.states) and self.tokens is None


def locate(context: str, text: str, start: int) -> Located:
    """Return the answer at its given place, or else at the nearest place where it occurs, the earlier one on a tie."""
    if text.strip() and start >= 0 and context.startswith(text, start):
        return Located(start, start + len(text), "right")
    text = text.strip()
    before = context.rfind(text, 0, max(start, 0) + len(text))
    after = context.find(text, max(start, 0))
    places = [place for place in (before, after) if place >= 0]
    if not text or not places:
        return Located(0, 0, "absent")
    place = min(places, key=lambda found: abs(found - start))
    return Located(place, place + len(text), "moved")


def find_gold(example: Example, passage: Passage, use_moved: bool) -> Gold:
    """Return the answer of a question to train on. ``use_moved``: whether an answer may be elsewhere than given."""
    context, answers = example["context"], example.get("answers") or []
    located = [locate(context, answer["text"], answer["answer_start"]) for answer in answers]
    states = tuple(answer.state for answer in located)
    for found in located:
        if found.state == "right" or (use_moved and found.state == "moved"):
            tokens = passage.tokens(found.start, found.end)
            if tokens is not None:
                exact = context[passage.starts[tokens[0]] : passage.ends[tokens[1]]]
                return Gold(states, tokens, exact != context[found.start : found.end].strip())
    return Gold(states)


def describe(split: str, examples: Sequence[Example], gold: Sequence[Gold], policy: str) -> list[str]:
    """Return lines that count the wrong answers of a split, with ids of the first questions; [] if all are right."""
    lines = []
    total = sum(len(one.states) for one in gold)
    moved, absent = (sum(one.states.count(state) for one in gold) for state in ("moved", "absent"))
    if moved or absent:
        wrong = [e["id"] for e, one in zip(examples, gold, strict=True) if set(one.states) - {"right"}]
        elsewhere = "where they stand nearest to it" if policy == "repair" else "not used"
        unusable = sum(one.unusable for one in gold)
        lines.append(
            f"{split}: {moved + absent:,} of {total:,} answers are not at their answer_start: {moved:,} taken "
            f"{elsewhere}, {absent:,} not in the context; {unusable:,} questions cannot be trained on; questions: "
            f"{listed(wrong)}"
        )
    inside = [e["id"] for e, one in zip(examples, gold, strict=True) if one.within_a_token]
    if inside:
        lines.append(f"{split}: answers that begin or end inside a token: {len(inside):,}; questions: {listed(inside)}")
    return lines


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are, as text."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def texts(example: Mapping[str, Any]) -> list[str]:
    """Return the right answers, in the form in which they are compared with predictions."""
    return [answer["text"] for answer in example.get("answers") or []]
