"""Decides which saved step a run resumes from, and reads steps. Each is verified before any of it is used."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Literal, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax.checkpoints.integrity import FACTS, STATE, DamagedStepError, ForeignStepError, check_step
from bert_jax.checkpoints.remote_steps import readable
from bert_jax.cluster import distributed
from bert_jax.errors import OF_MACHINE, PassingError, UserError, few, first_line
from bert_jax.program import warn
from bert_jax.reporting.status import first_save
from bert_jax.storage import files, reading, write_errors
from bert_jax.storage.retries import is_passing
from bert_jax.workdir import file_formats
from bert_jax.workdir.steps import MARKS, unmarked_steps, whole_steps

BEST = "best"  # a workdir inside the workdir, with the parameters of the best evaluation
FROZEN = "frozen"  # another, with the parameters of parts that are not trained
_EXHAUSTED = "RESOURCE_EXHAUSTED"  # the word in errors of JAX and tensorstore if memory or another resource is short
UNMARKED = f"is not complete: it has none of {', '.join(MARKS)}"
T = TypeVar("T")


def steps_folder(workdir: str) -> epath.Path:
    """Return the folder of a workdir's steps, as the absolute path that Orbax requires."""
    local = os.path.abspath(os.path.expanduser(workdir))
    return files.as_path(workdir if files.is_remote(workdir) else local) / "checkpoints"


def saved_steps(workdir: str) -> list[int]:
    """Return the numbers of the completely written steps, ascending."""
    return whole_steps(steps_folder(workdir))


def newest_verified(workdir: str, steps: Iterable[int]) -> int | None:
    """Return the newest of ``steps`` that is verified to be as it was saved, or None."""
    return next((step for step in sorted(steps, reverse=True) if _is_verified(workdir, step)), None)


def _is_verified(workdir: str, step: int) -> bool:
    """Return whether a step is in its place and agrees with its list of sha256; False if a store has an error."""
    folder = steps_folder(workdir) / str(step)
    try:
        check_step(folder)
        return misplaced(folder, workdir, step) is None
    except (DamagedStepError, OSError):
        return False


def misplaced(folder: str | os.PathLike[str], workdir: str | os.PathLike[str], step: int) -> str | None:
    """Return what the facts in ``folder`` say of its step, if it is not ``step`` of the run in ``workdir``; else None.

    Raises:
      DamagedStepError: the facts are damaged.
      UserError: another version saved the step.
    """
    facts, home = _facts(files.as_path(folder)), steps_folder(os.fspath(workdir)).parent
    places = [home, home.parent] if home.name in (BEST, FROZEN) else [home]
    file_formats.check_workdir(facts, places[-1])
    run = next(filter(None, (reading.read_object(place / "run.json") for place in places)), {})
    owner = facts.get("run")
    saved_by = owner.get("run_id") if isinstance(owner, dict) else None
    if "run_id" in run and saved_by != run["run_id"]:
        return f"is of another run ({saved_by}; this one is {run['run_id']})"
    return None if facts.get("step") == step else f"holds step {facts.get('step')}"


def restore(workdir: str, shapes: Any, note: Callable[[str], None]) -> Any | None:
    """Return the newest undamaged step, placed as ``shapes`` says; None if nothing was saved yet.

    A step counts as damaged also if it is of another run or of another number than its folder. Damaged steps are set
    aside when an older step has been restored. If there is no older step, nothing is changed. In a job of several
    processes, each verifies a part of the files.

    Raises:
      PassingError: the store does not answer.
      UserError: there are steps, but all are damaged; or the newest has lost its marks; or a step is undamaged, but
        cannot be restored here.
    """
    folder, damaged = steps_folder(workdir), dict[int, str]()
    if (lost := _newer_unmarked(workdir)) is not None and not workdir.startswith("gs://"):
        raise UserError(
            f"{folder / str(lost)} {UNMARKED}; copy it again, or remove it to go on from the newest complete step, "
            "then run the same command"
        )
    for step in distributed.first_says("steps to restore", sorted(saved_steps(workdir), reverse=True)):
        state = None
        try:
            state = _read(workdir, step, functools.partial(_own_state, step=step, shapes=shapes), together=True)
        except DamagedStepError as error:
            damaged[step] = error.of(step)
        except Exception as error:
            if (explained := _unread(error, f"{folder}: step {step}", shapes)) is None:
                raise
            raise explained from error
        if reports := list(filter(None, distributed.exchange("what is wrong with a step", damaged.get(step, "")))):
            damaged[step] = reports[0]
            continue
        for other, reason in damaged.items():
            note(f"{reason}; set aside as {_set_aside(folder, other)}")
        return state
    if damaged:
        raise UserError(
            f"{folder}: {'; '.join(damaged.values())}. Nothing was changed; if the folders are damaged, move them away "
            "and run the same command to begin anew"
        )
    return None


