"""Makes a smaller model of a trained one: checks, the export, and a table that compares the two on this machine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.trained_model import TrainedModel
from bert_jax.interchange.architectures import of_facts
from bert_jax.interchange.card import model_card
from bert_jax.interchange.conversion import Report, tensors_of
from bert_jax.interchange.family import is_own
from bert_jax.interchange.hugging_face import export_model, exported_head, licence_of
from bert_jax.interchange.initial import VOCABULARY_LEAVES
from bert_jax.interchange.outputs import random_rows
from bert_jax.models.model import LM_HEAD, POOLER, Model, config_facts
from bert_jax.records import Example
from bert_jax.runs.prediction import make_task, predict_split
from bert_jax.storage import files

ROWS, TURNS = 32, 15  # of a timed batch, and how often it is timed


def check_source(model: TrainedModel) -> TrainedModel:
    """Return the model with the head that an export of it has.

    Raises ``UserError`` if transformers has no class for the model, so that a smaller one could not be written either.
    """
    if is_own(model.config.encoder):
        raise UserError(
            f"{model.source} has an encoder of your own; models of the encoders that come along get smaller"
        )
    model = dataclasses.replace(model, head=model.head or of_facts(model.facts, model.params))
    tensors_of(model.params, model.config, exported_head(model), model.tokenizer.pad_id)
    return model


def trim(model: TrainedModel, texts: Sequence[str], min_count: int = 1) -> TrainedModel:
    """Return the model with the pieces of ``Tokenizer.trimmed`` alone; for these, its logits are those of ``model``.

    Raises:
      UserError: for the reasons of ``Tokenizer.trimmed``.
    """
    tokenizer, kept = model.tokenizer.trimmed(texts, min_count)

    def of_kept(path: Any, leaf: np.ndarray) -> np.ndarray:
        return leaf[kept] if path[-1].key in VOCABULARY_LEAVES else leaf

    params = jax.tree_util.tree_map_with_path(of_kept, model.params)
    config = dataclasses.replace(model.config, vocab_size=tokenizer.size)
    return dataclasses.replace(model, params=params, config=config, tokenizer=tokenizer)


def write(model: TrainedModel, smaller: TrainedModel, output: str, scores: Mapping[str, float]) -> Report:
    """Write ``smaller``, made of ``model``, as a Hugging Face directory, whole or not at all; return the report.

    Its card names ``model`` as where it comes from, and has ``scores`` as its evaluation.

    Raises:
      UserError: for the reasons of ``export_model``.
    """
    head, task = exported_head(smaller), smaller.facts.get("task") or {}
    parent = {"source": model.source, "licence": licence_of(model.workdir or model.source)}
    own = {"model": config_facts(smaller.config), "vocabulary_sha256": smaller.tokenizer.sha256, "run": {}}
    pooling = task.get("pooling") if head.ending == "Model" else None
    written = dataclasses.replace(smaller, head=head, facts={**smaller.facts, **own}, step=0)
    return export_model(written, output, model_card(written, scores, None, pooling, parent), pooling)


def scored(model: TrainedModel, examples: Sequence[Example]) -> dict[str, float]:
    """Return the metrics of a fine-tuned model on ``examples``, the main one first; {} without examples."""
    if not examples:
        return {}
    task = make_task(model, examples, "dev")
    metrics, _ = predict_split(model, task, "dev")
    return {task.main_metric: metrics[task.main_metric], **metrics}


def table(models: Mapping[str, TrainedModel], scores: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table with a line for each model: parameters, bytes, time of a batch and the main score.

    Bytes are those of weights and tokenizer.json as an export has them. The time is the median over ``TURNS`` batches,
    for which the models take turns.
    """
    main = next((name for metrics in scores.values() for name in metrics), "score")
    times = dict(zip(models, _times(list(models.values())), strict=True))
    lines = [f"{'':<10}{'parameters':>14}{'bytes':>16}{f'ms for {ROWS} rows':>18}{main:>18}"]
    for name, model in models.items():
        tensors, _ = tensors_of(model.params, model.config, exported_head(model), model.tokenizer.pad_id)
        size = sum(array.size for array in tensors.values())
        total = sum(array.nbytes for array in tensors.values()) + len(model.tokenizer.tokenizer_json().encode())
        score = f"{scores[name][main]:.4f}" if scores.get(name) else "-"
        lines.append(f"{name:<10}{size:>14,}{total:>16,}{times[name] * 1000:>18.1f}{score:>18}")
    return "\n".join(lines)


def _times(models: Sequence[TrainedModel]) -> list[float]:
    """Return the median seconds of a forward pass of each model with its pretraining heads, on the same random rows."""
    batch = random_rows(*(model.config for model in models), number=ROWS)

    def step(model: TrainedModel) -> Any:
        parts = tuple(part for part in (POOLER, LM_HEAD) if part.name in model.params)
        params = jax.device_put({name: model.params[name] for name in ("encoder", *(part.name for part in parts))})
        apply = jax.jit(Model(model.config, parts).apply)
        return lambda: jax.block_until_ready(apply({"params": params}, batch))

    def turns() -> Iterator[list[float]]:
        steps = [step(model) for model in models]
        for run in steps:
            run()  # compiles
        for _ in range(TURNS):
            marks = [time.perf_counter()]
            for run in steps:
                run()
                marks.append(time.perf_counter())
            yield np.diff(marks).tolist()

    return np.median(list(turns()), axis=0).tolist()  # type: ignore[no-any-return]


def compare(model: TrainedModel, smaller: TrainedModel, output: str, examples: Sequence[Example], name: str) -> str:
    """Write ``smaller``; return the line of its export and the table of both, in which it is called ``name``."""
    files.check_new(output)
    models = {"original": model, name: smaller}
    scores = {title: scored(one, examples) for title, one in models.items()}
    report = write(model, smaller, output, scores[name])
    return f"{report.line}\n{table(models, scores)}"
