"""ERNIE in transformers: the same as BERT, except for the prefix of class and tensor names, and for task ids.

A model with ``use_task_id`` (ERNIE 2.0, 3.0) adds a task embedding to every token, that of task 0 unless it is given
other ``task_type_ids``. An import adds that of task 0 to each token type, so the model has the same outputs without
task ids, and is exported without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interchange.families import bert
from bert_jax.interchange.reference import HuggingFaceNames, reference_outputs

_TASKS = "embeddings.task_type_embeddings.weight"


class Family(bert.Family):
    name, title, model_type, prefix = "Ernie", "ERNIE", "ernie", "ernie."

    def folded(
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

    def outputs(
        self,
        tensors: Mapping[str, np.ndarray],
        config: Any,
        batch: Mapping[str, np.ndarray],
        parts: frozenset[str],
        architecture: str,
    ) -> dict[str, np.ndarray]:
        return reference_outputs(_Names(tensors, self.prefix), config, batch, parts, architecture)


class _Names(HuggingFaceNames):
    """Finds tensors by the names of BERT's modules; every position has the embedding of task 0, if there is one."""

    def positions(self, length: int) -> np.ndarray:
        tasks = (array for name, array in self._tensors.items() if name.endswith(_TASKS))
        return super().positions(length) + next((array[0] for array in tasks), 0)
