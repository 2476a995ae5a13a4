"""What a teacher says of the rows of a fine-tuning, computed once and kept (``config.teacher.cached``)."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping

import jax
import numpy as np

from bert_jax.cluster import distributed
from bert_jax.storage import files
from bert_jax.tasks.base import KIND, ExampleTask
from bert_jax.training import mesh as meshes
from bert_jax.training.forward import Forward
from bert_jax.training.mesh import MeshConfig

BATCH_SIZE = 32


def fill(
    tasks: Mapping[str, ExampleTask], teacher: str, examples: str, workdir: str, note: Callable[[str], None]
) -> None:
    """Fill in what the teacher says of the rows of all splits, where a task has room for it.

    It is read from a file of the workdir if there is one for the same teacher and examples, and else computed, by each
    process for itself, and written.

    Args:
      tasks: name -> task.
      teacher, examples: digests of these.
    """
    for name, task in tasks.items():
        if not (task.lessons and task.lessons.cached):
            continue
        key = hashlib.sha256(f"{teacher} {examples} {name} {task.lengths[KIND]}".encode()).hexdigest()[:16]
        path = files.as_path(workdir) / f"teacher_{key}.npz"
        if path.exists():
            with np.load(io.BytesIO(path.read_bytes())) as kept:
                said = dict(kept)
        else:
            note(f"what the teacher says of {sum(map(len, task.rows.values())):,} rows is computed once")
            said = _said(task)
            if distributed.is_first():
                buffer = io.BytesIO()
                np.savez(buffer, **said)  # type: ignore[arg-type]
                files.write_bytes(path, buffer.getvalue())
        for place, values in said.items():
            split, _, feature = place.rpartition("/")
            task.rows[split].arrays[feature][...] = values


def _said(task: ExampleTask) -> dict[str, np.ndarray]:
    """Return what the teacher says of each row, by ``SPLIT/feature``."""
    assert task.lessons
    mesh = meshes.make_mesh(MeshConfig(), jax.local_devices())
    params = jax.device_put(task.lessons.params, meshes.replicated(mesh))
    forward, found = Forward(jax.jit(task.lessons.says), mesh, BATCH_SIZE), dict[str, np.ndarray]()
    for split, rows in task.rows.items():
        for numbers, outputs in forward.rows(rows, task.setting.max_length, params):
            for feature, values in outputs.items():
                of_split = found.setdefault(f"{split}/{feature}", np.zeros_like(rows.arrays[feature]))
                of_split[numbers] = values
    return found
