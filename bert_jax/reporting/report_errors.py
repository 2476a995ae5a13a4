"""The part of the report that shows the errors of a fine-tuned model.

The errors are read from ``details.json``. The task can be any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from bert_jax.reporting.formats import figure, is_number
from bert_jax.reporting.page import folded, section, table
from bert_jax.reporting.pictures import heat_table, scatter

FIRST_SHOWN = 6  # so many wrong examples are visible, the others folded
MAX_LABEL_ROWS = 30  # a longer table is folded
TAG_COLOURS = "abcdefg"


def errors(details: Mapping[str, Any]) -> str:
    """Return HTML sections for each split with known answers: confused labels, scores of labels, wrong examples."""
    splits = {name: found for name, found in details["splits"].items() if found.get("kind") in CARDS}
    parts = []
    for name, found in splits.items():
        of_split = f", {name}" if len(splits) > 1 else ""
        parts.append(section(f"Which labels are mixed up{of_split}", _confusion(found)))
        parts.append(section(f"Label by label{of_split}", _labels(found)))
        parts.append(section(f"Predicted against true{of_split}", _scatter(found)))
        parts.append(section(f"{_wrong_title(found)}{of_split}", _wrong(found, details.get("labels") or [])))
    return "\n".join(part for part in parts if part)


def _confusion(found: Mapping[str, Any]) -> str:
    if matrix := found.get("confusion"):
        note = "Rows are the true labels, columns the predicted ones; shares are of the row."
        body = heat_table(matrix["labels"], matrix["counts"])
    elif pairs := found.get("confused"):
        note = "The pairs that are most often taken for each other; shares are of all with that true label."
        body = table(
            ["true", "predicted", "count", "share"], [[t, p, f"{n:,}", f"{n / of:.1%}"] for t, p, n, of in pairs], 2
        )
    else:
        return ""
    return f'<div class="card">{body}<p class="small soft">{note}</p></div>'


def _labels(found: Mapping[str, Any]) -> str:
    labels = found.get("per_label") or {}
    rows = [
        [name, *(figure(one[score]) for score in ("precision", "recall", "f1")), f"{one['support']:,.0f}"]
        for name, one in sorted(labels.items(), key=lambda item: item[1]["f1"])
    ]
    body = table(["label, the weakest first", "precision", "recall", "F1", "examples"], rows)
    if len(rows) > MAX_LABEL_ROWS:
        return folded(f"All {len(rows):,} labels", body)
    return f'<div class="card">{body}</div>' if rows else ""


def _scatter(found: Mapping[str, Any]) -> str:
    drawing = scatter([(x, y) for x, y in found.get("points") or []], "true", "predicted")
    note = "On the dashed line a prediction is right. Point at a dot for its values."
    return f'<figure class="card scatter">{drawing}<figcaption>{note}</figcaption></figure>' if drawing else ""


def _wrong_title(found: Mapping[str, Any]) -> str:
    return {"numbers": "The largest errors", "pairs": "Pairs taken for the least alike"}.get(
        found["kind"], "Wrong, and sure of it"
    )


def _wrong(found: Mapping[str, Any], labels: Sequence[str]) -> str:
    cards = [CARDS[found["kind"]](one, labels) for one in found.get("wrong") or []]
    total, answered = found.get("num_wrong"), found.get("num_answered", 0)
    note = ""
    if total is not None:
        which = f", the {len(cards):,} surest here" if total > len(cards) else ""
        note = (
            f"{total:,} of {answered:,} {'is' if total == 1 else 'are'} wrong{which}."
            if total
            else f"None of {answered:,} is wrong."
        )
    cards = [f'<div class="card wrong">{card}</div>' for card in cards]
    grid = '<div class="examples">\n{}\n</div>'
    body = f'<p class="small soft">{note}</p>' if note else ""
    if cards[:FIRST_SHOWN]:
        body += grid.format("\n".join(cards[:FIRST_SHOWN]))
    if more := cards[FIRST_SHOWN:]:
        body += folded(f"{len(more):,} more", grid.format("\n".join(more)))
    return body


def _verdict(truth: str, found: str, share: Any = None, label_share: Any = None, name: str = "") -> str:
    sure = f" {share:.1%}" if is_number(share) else ""
    less = f" {label_share:.1%}" if is_number(label_share) else ""
    return (
        f'<p class="verdict">predicted <span class="bad-word">{escape(found)}</span>{sure} · '
        f'true <span class="right-word">{escape(truth)}</span>{less}{_id(name)}</p>'
    )


def _id(name: str) -> str:
    return f' <span class="soft small">· {escape(str(name))}</span>' if name else ""


def _texts(one: Mapping[str, Any]) -> str:
    second = f'<p class="second">{escape(one["pair"])}</p>' if one.get("pair") else ""
    return f"<p>{escape(one.get('text', ''))}</p>{second}"


def _class_card(one: Mapping[str, Any], labels: Sequence[str]) -> str:
    del labels
    return _texts(one) + _verdict(one["label"], one["prediction"], one.get("share"), one.get("label_share"), one["id"])


def _number_card(one: Mapping[str, Any], labels: Sequence[str]) -> str:
    del labels
    return _texts(one) + _verdict(f"{one['label']:g}", f"{one['prediction']:.3f}", name=one["id"])


def _pair_card(one: Mapping[str, Any], labels: Sequence[str]) -> str:
    del labels
    return f'{_texts(one)}<p class="verdict">cosine {one["prediction"]:.3f}{_id(one["id"])}</p>'


def _choice_card(one: Mapping[str, Any], labels: Sequence[str]) -> str:
    del labels
    lines = []
    for i, (choice, share) in enumerate(zip(one["choices"], one["shares"], strict=True)):
        kind = "chosen" if i == one["prediction"] else "right" if i == one["label"] else ""
        word = {"chosen": '<span class="bad-word">predicted</span> ', "right": '<span class="right-word">true</span> '}
        lines.append(
            f'<li class="{kind}">{word.get(kind, "")}{escape(choice)} <span class="soft">{share:.1%}</span></li>'
        )
    asked = "".join(f"<p>{escape(one[name])}</p>" for name in ("context", "question") if one.get(name))
    return f'{asked}<ul>{"".join(lines)}</ul><p class="small soft">{escape(str(one["id"]))}</p>'


def _answer_card(one: Mapping[str, Any], labels: Sequence[str]) -> str:
    del labels
    parts = (
        escape(text) if mark == "" else f'<span class="soft"> {escape(text)} </span>' if mark == "gap"
        else f'<mark class="{escape(mark)}">{escape(text)}</mark>'
        for text, mark in one["context"]
    )  # fmt: skip
    truth = " / ".join(one["answers"]) or "no answer"
    shown = _verdict(truth, one["prediction"] or "no answer", one.get("share"), name=one["id"])
    return f'<p><b>{escape(one["question"])}</b></p><p class="small">{"".join(parts)}</p>{shown}'


def _tag_card(one: Mapping[str, Any], labels: Sequence[str]) -> str:
    kinds = list(dict.fromkeys(_kind(label) for label in labels if label != "O"))
    both = list(zip(one["label"], one["prediction"], strict=True))
    rows = []
    for title, tags in (("true", one["label"]), ("predicted", one["prediction"])):
        spans = _tag_spans(one["words"], tags, [t != p for t, p in both] if title == "predicted" else [])
        words = " ".join(_tag_span(*span, kinds) for span in spans)
        rows.append(f'<p class="words"><i>{title}</i>{words}</p>')
    return "".join(rows) + f'<p class="small soft">surest wrong tag {one["share"]:.1%} · {escape(str(one["id"]))}</p>'


def _kind(tag: str) -> str:
    return tag[2:] if tag[1:2] == "-" else tag


def _tag_spans(words: Sequence[str], tags: Sequence[str], wrong: Sequence[bool]) -> list[tuple[str, str]]:
    """Return (HTML of words, entity type) pairs.

    The words of an entity are joined in one pair; outside entities the type is "".
    """
    spans: list[tuple[str, str]] = []
    for i, (word, tag) in enumerate(zip(words, tags, strict=True)):
        text = f"<u>{escape(word)}</u>" if wrong and wrong[i] else escape(word)
        goes_on = tag[:2] in ("I-", "E-", "M-", "L-") and spans and spans[-1][1] == _kind(tag)
        if goes_on:
            spans[-1] = (f"{spans[-1][0]} {text}", spans[-1][1])
        else:
            spans.append((text, "" if tag == "O" else _kind(tag)))
    return spans


def _tag_span(text: str, kind: str, kinds: Sequence[str]) -> str:
    if not kind:
        return text
    colour = TAG_COLOURS[kinds.index(kind) % len(TAG_COLOURS)] if kind in kinds else TAG_COLOURS[0]
    return f'<b style="--h:var(--{colour})">{text}<small>{escape(kind)}</small></b>'


CARDS: dict[str, Callable[[Mapping[str, Any], Sequence[str]], str]] = {
    "classes": _class_card,
    "tags": _tag_card,
    "choices": _choice_card,
    "answers": _answer_card,
    "numbers": _number_card,
    "pairs": _pair_card,
}
