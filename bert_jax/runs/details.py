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
from bert_jax.tasks.findings import clip, findings

Records = Sequence[Mapping[str, Any]]
MAX_TOKENS, MAX_TOKENS_OF_MANY = 32, 24  # most tokens in a picture of attention: with few and with many heads
MANY_HEADS = 8
NUM_WRONG, NUM_PICTURES = 2, 3


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
        "attention": _pictures(model, task, first, predictions[first]) if first else [],
    }
    files.write_text(files.as_path(workdir) / DETAILS, json.dumps(content, ensure_ascii=False))


def _pictures(model: TrainedModel, task: ExampleTask, split: str, records: Records) -> list[dict[str, Any]]:
    """Return the attention of the last layer for three examples of a split: up to two wrong ones, then others.

    Examples that are short enough to be shown whole come first, then those whose prediction is the most confident.

    Returns:
      For each example ``id``, ``right`` (None if its prediction cannot be called right or wrong), ``prediction``,
      ``label``, ``tokens`` (if the sequence is long, only the tokens that [CLS] attends to most, in their order),
      ``num_tokens`` (the length of the whole sequence), ``layer`` (counted from 1) and ``weights`` [H][L][L] between
      the shown tokens.
    """
    if "encoder" not in model.params or not records:
        return []
    judge, rows = task.judge, task.rows[split]
    wrong = [judge.is_wrong(record) if judge else None for record in records]
    spans: dict[int, slice] = {}  # example -> the place of its tokens
    for i, row in zip(*np.unique(rows.arrays["example_ids"], return_index=True), strict=True):
        sequence = row * (rows.num_choices or 1)
        sequence += records[i]["prediction"] if judge and judge.form == "choices" else 0
        spans[i] = slice(int(rows.offsets[sequence]), int(rows.offsets[sequence + 1]))

    def rank(i: int) -> tuple[bool, bool, float]:
        confidence = judge.weigh(records[i])[1] if judge and wrong[i] is not None else 0.0
        return wrong[i] is None, spans[i].stop - spans[i].start > MAX_TOKENS, -confidence

    order = sorted(spans, key=rank)
    bad = [i for i in order if wrong[i]][:NUM_WRONG]
    chosen = [*bad, *(i for i in order if not wrong[i])][:NUM_PICTURES]
    ids, types = ([rows.sequences[name][spans[i]] for i in chosen] for name in ("input_ids", "token_type_ids"))
    maps = attention_maps(model, ids, types, layers=(-1,))
    return [_picture(model, records[i], wrong[i], *one) for i, *one in zip(chosen, ids, maps, strict=bool(maps))]


def _picture(
    model: TrainedModel, record: Mapping[str, Any], wrong: bool | None, ids: np.ndarray, maps: np.ndarray
) -> dict[str, Any]:
    shown = {
        name: value if isinstance(value, int | float) else clip(value, 80)
        for name in ("prediction", "label")
        if isinstance(value := record.get(name), str | int | float)
    }
    looked_at = maps[0, :, 0].mean(axis=0)  # [L]
    looked_at[0] = np.inf  # [CLS] itself is always shown
    most = MAX_TOKENS if maps.shape[1] <= MANY_HEADS else MAX_TOKENS_OF_MANY
    tokens = np.sort(np.argsort(-looked_at, kind="stable")[:most])
    weights = maps[0][:, tokens][:, :, tokens].astype(np.float64)
    return {
        "id": record["id"],
        "right": None if wrong is None else not wrong,
        **shown,
        "tokens": [model.tokenizer.vocab[i] for i in ids[tokens]],
        "num_tokens": len(ids),
        "layer": model.config.num_layers,
        "weights": np.round(weights, 4).tolist(),
    }