def _newer_unmarked(workdir: str) -> int | None:
    """Return the newest step that lacks every mark of a complete one; None if there is none, or a newer complete one.

    The step has lost the marks, unless it lies on gs://: there several processes save without a rename, so that a save
    that was cut, or still goes on, leaves a step without marks.
    """
    lost = max(unmarked_steps(steps_folder(workdir)), default=-1)
    return lost if lost > max(saved_steps(workdir), default=-1) else None


def _set_aside(folder: epath.Path, step: int) -> epath.Path:
    aside = folder.parent / f"damaged-step-{step}"
    if distributed.is_first():
        if aside.exists():
            aside.rmtree()
        (folder / str(step)).rename(aside)
    distributed.wait("a step is set aside")
    return aside


def _read(workdir: str, step: int, read: Callable[[epath.Path], T], together: bool = False) -> T:
    """Return the result of ``read`` for a step's folder, once the step is verified to be as it was saved.

    Args:
      together: whether all processes call this at the same time.

    Raises:
      DamagedStepError: the step differs from what was saved, or is misplaced.
      UserError: another version saved it.
      Exception: any error of ``read``, which is not caused by damage.
    """
    path, several = steps_folder(workdir) / str(step), together and jax.process_count() > 1
    with readable(path, copied=not several) as folder:
        shared = several and folder == os.fspath(path)
        check_step(folder, (jax.process_index(), jax.process_count()) if shared else (0, 1))
        if place := misplaced(folder, workdir, step):
            raise ForeignStepError(place)
        return read(epath.Path(folder))


