"""Writes ``details.json`` for the report of a fine-tuned run: wrong predictions and attention, with their texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.features.attention_maps import attention_maps
from bert_jax.features.trained_model import TrainedModel
from bert_jax.reporting.report import DETAILS
from bert_jax.storage import files
from bert_jax.tasks.base import ExampleTask
from bert_jax.tasks.findings import Judge, clipped, findings

Records = Sequence[Mapping[str, Any]]
MAX_TOKENS, MAX_TOKENS_OF_MANY = 32, 24  # most tokens in a picture of attention: with few and with many heads
MANY_HEADS = 8
NUM_WRONG, NUM_PICTURES = 2, 3
CANDIDATES = 40  # most wrong and most right examples to choose from


def write_details(
    workdir: str,
    model: TrainedModel,
    task: ExampleTask,
    predictions: Mapping[str, Records],
    results: Mapping[str, Any],
) -> None:
    """Write ``workdir/details.json``.

    Args:
      task: the task with the examples of every split, encoded.
      predictions: split -> one record per example, in the order of the examples.
      results: ``best_step``, ``metric`` (by which this step was chosen) and ``metrics`` (split -> its metrics).
    """
    facts, judge, splits = model.facts, task.judge, task.setting.splits
    shown = {
        name: {
            "num_examples": len(splits[name]),
            "metrics": results["metrics"].get(name, {}),
            **(findings(judge, facts["labels"], splits[name], records, judge.entities(task.config)) if judge else {}),
        }
        for name, records in predictions.items()
    }
    first = next((name for name in predictions if name.startswith("dev")), None)
    content = {
        "task": facts["task"]["name"],
        "metric": results.get("metric"),
        "best_step": results["best_step"],
        "reads": list(task.roles.required),
        "labels": list(facts["labels"]),
        "splits": shown,
        "attention": pictures(model, task, first, predictions[first]) if first else [],
    }
    files.write_text(files.as_path(workdir) / DETAILS, json.dumps(content, ensure_ascii=False))


def pictures(model: TrainedModel, task: ExampleTask, split: str, records: Records) -> list[dict[str, Any]]:
    """Return the attention of the last layer for a few examples of a split, wrong and right ones.

    Returns:
      For each example ``id``, ``right`` (None if its prediction cannot be called right or wrong), ``prediction``,
      ``label``, ``tokens`` (if the sequence is long, only the tokens that [CLS] attends to most, in their order),
      ``num_tokens`` (the length of the whole sequence), ``layer`` (counted from 1) and ``weights`` [H][L][L] between
      the shown tokens.
    """
    if "encoder" not in model.params:
        return []
    judge = task.judge
    verdicts = [judge.is_wrong(record) if judge else None for record in records]
    chosen = _candidates(judge, records, verdicts)
    if not chosen:
        return []
    rows, by_row = task.rows[split], task.rows[split].arrays["example_ids"]
    sequences = []
    for i in chosen:
        row = int(np.argmax(by_row == i)) * (rows.num_choices or 1)
        row += records[i]["prediction"] if judge and judge.kind == "choices" else 0
        sequences.append(slice(int(rows.offsets[row]), int(rows.offsets[row + 1])))
    kept = _short_ones(chosen, sequences, [verdicts[i] for i in chosen])
    ids, types = (
        [rows.sequences[name][sequences[place]] for place in kept] for name in ("input_ids", "token_type_ids")
    )
    found = attention_maps(model, ids, types, layers=(-1,))
    if not found:
        return []
    return [
        _picture(model, records[chosen[place]], verdicts[chosen[place]], *one)
        for place, *one in zip(kept, ids, found, strict=True)
    ]


def _candidates(judge: Judge | None, records: Records, verdicts: Sequence[bool | None]) -> list[int]:
    """Return the indices of up to ``CANDIDATES`` wrong records, then of as many right records.

    In both groups, the most confident predictions come first. If no prediction can be called right or wrong, return the
    indices of the first ``CANDIDATES`` records.
    """
    if judge is None or all(verdict is None for verdict in verdicts):
        return list(range(min(len(records), CANDIDATES)))
    numbers = sorted(
        (i for i, verdict in enumerate(verdicts) if verdict is not None),
        key=lambda i: -judge.weight(records[i])[1],
    )
    wrong, right = ([i for i in numbers if verdicts[i] is side] for side in (True, False))
    return [*wrong[:CANDIDATES], *right[:CANDIDATES]]


def _short_ones(chosen: Sequence[int], sequences: Sequence[slice], wrong: Sequence[bool | None]) -> list[int]:
    """Return the indices into ``chosen`` of the examples to show: up to two wrong examples, then right examples.

    Examples that are short enough for a picture are preferred.
    """

    def fitting(verdict: Any) -> list[int]:
        places = [place for place in range(len(chosen)) if bool(wrong[place]) is verdict]
        return sorted(places, key=lambda place: sequences[place].stop - sequences[place].start > MAX_TOKENS)

    bad = fitting(True)[:NUM_WRONG]
    return bad + fitting(False)[: NUM_PICTURES - len(bad)]


def _picture(
    model: TrainedModel, record: Mapping[str, Any], wrong: bool | None, ids: np.ndarray, maps: np.ndarray
) -> dict[str, Any]:
    known = {
        name: value if isinstance(value, int | float) else clipped(value, 80)
        for name in ("prediction", "label")
        if isinstance(value := record.get(name), str | int | float)
    }
    looked_at = maps[0, :, 0].mean(axis=0)  # [L]
    looked_at[0] = np.inf  # [CLS] itself is always shown
    most = MAX_TOKENS if maps.shape[1] <= MANY_HEADS else MAX_TOKENS_OF_MANY
    shown = np.sort(np.argsort(-looked_at, kind="stable")[:most])
    weights = maps[0][:, shown][:, :, shown].astype(np.float64)
    return {
        "id": record["id"],
        "right": None if wrong is None else not wrong,
        **known,
        "tokens": [model.tokenizer.vocab[i] for i in ids[shown]],
        "num_tokens": len(ids),
        "layer": model.config.num_layers,
        "weights": np.round(weights, 4).tolist(),
    }
