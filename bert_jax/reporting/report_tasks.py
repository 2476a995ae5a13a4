"""The parts of the report that only a fine-tuned model has: scores and attention.

These parts are made from the run's files, for any task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bert_jax.reporting.formats import MISSING, in_words, is_number
from bert_jax.reporting.measures import cell, title, to_beat
from bert_jax.reporting.page import fold, table

CELL, WIDE_CELL, FEW_TOKENS, MARGIN = 12, 18, 16, 74  # for attention pictures; sizes in view-box units
FAINTEST = 0.04  # weights below this share of the largest are not drawn, to keep the page small
MAX_TOKEN = 10  # most characters of a token's label


def scores(details: Mapping[str, Any], baselines: Mapping[str, Any]) -> str:
    """Return a table with the scores of the chosen step on each split, next to baselines that do not read the text."""
    splits = {name: found for name, found in details["splits"].items() if found.get("metrics")}
    if not splits:
        return ""
    main = details.get("metric")
    names = dict.fromkeys(name for found in splits.values() for name in found["metrics"])
    ordered = sorted(names, key=lambda name: name != main)
    rows = [
        [
            title(name),
            *(cell(found["metrics"].get(name), name) for found in splits.values()),
            to_beat(name, baselines) or MISSING,
        ]
        for name in ordered
    ]
    heads = [f"{name} ({found['num_examples']:,})" for name, found in splits.items()]
    step = f"Step {details['best_step']:,}" if is_number(details.get("best_step")) else "The chosen step"
    note = f"{step}, chosen by the held-out {in_words(str(main))}; its predictions are in predictions_*.jsonl."
    return (
        f'<p class="small soft">{escape(note)}</p><div class="card">{table(["measure", *heads, "to beat"], rows)}</div>'
    )


def attention_pictures(details: Mapping[str, Any]) -> str:
    """Return pictures of all heads of the last layer for a few examples. All examples but the first are folded."""
    pictures = details["attention"]
    parts = []
    for i, one in enumerate(pictures):
        largest = max((weight for head in one["weights"] for row in head for weight in row), default=0.0)
        heads = "\n".join(
            f"<figure><figcaption>head {head}</figcaption>{_attention(one['tokens'], weights, largest)}</figure>"
            for head, weights in enumerate(one["weights"], start=1)
        )
        body = f'<div class="heads">\n{heads}\n</div>'
        title = _picture_title(one)
        if i:
            parts.append(fold(title, body))
        else:
            parts.append(f'<div class="card"><h3>{escape(title)}</h3>{body}</div>')
    if not parts:
        return ""
    note = (
        f"Layer {pictures[0]['layer']}, the last. A row is a token that attends, a column one that it attends to. The "
        "fullest square is the largest weight of its example. Of a long text only those tokens are shown that [CLS] "
        "attends to most. Point at a square for its pair and weight. A large weight need not mean that a token decides."
    )
    return f'<p class="small soft">{escape(note)}</p>\n' + "\n".join(parts)


def _attention(tokens: Sequence[str], weights: Sequence[Sequence[float]], largest: float) -> str:
    """Return the picture of one attention head, with a row per query token and a column per key token.

    ``largest`` is the weight that is drawn as a full square.
    """
    edge = CELL if len(tokens) > FEW_TOKENS else WIDE_CELL
    size = MARGIN + edge * len(tokens)
    parts = [f'<rect class="frame" x="{MARGIN}" y="{MARGIN}" width="{size - MARGIN}" height="{size - MARGIN}"/>']
    for i, token in enumerate(tokens):
        short = escape(token if len(token) <= MAX_TOKEN else token[: MAX_TOKEN - 1] + "…")
        middle = MARGIN + edge * i + edge / 2
        parts.append(f'<text x="{MARGIN - 4}" y="{middle + 3.5:g}" text-anchor="end">{short}</text>')
        parts.append(f'<text transform="translate({middle + 3.5:g} {MARGIN - 4}) rotate(-90)">{short}</text>')
    for i, row in enumerate(weights):
        for j, weight in enumerate(row):
            if weight >= FAINTEST * largest and weight > 0:
                place = f'x="{MARGIN + edge * j}" y="{MARGIN + edge * i}"'
                title = escape(f"{tokens[i]} → {tokens[j]} {weight:.3f}")
                # Most weights are small; the square root makes them visible.
                parts.append(f'<rect {place} opacity="{math.sqrt(weight / largest):.2f}"><title>{title}</title></rect>')
    inside = "\n".join(parts)
    style = f"max-width:{1.15 * size:.0f}px;--edge:{edge}px"
    label = f'viewBox="0 0 {size} {size}" role="img" aria-label="attention of one head"'
    return f'<svg style="{style}" {label}>\n{inside}\n</svg>'


def _picture_title(one: Mapping[str, Any]) -> str:
    parts = [str(one["id"])]
    if one.get("right") is not None:
        parts.append("right" if one["right"] else "wrong")
    if one.get("prediction") not in (None, ""):
        parts.append(f"predicted {_short(one['prediction'])}")
    if one.get("label") not in (None, "") and one.get("right") is not True:
        parts.append(f"true {_short(one['label'])}")
    if one["num_tokens"] > len(one["tokens"]):
        parts.append(f"{len(one['tokens'])} of {one['num_tokens']} tokens")
    return " · ".join(parts)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