def _of_machine(error: BaseException) -> BaseException | None:
    """Return ``error`` or one of its causes if it is about memory, a device or open files; None if no cause is.

    The causes are searched because libraries wrap such errors.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        cause = waiting.pop()
        in_words = any(words in str(cause) for words in (_EXHAUSTED, *OF_MACHINE))
        if isinstance(cause, MemoryError | jax.errors.JaxRuntimeError) or in_words or _of_files(cause):
            return cause
        seen.add(id(cause))
        inner = [*(cause.exceptions if isinstance(cause, BaseExceptionGroup) else ()), cause.__cause__]
        waiting += [one for one in inner if one is not None and id(one) not in seen]
    return None


def _of_files(error: BaseException) -> bool:
    """Return whether the error says that too many files are open."""
    return write_errors.number_of(error) in write_errors.FEW


def _unread(error: Exception, what: str, shapes: Any) -> UserError | None:
    """Return the error to raise if a step cannot be restored for a reason other than damage.

    If None, ``error`` itself should be raised.
    """
    if isinstance(error, PassingError):
        return None
    if is_passing(error):
        return PassingError(f"cannot read {what} now ({first_line(error)}); run the same command again")
    if failed := _of_machine(error):
        if _of_files(failed):
            return UserError(
                f"{what} cannot be restored ({write_errors.reason(failed)}). Nothing was changed: "
                f"{write_errors.write_advice(failed)}, then run the same command again"
            )
        if not isinstance(failed, MemoryError) and _EXHAUSTED not in str(failed):
            return None
        return UserError(
            f"{what} cannot be restored for lack of memory ({first_line(failed)}): the state takes "
            f"{_bytes_per_device(shapes):,} bytes on each device. Nothing was changed: free memory, or take more "
            "devices and shard over them with config.mesh.fsdp"
        )
    if isinstance(error, UserError):
        return None
    if isinstance(error, PermissionError):
        return UserError(
            f"{what} cannot be read ({error.strerror}: {error.filename}). Nothing was changed: make it readable, then "
            "run the same command again"
        )
    return UserError(
        f"{what} is as it was saved, but cannot be restored ({first_line(error)}). Nothing was changed: go on with the "
        "model and the version of this program that saved it, or give another --workdir"
    )


def _bytes_per_device(shapes: Any) -> int:
    leaves = jax.tree.leaves(shapes)
    parts = [leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape) for leaf in leaves]
    return sum(int(np.prod(part)) * leaf.dtype.itemsize for part, leaf in zip(parts, leaves, strict=True))


def _own_state(folder: epath.Path, step: int, shapes: Any) -> Any:
    """Return the state in ``folder``. Raises ``ForeignStepError`` if it is of another step."""
    state = _read_tree(folder / STATE, shapes)
    saved = int(state["step"] if isinstance(state, Mapping) else state.step)
    if saved != step:
        raise ForeignStepError(f"holds step {saved}")
    return state


def _facts(folder: epath.Path) -> dict[str, Any]:
    """Return the facts (the metadata) saved with a step. Raises ``DamagedStepError`` if they are damaged."""
    if (facts := reading.parse_object(reading.read_bytes(folder / FACTS))) is None:
        raise DamagedStepError(f"{FACTS} is not a JSON object")
    return facts


def _read_tree(folder: epath.Path, shapes: Any) -> Any:
    """Return the tree that was saved in ``folder``, placed as ``shapes`` says.

    Args:
      shapes: the wanted tree, whose leaves are ``jax.ShapeDtypeStruct``.

    Raises:
      ValueError: the saved tree has other leaves than ``shapes``, or a leaf of another shape. Orbax's own errors for a
        damaged file are not changed.
    """
    checkpointer = _checkpointer()
    saved = checkpointer.metadata(folder).item_metadata.tree
    wanted, there = named_leaves(shapes), named_leaves(saved)
    if unknown := [name for name in there if name not in wanted]:
        raise ValueError(f"it holds {few(unknown, 3)}, which this run does not have")
    if absent := [name for name in wanted if name not in there]:
        raise ValueError(f"it lacks {few(absent, 3)}")
    if unlike := [name for name in wanted if tuple(there[name].shape) != tuple(wanted[name].shape)]:
        found, here = (list(tree[unlike[0]].shape) for tree in (there, wanted))
        raise ValueError(f"its {unlike[0]} has the shape {found}, and in this run {here}")
    item = jax.tree.map_with_path(lambda path, _: wanted[_leaf_name(path)], saved)
    arguments = ocp.args.PyTreeRestore(item, ocp.checkpoint_utils.construct_restore_args(item))
    leaves = named_leaves(checkpointer.restore(folder, args=arguments))
    return jax.tree.unflatten(jax.tree.structure(shapes), [leaves[name] for name in wanted])


def named_leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of ``tree`` by name, such as ``params/pooler/dense/bias``, in the tree's order."""
    return {_leaf_name(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def _leaf_name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _checkpointer() -> ocp.Checkpointer:
    """Return a checkpointer with which this process reads alone, even if the job has other processes."""
    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=own, active_processes={own}, barrier_sync_key_prefix="alone"
    )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def read_params(
    workdir: str, step: int | None = None, entry: Literal["params", "opt_state"] = "params"
) -> tuple[Any, dict[str, Any], int]:
    """Return only the parameters, as numpy, of the newest step or of ``step``, for exports and new runs.

    Args:
      entry: what to return in their place: "opt_state" is the optimizer's state, by names such as ``1/mu/pooler/bias``;
        {} if the step has none.

    Returns:
      (parameters, the facts saved with them, step).

    Raises:
      UserError: there is no complete checkpoint or no such step; or the step is damaged, misplaced or not complete.
    """
    steps = saved_steps(workdir)
    if not steps and not files.as_path(workdir).exists():
        raise UserError(f"there is no folder {workdir}; give the folder of a run")
    if step is None and (lost := _newer_unmarked(workdir)) is not None:
        problem = f"{workdir}: checkpoints/{lost} {UNMARKED}"
        if not steps or not workdir.startswith("gs://"):
            raise UserError(f"{problem}; {_advice(workdir, lost)}")
        warn(f"{problem}; step {steps[-1]} is taken")
    if not steps or (step is not None and step not in steps):
        problem = f"only steps {', '.join(map(str, steps))}" if steps else "no finished checkpoint"
        advice = "choose one of them" if steps else first_save(workdir) or "train first"
        raise UserError(f"{workdir} has {problem}; {advice}")
    step = steps[-1] if step is None else step
    try:
        params, facts = _read(workdir, step, functools.partial(_params, entry=entry))
    except Exception as error:  # a damaged file can make a library raise anything
        if isinstance(error, UserError) or _of_machine(error):
            raise
        problem = error.of(step) if isinstance(error, ForeignStepError) else f"step {step} cannot be read"
        problem += "" if isinstance(error, ForeignStepError) else f" ({first_line(error)})"
        raise UserError(f"{workdir}: {problem}; {_advice(workdir, step)}") from error
    return params, facts, step


def _advice(workdir: str, step: int) -> str:
    """Return advice on which step to choose instead of ``step``, which cannot be used."""
    run = os.path.dirname(workdir) if PurePath(workdir).name == BEST else workdir
    others = [s for s in saved_steps(run) if (run, s) != (workdir, step)]
    if verified := [s for s in others if _is_verified(run, s)]:
        return (
            f"choose another {'step of the run' if run != workdir else 'of its steps'}: {', '.join(map(str, verified))}"
        )
    return "no other step is whole; copy it again, or train again"


def _params(step: epath.Path, entry: str) -> tuple[Any, dict[str, Any]]:
    """Return (``entry`` of the state as numpy, facts) from a step's folder. Raises any error of Orbax."""
    checkpointer = _checkpointer()
    tree = checkpointer.metadata(step / STATE).item_metadata.tree.get(entry, {})
    arguments = ocp.args.PyTreeRestore(
        item={entry: jax.tree.map(lambda _: 0, tree)},
        restore_args={entry: jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)},
        partial_restore=True,
    )
    restored = checkpointer.restore(step / STATE, args=arguments)[entry] if tree else {}
    facts = _facts(step)
    del facts["step"], facts[file_formats.KEY]
    return restored if entry == "params" else named_leaves(restored), facts
