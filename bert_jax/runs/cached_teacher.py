"""Keeps the outputs of a teacher for the rows of a fine-tuning (``config.teacher.cached``)."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping

import jax
import numpy as np
from etils import epath

from bert_jax.cluster import distributed
from bert_jax.errors import UserError, few, first_line
from bert_jax.losses.distillation import SAID
from bert_jax.losses.teacher import WHERE, digest
from bert_jax.storage import files, reading
from bert_jax.tasks.base import KIND, ExampleTask
from bert_jax.training import mesh as meshes
from bert_jax.training.forward import Forward
from bert_jax.training.mesh import MeshConfig

BATCH_SIZE = 32
SEAL = "digest"  # the entry of a file with the digest of its key and of all other entries


def fill(
    tasks: Mapping[str, ExampleTask], teacher: str, examples: str, workdir: str, note: Callable[[str], None]
) -> None:
    """Fill in the teacher's outputs for the rows of all splits, where a task has room for them.

    A file of the workdir is read if there is one for the same teacher and examples. Otherwise each process computes the
    outputs for itself, and the first writes the file. A file that is not as it was written is made anew.

    Args:
      tasks: name -> task.
      teacher, examples: digests of the teacher and of the examples.

    Raises:
      UserError: an output of the teacher is not a finite number.
    """
    for name, task in tasks.items():
        if not (task.lessons and task.lessons.cached):
            continue
        key = hashlib.sha256(f"{teacher} {examples} {name} {task.lengths[KIND]}".encode()).hexdigest()[:16]
        path = files.as_path(workdir) / f"teacher_{key}.npz"
        room = {
            f"{split}/{feature}": array
            for split, rows in task.rows.items()
            for feature, array in rows.arrays.items()
            if feature.startswith(SAID)
        }
        if path.exists() and _fill_from(path, key, room, note):
            continue
        note(f"what the teacher says of {sum(map(len, task.rows.values())):,} rows is computed once")
        _compute(task)
        if broken := [place for place, values in room.items() if not np.isfinite(values).all()]:
            raise UserError(
                f"{WHERE}.init says what is not a finite number ({few(broken)}); take another teacher, or another step "
                f"of its run: --{WHERE}.init=WORKDIR@STEP"
            )
        if distributed.is_first():
            buffer = io.BytesIO()
            np.savez(buffer, **room, **{SEAL: np.array(digest({key: room}))})  # type: ignore[arg-type]
            files.write_bytes(path, buffer.getvalue())


def _fill_from(path: epath.Path, key: str, room: Mapping[str, np.ndarray], note: Callable[[str], None]) -> bool:
    """Fill ``room`` from a file and return True; if the file is not as ``fill`` wrote it, say so and return False."""
    try:
        with np.load(io.BytesIO(reading.read_bytes(path)), allow_pickle=False) as kept:
            said = {place: np.asarray(values) for place, values in kept.items()}  # bytes if it is no array
    except (reading.NotPlainError, IsADirectoryError) as error:
        finding = str(error.strerror)
    except OSError:
        raise
    except Exception as error:  # numpy and zipfile raise errors of many classes for damaged files
        finding = f"cannot be read ({first_line(error)})"
    else:
        seal = said.pop(SEAL, None)
        unlike = [place for place in sorted(room.keys() | said.keys()) if _kind(said, place) != _kind(room, place)]
        if not unlike and seal is not None and str(seal) == digest({key: said}):
            for place, values in said.items():
                room[place][...] = values
            return True
        finding = "is damaged, or was written by another version"
        if unlike:
            finding = f"has {_kind(said, unlike[0])} for {unlike[0]}, where {_kind(room, unlike[0])} is needed"
    note(f"{path} {finding}; the file is made anew")
    return False


def _kind(arrays: Mapping[str, np.ndarray], place: str) -> str:
    """Return the dtype and the shape of the array at ``place`` as text."""
    return f"{arrays[place].dtype} {arrays[place].shape}" if place in arrays else "nothing"


def _compute(task: ExampleTask) -> None:
    """Fill in the teacher's outputs for each row of ``task``."""
    assert task.lessons
    mesh = meshes.make_mesh(MeshConfig(), jax.local_devices())
    params = jax.device_put(task.lessons.params, meshes.replicated(mesh))
    forward = Forward(jax.jit(task.lessons.says), mesh, BATCH_SIZE)
    for rows in task.rows.values():
        for numbers, outputs in forward.rows(rows, task.setting.max_length, params):
            for feature, values in outputs.items():
                rows.arrays[feature][numbers] = values
