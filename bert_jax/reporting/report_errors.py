"""The part of the report that shows the errors of a fine-tuned model.

The errors are read from ``details.json``, for any task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from bert_jax.reporting.formats import figure, is_number
from bert_jax.reporting.page import collapsed, page_section, table

_FIRST_SHOWN = 6  # so many wrong examples are visible; the others are folded
_MAX_LABEL_ROWS = 30  # a longer table is folded
_WRONG_TITLES = {  # by the kind of a split; other kinds are "Wrong, and sure of it"
    "numbers": "The largest errors",
    "pairs": "Pairs taken for the least alike",
    "texts": "Texts unlike their targets",
}
_TAG_COLOURS = "abcdefg"
_MANY_LABELS = 8  # with more labels, column names are written vertically
NARROW, WIDE = 340, 1090  # pixels of a table in windows of 400 and of 1,280
_FULLEST = 48  # percent of colour in a cell that has the count of the whole row; text stays readable


def error_sections(details: Mapping[str, Any]) -> str:
    """Return HTML sections for each split with known answers: confused labels, scores of labels, wrong examples."""
    splits = {name: found for name, found in details["splits"].items() if isinstance(found.get("kind"), str)}
    parts = []
    for name, found in splits.items():
        of_split = f", {name}" if len(splits) > 1 else ""
        parts.append(page_section(f"Which labels are mixed up{of_split}", _confusion(found)))
        parts.append(page_section(f"Label by label{of_split}", _labels(found)))
        wrong = _WRONG_TITLES.get(found["kind"], "Wrong, and sure of it")
        labels = found.get("labels") or details.get("labels") or []
        parts.append(page_section(f"{wrong}{of_split}", _wrong(found, labels)))
    return "\n".join(part for part in parts if part)


def _confusion(found: Mapping[str, Any]) -> str:
    if matrix := found.get("confusion"):
        note = "Rows are the true labels, columns the predicted ones; shares are of the row."
        body = _heat_table(matrix["labels"], matrix["counts"]) + _sideways(matrix["labels"])
    elif pairs := found.get("confused"):
        note = "The pairs that are most often taken for each other; shares are of all with that true label."
        body = table(
            ["true", "predicted", "count", "share"], [[t, p, f"{n:,}", f"{n / of:.1%}"] for t, p, n, of in pairs], 2
        )
    else:
        return ""
    return f'<div class="card">{body}<p class="small soft">{note}</p></div>'


def _sideways(labels: Sequence[str]) -> str:
    """Return a line that says how to see all columns; "" if every window is wide enough for them."""
    lengths, columns = [8 * len(label) + 16 for label in labels], len(labels)  # pixels, at most
    upright, across = 44 * columns, sum(max(46, length) for length in lengths)
    if max(lengths) + upright <= NARROW:
        return ""
    wide = max(lengths) + (upright if columns > _MANY_LABELS else across) > WIDE
    text = f"If not all {columns} columns are in view: scroll sideways."
    return f'<p class="small sideways {"many" if wide else "few"}">{text}</p>'


def _heat_table(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Return a table with a row per true label and a column per predicted label.

    Each cell shows its count and the count's share of the row.
    """
    many = " many" if len(labels) > _MANY_LABELS else ""
    head = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in labels)
    rows = []
    for i, row in enumerate(counts):
        total = sum(row)
        cells = "".join(_cell(labels, i, j, count, total) for j, count in enumerate(row))
        rows.append(f'<tr><th scope="row">{escape(labels[i])}</th>{cells}</tr>')
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table class="heat{many}"><thead><tr><th></th>{head}</tr></thead><tbody>\n{body}\n'
        "</tbody></table></div>"
    )


def _cell(labels: Sequence[str], i: int, j: int, count: int, total: int) -> str:
    if not count:
        return '<td class="none">0</td>' if i == j else '<td class="none">·</td>'
    share = count / total
    colour = "good" if i == j else "bad"
    # The square root makes cells with small shares visible.
    style = f"--h:var(--{colour});--s:{max(6.0, _FULLEST * math.sqrt(share)):.0f}%"
    title = escape(f"{labels[i]}, predicted {labels[j]}: {count:,} of {total:,}")
    return f'<td style="{style}" title="{title}">{count:,}<small>{share:.0%}</small></td>'


def _labels(found: Mapping[str, Any]) -> str:
    labels = found.get("per_label") or {}
    rows = [
        [name, *(figure(one[score]) for score in ("precision", "recall", "f1")), f"{one['support']:,.0f}"]
        for name, one in sorted(labels.items(), key=lambda item: item[1]["f1"])
    ]
    body = table(["label, the weakest first", "precision", "recall", "F1", "examples"], rows)
    if len(rows) > _MAX_LABEL_ROWS:
        return collapsed(f"All {len(rows):,} labels", body)
    return f'<div class="card">{body}</div>' if rows else ""


