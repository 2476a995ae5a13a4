"""Makes a trained model smaller: trims its vocabulary, exports it, and compares both models in a table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interchange.architectures import of_facts
from bert_jax.interchange.card import model_card
from bert_jax.interchange.conversion import tensors_of
from bert_jax.interchange.family import is_own
from bert_jax.interchange.hugging_face import export_model, exported_head, exported_vectors, licence_of
from bert_jax.interchange.initial import VOCABULARY_LEAVES
from bert_jax.interchange.outputs import random_rows
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.model import LM_HEAD, POOLER, Model, config_facts
from bert_jax.records import Example
from bert_jax.runs.prediction import make_task, predict_split

ROWS, TURNS = 32, 15  # of a timed batch, and how often it is timed


def exportable(model: TrainedModel) -> TrainedModel:
    """Return the model with the head of its export. Raises ``UserError`` if transformers has no class for the model."""
    if is_own(model.config.encoder):
        raise UserError(
            f"{model.source} has the encoder {model.config.encoder!r}, and bert_jax/interchange/families has no file "
            "of this name; a model of an encoder with such a file is needed"
        )
    if tasks := model.facts.get("tasks"):
        raise UserError(f"{model.source} was trained on several tasks: {', '.join(tasks)}; say whose head: --task=NAME")
    model = dataclasses.replace(model, head=model.head or of_facts(model.facts, model.params))
    tensors_of(model.params, model.config, exported_head(model), model.tokenizer.pad_id)
    return model


def trim_vocabulary(model: TrainedModel, texts: Sequence[str], min_count: int = 1) -> TrainedModel:
    """Return the model with the pieces of ``Tokenizer.trimmed`` alone, for which it has the same logits as ``model``.

    Raises ``UserError`` for the reasons of ``Tokenizer.trimmed``.
    """
    tokenizer, kept = model.tokenizer.trimmed(texts, min_count)

    def of_kept(path: Any, leaf: np.ndarray) -> np.ndarray:
        return leaf[kept] if path[-1].key in VOCABULARY_LEAVES else leaf

    params = jax.tree_util.tree_map_with_path(of_kept, model.params)
    config = dataclasses.replace(model.config, vocab_size=tokenizer.size)
    return dataclasses.replace(model, params=params, config=config, tokenizer=tokenizer)


def write_smaller(models: Mapping[str, TrainedModel], output: str, examples: Sequence[Example] = ()) -> str:
    """Write the second of two ``models``, which was made of the first, as a Hugging Face directory.

    Return the line of the export and a table of both: parameters, bytes of weights and tokenizer.json, the median time
    of a forward pass, and the main score on ``examples``. Raises ``UserError`` for the reasons of ``export_model``.
    """
    main, scores = "score", dict[str, dict[str, float]]()
    for name, model in models.items() if examples else ():
        task = make_task(model, examples, "dev")
        main, scores[name] = task.main_metric, predict_split(model, task, "dev")[0]
    original, smaller = models.values()
    parent = {"source": original.source, "licence": licence_of(original.workdir or original.source)}
    facts = {"model": config_facts(smaller.config), "vocabulary_sha256": smaller.tokenizer.sha256, "run": {}}
    written = dataclasses.replace(smaller, facts={**smaller.facts, **facts}, step=0)
    has_vectors = exported_vectors(written) is not None
    card = model_card(written, scores.get(list(models)[1], {}), None, has_vectors, parent)
    lines = [export_model(written, output, card).line]
    lines.append(f"{'':<10}{'parameters':>14}{'bytes of weights + tokenizer':>31}{f'ms for {ROWS} rows':>18}{main:>18}")
    for (name, model), seconds in zip(models.items(), _seconds(list(models.values())), strict=True):
        arrays = tensors_of(model.params, model.config, exported_head(model), model.tokenizer.pad_id)[0].values()
        size = sum(array.nbytes for array in arrays) + len(model.tokenizer.tokenizer_json().encode())
        score = f"{scores[name][main]:.4f}" if examples else "-"
        parameters = sum(array.size for array in arrays)
        lines.append(f"{name:<10}{parameters:>14,}{size:>31,}{seconds * 1000:>18.1f}{score:>18}")
    return "\n".join(lines)


def _seconds(models: Sequence[TrainedModel]) -> list[float]:
    """Return the median time of a forward pass of each model with its pretraining heads, on the same random rows."""
    batch, times = random_rows(*(model.config for model in models), number=ROWS), list[float]()

    def step(model: TrainedModel) -> Any:
        parts = tuple(part for part in (POOLER, LM_HEAD) if part.name in model.params)
        params = jax.device_put({name: model.params[name] for name in ("encoder", *(part.name for part in parts))})
        apply = jax.jit(Model(model.config, parts).apply)
        return lambda: jax.block_until_ready(apply({"params": params}, batch))

    for run in [step(model) for model in models] * (TURNS + 1):  # the first turn compiles
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return np.median(np.reshape(times, (-1, len(models)))[1:], axis=0).tolist()  # type: ignore[no-any-return]
