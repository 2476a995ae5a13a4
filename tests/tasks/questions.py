"""Small tasks of span question answering, and the scores of a model that knows every answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.models.encoders import bert
from bert_jax.tasks.base import KIND, Setting
from bert_jax.tasks.span_qa import Config, Task
from bert_jax.text.tokenizer import Tokenizer, wordpiece

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCAB = (*SPECIAL, *LETTERS, *(f"##{character}" for character in LETTERS + "0123456789"), *"0123456789.,?")


def tokenizer() -> Tokenizer:
    """Letters alone are its pieces."""
    return wordpiece(VOCAB)


def question(context: str, text: str | None, start: int | None = None, **more: Any) -> dict[str, Any]:
    """An example; ``text`` None has no answer, and stands where it is found unless ``start`` says so."""
    found = context.find(text) if text is not None and start is None else start
    answers = [] if text is None else [{"text": text, "answer_start": found}]
    return {"id": f"{context[:5]}/{text}", "question": "who ?", "context": context, "answers": answers} | more


def make_task(
    splits: dict[str, Iterable[dict[str, Any]]], using: Tokenizer | None = None, max_length: int = 384, **options: Any
) -> Task:
    using = using or tokenizer()
    model = bert.Config(vocab_size=using.size, hidden_size=8, num_layers=1, num_heads=1, mlp_dim=8, max_length=384)
    setting = Setting({k: tuple(v) for k, v in splits.items()}, using, model, (), max_length, 4, packing="none")
    return Task(Config(**options), setting)


def knowing(task: Task, split: str) -> dict[str, np.ndarray]:
    """Scores of 10 at the first and at the last token of the answer in every window, ``[CLS]`` where it is not."""
    arrays = task.rows[split].arrays
    outputs = {}
    for name in ("start", "end"):
        logits = np.zeros((len(task.rows[split]), task.lengths[KIND]), np.float32)
        known = arrays["label_weights"] > 0
        logits[np.flatnonzero(known), arrays[f"{name}_positions"][known]] = 10
        outputs[f"{name}_logits"] = logits
    return outputs


def random_outputs(task: Task, split: str, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (len(task.rows[split]), task.lengths[KIND])
    return {f"{name}_logits": rng.normal(size=shape).astype(np.float32) for name in ("start", "end")}


def write_squad(path: Path, examples: Iterable[dict[str, Any]]) -> Path:
    """As SQuAD's JSON."""
    paragraphs = [
        {
            "context": e["context"],
            "qas": [{k: e[k] for k in ("id", "question", "answers")} | {"is_impossible": not e["answers"]}],
        }
        for e in examples
    ]
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "toy", "paragraphs": paragraphs}]}))
    return path
