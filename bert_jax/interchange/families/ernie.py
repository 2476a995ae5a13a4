"""ERNIE in transformers: the same as BERT, except for the prefix of class and tensor names, and for task ids.

A model with ``use_task_id`` (ERNIE 2.0, 3.0) adds a task embedding to every token: the embedding of task 0, unless it
is given other ``task_type_ids``. An import adds the embedding of task 0 to each token type, so the model has the same
outputs without task ids, and is exported without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interchange.families import bert

_TASKS = "embeddings.task_type_embeddings.weight"


class Family(bert.Family):
    name, title, model_type, prefix, causal = "Ernie", "ERNIE", "ernie", "ernie.", "ForCausalLM"
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ForCausalLM" if ending == "LMHeadModel" else ending: parts for ending, parts in bert.Family.classes.items()
    }
    fixed: ClassVar[Mapping[str, Any]] = {**bert.Family.fixed, "pool_act": "tanh", "task_id": 0}
    others = ("use_task_id", "task_type_vocab_size")

    def fold(
        self, tensors: dict[str, np.ndarray], theirs: Mapping[str, Any], where: str
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        if not theirs.get("use_task_id"):
            return tensors, ()
        types, tasks = f"{self.prefix}embeddings.token_type_embeddings.weight", f"{self.prefix}{_TASKS}"
        if tasks not in tensors or types not in tensors:
            raise UserError(f"{where} has use_task_id, but no {tasks} or no {types}; copy the whole folder again")
        rest = {name: array for name, array in tensors.items() if name != tasks}
        line = (
            "the embedding of task 0 is added to each token type, as transformers reads texts without task_type_ids; "
            f"the other {len(tensors[tasks]) - 1} are left out"
        )
        return rest | {types: tensors[types] + tensors[tasks][0]}, (line,)
