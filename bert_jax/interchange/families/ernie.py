"""ERNIE in transformers: the same as BERT, except for the prefix of class and tensor names, and for task ids.

A model with ``use_task_id`` (ERNIE 2.0, 3.0) adds a task embedding to every token: the embedding of task 0, unless it
is given other ``task_type_ids``. So does our encoder (``models.encoders.ernie``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bert_jax.interchange.families import bert
from bert_jax.interchange.names import Entry
from bert_jax.models.config import ModelConfig

_TASKS = "task_type_vocab_size"  # the key of config.json, and the field of our config


class Family(bert.Family):
    name, title, model_type, prefix, causal = "Ernie", "ERNIE", "ernie", "ernie.", "ForCausalLM"
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ForCausalLM" if ending == "LMHeadModel" else ending: parts for ending, parts in bert.Family.classes.items()
    }
    fields: ClassVar[Mapping[str, str]] = {**bert.Family.fields, _TASKS: _TASKS}
    defaults: ClassVar[Mapping[str, float]] = {**bert.Family.defaults, _TASKS: 3}  # as transformers takes it
    fixed: ClassVar[Mapping[str, Any]] = {**bert.Family.fixed, "pool_act": "tanh", "task_id": 0}
    others = ("use_task_id",)

    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        name = "embeddings/task_type_embeddings"
        tasks = Entry(f"encoder/{name}", f"{self.prefix}{name.replace('/', '.')}.weight", optional=True)
        return (*super().map(architecture, pad_id), tasks)

    def to_config(self, config: Any, pad_id: int) -> dict[str, Any]:
        described = super().to_config(config, pad_id)
        tasks = described.pop(_TASKS)
        return described | ({"use_task_id": True, _TASKS: tasks} if tasks else {})

    def from_config(self, theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
        described = theirs if theirs.get("use_task_id") else {**theirs, _TASKS: 0}
        return super().from_config(described, where, file)
