"""The scores in the report of a fine-tuned model, made from the run's files, for any task."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from bert_jax.reporting.formats import MISSING, in_words, is_number
from bert_jax.reporting.measures import cell, title, to_beat
from bert_jax.reporting.page import table


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
