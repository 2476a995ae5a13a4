"""Finds the labelled answers of questions in their contexts; ``windows`` and ``span_qa`` predict answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from bert_jax.errors import few
from bert_jax.records import Example
from bert_jax.tasks.findings import PredictionRecord, clip
from bert_jax.tasks.metrics.spans import exact_match
from bert_jax.tasks.windows import Passage

_AROUND = 120  # characters of the context to show on either side of an answer


class _Place(NamedTuple):
    """Characters [start, end) of an answer in its context.

    ``state`` is "right" if the answer starts at the labelled ``answer_start``, "moved" if it occurs only elsewhere, and
    "absent" if it does not occur in the context.
    """

    start: int
    end: int
    state: Literal["right", "moved", "absent"]


class Gold(NamedTuple):
    """The labelled answer of a question, as a target for training.

    Attributes:
      states: ``_Place.state`` of each labelled answer of the question.
      tokens: first and last passage token of the first usable answer; None if the question has no usable answer.
      within_a_token: whether the usable answer begins or ends inside a token, so that no prediction can equal it.
    """

    states: tuple[str, ...]
    tokens: tuple[int, int] | None = None
    within_a_token: bool = False

    @property
    def unusable(self) -> bool:
        """Whether the question has labelled answers, but none that can be trained on."""
        return bool(self.states) and self.tokens is None


def locate(context: str, text: str, start: int) -> _Place:
    """Return the place of the answer ``text``: at ``start`` if it occurs there, else at the nearest occurrence.

    Of two occurrences at the same distance, the earlier occurrence is taken.
    """
    if text.strip() and start >= 0 and context.startswith(text, start):
        return _Place(start, start + len(text), "right")
    text = text.strip()
    before = context.rfind(text, 0, max(start, 0) + len(text))
    after = context.find(text, max(start, 0))
    places = [place for place in (before, after) if place >= 0]
    if not text or not places:
        return _Place(0, 0, "absent")
    place = min(places, key=lambda place: abs(place - start))
    return _Place(place, place + len(text), "moved")


def find_gold(example: Example, passage: Passage, use_moved: bool) -> Gold:
    """Return the labelled answer of a question. ``use_moved``: whether answers with the state "moved" are usable."""
    context, answers = example["context"], example.get("answers") or []
    places = [locate(context, answer["text"], answer["answer_start"]) for answer in answers]
    states = tuple(place.state for place in places)
    for start, end, state in places:
        usable = state == "right" or (use_moved and state == "moved")
        if usable and (tokens := passage.tokens(start, end)):
            exact = context[passage.starts[tokens[0]] : passage.ends[tokens[1]]]
            return Gold(states, tokens, exact != context[start:end].strip())
    return Gold(states)


def describe(split: str, examples: Sequence[Example], gold: Sequence[Gold], policy: str) -> list[str]:
    """Return lines that count the wrongly labelled answers of a split and name some questions; [] if all are right."""
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
            f"{few(wrong)}"
        )
    inside = [e["id"] for e, one in zip(examples, gold, strict=True) if one.within_a_token]
    if inside:
        lines.append(f"{split}: answers that begin or end inside a token: {len(inside):,}; questions: {few(inside)}")
    return lines


def texts(example: Mapping[str, Any]) -> list[str]:
    """Return the texts of an example's right answers, with which predictions are compared."""
    return [answer["text"] for answer in example.get("answers") or []]


# ---- Predicted answers in the report --------------------------------------------------------------------------------


def weigh(record: PredictionRecord) -> tuple[float, float]:
    """Return whether a predicted answer is wrong, as the metric compares answers, and its probability."""
    right = any(exact_match(answer, record["prediction"]) for answer in record["answers"] or [""])
    return float(not right), _share(record)


def _share(record: PredictionRecord) -> float:
    entry = next((e for e in record["n_best"] if e["text"] == record["prediction"]), None)
    return float(entry["probability"]) if entry else 0.0


def show(example: Example, record: PredictionRecord) -> dict[str, Any]:
    """Return the entries of the report about a predicted answer."""
    shown = {"id": record["id"], "question": clip(example["question"]), "share": _share(record)}
    shown |= {"answers": list(dict.fromkeys(record["answers"])), "prediction": record["prediction"]}
    return shown | {"context": _excerpt(example, record)}


def _excerpt(example: Example, record: PredictionRecord) -> list[list[str]]:
    """Return the context around the predicted and the right answer, as a list of [text, mark].

    The mark is "predicted", "right" or "both" for text of these answers, "gap" where text was left out, and else "".
    """
    context = example["context"]
    found = None if record.get("start") is None else (record["start"], record["end"])
    places = [locate(context, answer["text"], answer["answer_start"]) for answer in example.get("answers") or ()]
    right = next(((place.start, place.end) for place in places if place.state == "right"), None)
    marked = {"predicted": found, "right": right}
    spans = {name: span for name, span in marked.items() if span is not None}
    near = {
        i for start, end in spans.values() for i in range(max(0, start - _AROUND), min(len(context), end + _AROUND))
    }
    near = near or set(range(min(len(context), 2 * _AROUND)))
    parts: list[list[str]] = []
    before = -1
    for i in sorted(near):
        inside = [name for name, (start, end) in spans.items() if start <= i < end]
        mark = "both" if len(inside) == 2 else inside[0] if inside else ""
        if i != before + 1:
            parts.append(["…", "gap"])
        if not parts or parts[-1][1] != mark:
            parts.append(["", mark])
        parts[-1][0] += context[i]
        before = i
    return parts if before == len(context) - 1 else [*parts, ["…", "gap"]]
