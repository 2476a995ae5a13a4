"""Writes ``details.json`` for the report of a fine-tuned run: wrong predictions and attention, with their texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.features.attention_maps import attention_maps
from bert_jax.records import Example
from bert_jax.reporting.report import DETAILS
from bert_jax.runs.prediction import Predictor
from bert_jax.storage import files
from bert_jax.tasks.findings import clipped, findings, is_wrong, kind_of, sureness

Records = Sequence[Mapping[str, Any]]
MAX_TOKENS, MAX_TOKENS_OF_MANY = 32, 24  # most tokens in a picture of attention: with few and with many heads
MANY_HEADS = 8
NUM_WRONG, NUM_PICTURES = 2, 3
CANDIDATES = 40  # most wrong and most right examples to choose from


def write_details(
    workdir: str,
    predictor: Predictor,
    splits: Mapping[str, Sequence[Example]],
    predictions: Mapping[str, Records],
    results: Mapping[str, Any],
) -> None:
    """Write ``workdir/details.json``.

    Args:
      splits: split -> its examples.
      predictions: split -> one record per example, in the order of the examples.
      results: ``best_step``, ``metric`` (by which this step was chosen) and ``metrics`` (split -> its metrics).
    """
    facts, config = predictor.trained.facts, predictor.config
    entities = None
    if getattr(config, "metrics", None) == "entities":
        entities = {"mode": config.mode, "scheme": config.scheme}
    shown = {
        name: {
            "num_examples": len(splits[name]),
            "metrics": results["metrics"].get(name, {}),
            **findings(facts["labels"], splits[name], records, entities),
        }
        for name, records in predictions.items()
    }
    first = next((name for name in predictions if name.startswith("dev")), None)
    content = {
        "task": facts["task"]["name"],
        "metric": results.get("metric"),
        "best_step": results["best_step"],
        "reads": list(predictor.task.roles.required),
        "labels": list(facts["labels"]),
        "splits": shown,
        "attention": pictures(predictor, splits[first], predictions[first]) if first else [],
    }
    files.write_text(files.as_path(workdir) / DETAILS, json.dumps(content, ensure_ascii=False))


def pictures(predictor: Predictor, examples: Sequence[Example], records: Records) -> list[dict[str, Any]]:
    """Return the attention of the last layer for a few examples, wrong and right ones.

    Returns:
      For each example ``id``, ``right`` (None if its prediction cannot be called right or wrong), ``prediction``,
      ``label``, ``tokens`` (if the sequence is long, only the tokens that [CLS] attends to most, in their order),
      ``num_tokens`` (the length of the whole sequence), ``layer`` (counted from 1) and ``weights`` [H][L][L] between
      the shown tokens.
    """
    trained = predictor.trained
    if "encoder" not in trained.params:
        return []
    chosen = _candidates(examples, records)
    if not chosen:
        return []
    task = predictor.make_task([examples[i] for i in chosen], "shown")
    rows, by_row = task.rows["shown"], task.rows["shown"].arrays["example_ids"]
    sequences = []
    for place, i in enumerate(chosen):
        row = int(np.argmax(by_row == place)) * (rows.num_choices or 1)
        row += records[i]["prediction"] if kind_of(records[i]) == "choices" else 0
        sequences.append(slice(int(rows.offsets[row]), int(rows.offsets[row + 1])))
    kept = _short_ones(chosen, sequences, [is_wrong(examples[i], records[i]) for i in chosen])
    ids, types = (
        [rows.sequences[name][sequences[place]] for place in kept] for name in ("input_ids", "token_type_ids")
    )
    found = attention_maps(trained, ids, types, layers=(-1,))
    if not found:
        return []
    return [
        _picture(predictor, records[chosen[place]], is_wrong(examples[chosen[place]], records[chosen[place]]), *one)
        for place, *one in zip(kept, ids, found, strict=True)
    ]


def _candidates(examples: Sequence[Example], records: Records) -> list[int]:
    """Return the indices of up to ``CANDIDATES`` wrong records, then of as many right records.

    In both groups, the most confident predictions come first. If no prediction can be called right or wrong, return the
    indices of the first ``CANDIDATES`` records.
    """
    verdicts = [is_wrong(example, record) for example, record in zip(examples, records, strict=True)]
    if all(verdict is None for verdict in verdicts):
        return list(range(min(len(records), CANDIDATES)))
    numbers = sorted(
        (i for i, verdict in enumerate(verdicts) if verdict is not None),
        key=lambda i: -sureness(examples[i], records[i]),
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
    predictor: Predictor, record: Mapping[str, Any], wrong: bool | None, ids: np.ndarray, maps: np.ndarray
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
        "tokens": [predictor.trained.tokenizer.vocab[i] for i in ids[shown]],
        "num_tokens": len(ids),
        "layer": predictor.trained.config.num_layers,
        "weights": np.round(weights, 4).tolist(),
    }
