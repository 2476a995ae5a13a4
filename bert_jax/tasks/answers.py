"""Given answers in their contexts: where they really stand, and what is wrong with those that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from bert_jax.records import Example
from bert_jax.tasks.windows import Passage

SHOWN = 5


class Located(NamedTuple):
    """Characters [start, end) of an answer. ``moved``: it stands elsewhere than said; ``absent``: nowhere."""

    start: int
    end: int
    state: Literal["right", "moved", "absent"]


class Gold(NamedTuple):
    """What a question is trained on.

    Attributes:
      states: of all its answers.
      tokens: first and last passage token of the first answer that can be used; None where the question has no answer,
        or none that can be used.
      within_a_token: that answer begins or ends inside a token, so that no prediction can be equal to it.
    """

    states: tuple[str, ...]
    tokens: tuple[int, int] | None = None
    within_a_token: bool = False

    @property
    def unusable(self) -> bool:
        """There are answers, and none can be trained on."""
        return bool(self.states) and self.tokens is None


def locate(context: str, text: str, start: int) -> Located:
    """An answer where it is said to be, else where it stands nearest to that, the earlier place on a tie."""
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
    """The answers of a question; ``use_moved``: those too that stand elsewhere than said."""
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
    """What is wrong with the answers of a split, counted, with the ids of the first questions; [] for nothing."""
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
    """The first names, and how many more there are."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def texts(example: Mapping[str, Any]) -> list[str]:
    """The right answers, as they are compared with predictions."""
    return [answer["text"] for answer in example.get("answers") or []]