def _wrong(found: Mapping[str, Any], labels: Sequence[str]) -> str:
    entities = list(dict.fromkeys(_entity(label) for label in labels if label != "O"))
    card = _CARDS.get(found["kind"], _plain_card)
    own = {"entities": entities} if card is _tag_card else {}
    cards = [card(one, **own) for one in found.get("wrong") or []]
    total, answered = found.get("num_wrong"), found.get("num_answered", 0)
    note = ""
    if total is not None:
        first, verdict = ("longest", "unlike the target") if found["kind"] == "texts" else ("surest", "wrong")
        which = f", the {len(cards):,} {first} here" if total > len(cards) else ""
        note = (
            f"{total:,} of {answered:,} {'is' if total == 1 else 'are'} {verdict}{which}."
            if total
            else f"None of {answered:,} is {verdict}."
        )
    cards = [f'<div class="card wrong">{card}</div>' for card in cards]
    grid = '<div class="examples">\n{}\n</div>'
    body = f'<p class="small soft">{note}</p>' if note else ""
    if cards[:_FIRST_SHOWN]:
        body += grid.format("\n".join(cards[:_FIRST_SHOWN]))
    if more := cards[_FIRST_SHOWN:]:
        body += collapsed(f"{len(more):,} more", grid.format("\n".join(more)))
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


def _text_card(one: Mapping[str, Any]) -> str:
    """Return the card of a class or a number. A number has no share."""
    label, prediction = one["label"], one["prediction"]
    if is_number(label):
        label, prediction = f"{label:g}", f"{prediction:.3f}"
    return _texts(one) + _verdict(label, prediction, one.get("share"), one.get("label_share"), one["id"])


def _pair_card(one: Mapping[str, Any]) -> str:
    return f'{_texts(one)}<p class="verdict">cosine {one["prediction"]:.3f}{_id(one["id"])}</p>'


def _plain_card(one: Mapping[str, Any]) -> str:
    """Return a card with all entries of an example, for a task whose form the report does not know."""
    return "".join(f'<p><span class="soft">{escape(name)}</span> {escape(str(x))}</p>' for name, x in one.items())


def _choice_card(one: Mapping[str, Any]) -> str:
    lines = []
    for i, (choice, share) in enumerate(zip(one["choices"], one["shares"], strict=True)):
        side = "chosen" if i == one["prediction"] else "right" if i == one["label"] else ""
        word = {"chosen": '<span class="bad-word">predicted</span> ', "right": '<span class="right-word">true</span> '}
        lines.append(
            f'<li class="{side}">{word.get(side, "")}{escape(choice)} <span class="soft">{share:.1%}</span></li>'
        )
    asked = "".join(f"<p>{escape(one[name])}</p>" for name in ("context", "question") if one.get(name))
    return f'{asked}<ul>{"".join(lines)}</ul><p class="small soft">{escape(str(one["id"]))}</p>'


def _answer_card(one: Mapping[str, Any]) -> str:
    parts = (
        escape(text) if mark == "" else f'<span class="soft"> {escape(text)} </span>' if mark == "gap"
        else f'<mark class="{escape(mark)}">{escape(text)}</mark>'
        for text, mark in one["context"]
    )  # fmt: skip
    truth = " / ".join(one["answers"]) or "no answer"
    shown = _verdict(truth, one["prediction"] or "no answer", one.get("share"), name=one["id"])
    return f'<p><b>{escape(one["question"])}</b></p><p class="small">{"".join(parts)}</p>{shown}'


def _tag_card(one: Mapping[str, Any], entities: Sequence[str]) -> str:
    both = list(zip(one["label"], one["prediction"], strict=True))
    rows = []
    for title, tags in (("true", one["label"]), ("predicted", one["prediction"])):
        spans = _tag_spans(one["words"], tags, [t != p for t, p in both] if title == "predicted" else [])
        words = " ".join(_tag_span(*span, entities) for span in spans)
        rows.append(f'<p class="words"><i>{title}</i>{words}</p>')
    return "".join(rows) + f'<p class="small soft">surest wrong tag {one["share"]:.1%} · {escape(str(one["id"]))}</p>'


def _entity(tag: str) -> str:
    return tag[2:] if tag[1:2] == "-" else tag


def _tag_spans(words: Sequence[str], tags: Sequence[str], wrong: Sequence[bool]) -> list[tuple[str, str]]:
    """Return (HTML of words, entity type) pairs.

    The words of an entity are joined in one pair; outside entities the type is "".
    """
    spans: list[tuple[str, str]] = []
    for i, (word, tag) in enumerate(zip(words, tags, strict=True)):
        text = f"<u>{escape(word)}</u>" if wrong and wrong[i] else escape(word)
        goes_on = tag[:2] in ("I-", "E-", "M-", "L-") and spans and spans[-1][1] == _entity(tag)
        if goes_on:
            spans[-1] = (f"{spans[-1][0]} {text}", spans[-1][1])
        else:
            spans.append((text, "" if tag == "O" else _entity(tag)))
    return spans


def _tag_span(text: str, entity: str, entities: Sequence[str]) -> str:
    if not entity:
        return text
    colour = _TAG_COLOURS[entities.index(entity) % len(_TAG_COLOURS)] if entity in entities else _TAG_COLOURS[0]
    return f'<b style="--h:var(--{colour})">{text}<small>{escape(entity)}</small></b>'


_CARDS: dict[str, Callable[..., str]] = {
    "classes": _text_card,
    "tags": _tag_card,
    "choices": _choice_card,
    "answers": _answer_card,
    "numbers": _text_card,
    "pairs": _pair_card,
}
