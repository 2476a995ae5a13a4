"""Saves steps in the background, with lists of sha256, and decides which steps are kept (``CheckpointConfig``).

The folder of a step appears by a rename when it is complete (on an object store, a marker file is written last). So a
run that is killed during a save resumes from the step before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bert_jax.checkpoints import revisions
from bert_jax.checkpoints.integrity import write_lists
from bert_jax.checkpoints.remote_steps import RemoteSteps
from bert_jax.checkpoints.restoring import BEST, saved_steps, steps_folder
from bert_jax.cluster import distributed
from bert_jax.configuration import check_fields
from bert_jax.errors import PassingError, UserError, first_line
from bert_jax.storage import files, write_errors
from bert_jax.storage.retries import is_passing
from bert_jax.workdir import file_formats
from bert_jax.workdir.steps import NUMBER, whole_steps

_SHORTEST_TO_SAVE = 200  # steps; runs of fewer are trials
_CUT_BYTES = 1 << 20  # the least part of an array that one of several devices writes


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every_steps: int | None = 1000  # steps between two saves; None: save after each evaluation
    keep: int = 3  # the number of newest steps that are kept
    keep_every_steps: int | None = None  # steps that are multiples of this are kept for ever, besides the newest
    # saved and kept for ever too: steps, 10M tokens, 100M words, or the series pythia or babylm (training/README.md)
    at: tuple[int | str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, "config.checkpoints", "at least 1 is needed", "keep", sound=lambda value: value >= 1)
        for name, meaning in (
            ("every_steps", "save after each evaluation"),
            ("keep_every_steps", "keep none for ever"),
        ):
            allowed = f"at least 1 is needed, or None to {meaning}"
            check_fields(self, "config.checkpoints", allowed, name, sound=lambda value: value is None or value >= 1)
        revisions.check(self.at)

    def steps_to_keep(self, steps: list[int], at: Collection[int]) -> list[int]:
        """Return which of ``steps`` are kept, in ascending order; ``at``: the steps that ``self.at`` names."""
        forever = [s for s in steps if s in at or (self.keep_every_steps and s % self.keep_every_steps == 0)]
        return sorted({*steps[-self.keep :], *forever})

    def remarks(self, num_steps: int) -> tuple[str, ...]:
        """Return a line for the user if a run of a few hundred steps or more saves none before its last."""
        if self.every_steps is None or self.every_steps < num_steps or num_steps < _SHORTEST_TO_SAVE:
            return ()
        only = f"no step is saved before the last (config.checkpoints.every_steps is {self.every_steps:,})"
        return (
            f"{only}: a run that is killed begins anew; --config.checkpoints.every_steps={num_steps // 10} saves ten",
        )


class _Kept:
    """Tells Orbax which steps to keep; ``keep`` returns the steps to keep of all steps in ascending order."""

    def __init__(self, keep: Callable[[list[int]], list[int]]):
        self._keep = keep

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        del context
        kept = set(self._keep([one.step for one in checkpoints]))
        return [one.step in kept for one in checkpoints]


class _Manager(ocp.CheckpointManager):
    def reached_preemption(self, step: int) -> bool:
        """Return False without asking JAX whether the job should end; only ``Termination`` asks.

        JAX compares the number of the latest call of any process with the number it has agreed on. ``Termination``
        numbers its calls 1, 2, ...; a call of Orbax in between, numbered with a step, would make JAX lose a SIGTERM.
        """
        del step
        return False


class Checkpoints:
    """Saves steps in the background into ``workdir/checkpoints``. Make it after a restore, which may set steps aside.

    On an object store, a single process first writes each step on its machine and then uploads it. Several processes
    write together, which Orbax can do only on ``gs://``.
    """

    def __init__(
        self,
        workdir: str,
        config: CheckpointConfig,
        name: str | None = None,
        first: Any = None,
        at: Collection[int] = (),
    ):
        """
        Args:
          name: what errors call the parameters, if they are saved only once. If None, the steps of a run are saved.
          first: a tree like the trees to save; too little space for it is an error now, not at the first save.
          at: the steps that are kept for ever, besides the steps that ``config`` keeps.
        """
        _drop_late_writes()
        self._steps, self._name = steps_folder(workdir), name
        keep = functools.partial(config.steps_to_keep, at=frozenset(at))
        self._store: RemoteSteps | None = None
        if files.is_remote(workdir) and jax.process_count() == 1:
            self._store = RemoteSteps(self._steps, keep)
        elif files.is_remote(workdir) and not workdir.startswith("gs://"):
            raise UserError(
                f"--workdir={workdir}: several hosts save together on gs:// or on a file system that all of them "
                "mount; choose such a --workdir"
            )
        self._directory = epath.Path(self._store.local if self._store else self._steps)
        self._saving = 0  # the number of the step being saved
        self._check_places()
        options = ocp.CheckpointManagerOptions(
            preservation_policy=_Kept(keep),
            cleanup_tmp_directories=True,
            create=True,
            lightweight_initialize=True,  # otherwise it reads metadata of all steps, damaged or not
            async_options=ocp.AsyncOptions(barrier_sync_fn=_meet, post_finalization_callback=self._write_lists),
        )
        handlers = {"state": _tree_handler(), "facts": ocp.JsonCheckpointHandler()}
        self._manager = _Manager(self._directory, options=options, item_handlers=handlers)
        if first is not None:
            with self._explained():
                self._check_space(first)

    def _check_places(self) -> None:
        """Raise ``UserError`` if something that is not a complete step has the name of a step that is yet to be saved.

        What an interrupted ``files.remove`` has left is removed instead. What an interrupted pruning has left is older
        than the newest step, so it is not in the way.
        """
        if files.is_remote(self._directory) or not self._directory.is_dir():
            return
        newest = max(whole_steps(self._directory), default=-1)
        for place in sorted(self._directory.iterdir(), key=lambda entry: entry.name):
            if not NUMBER.fullmatch(place.name) or int(place.name) <= newest:
                continue
            if not (place / files.UNFINISHED).exists():
                raise UserError(
                    f"{place} is in the way of a save: it has the name of a step, and is no complete step; remove it, "
                    "then run the same command"
                )
            if distributed.is_first():
                place.rmtree()

    def save(self, state: Any, facts: Mapping[str, Any]) -> None:
        """Begin to save; return when the state may be donated. An error of the previous save is raised here."""
        self.save_tree(int(state.step), state, facts)

    def save_tree(self, step: int, tree: Any, facts: Mapping[str, Any]) -> None:
        """Save any tree as step ``step``; see ``save``."""
        with self._explained():
            self.wait()
            self._check_space(tree)
            self._saving = step
            metadata = ocp.args.JsonSave({**facts, file_formats.KEY: file_formats.WORKDIR.number, "step": step})
            items = ocp.args.Composite(state=ocp.args.PyTreeSave(tree), facts=metadata)
            if not self._manager.save(step, args=items, force=True):
                raise UserError(f"step {step} was not saved into {self._steps}: a later step is there already")
            if self._store:
                self._store.upload(step, self._manager.wait_until_finished)

    def _write_lists(self) -> None:
        """Write the lists of the sha256 of a step's files and arrays, once the rest of the step is written.

        Orbax calls this on the first process, in the background.
        """
        unfinished = self._directory / f"{self._saving}{ocp.path.atomicity.TMP_DIR_SUFFIX}"
        write_lists(unfinished if unfinished.exists() else self._directory / str(self._saving))  # gs:// has no rename

    def wait(self) -> None:
        """Wait until all saves have ended. Raises the error of a save that failed."""
        with self._explained():
            self._manager.wait_until_finished()
            if self._store:
                self._store.wait()

    @contextlib.contextmanager
    def ending_well(self) -> Iterator[None]:
        """Context manager: if an error or Ctrl-C ends the run, first wait until a save that has begun is complete.

        A run that is started again in the same process must find this step complete. A job of several processes does
        not wait, because one of its processes may be lost.
        """
        try:
            yield
        except (Exception, KeyboardInterrupt):
            if not distributed.several():
                with contextlib.suppress(Exception):
                    self.wait()
            raise

    def _check_space(self, tree: Any) -> None:
        """Raise ``OSError`` if there is too little free space for ``tree``, before anything is written.

        If a disk fills up during a save, libraries print hundreds of lines.
        """
        if files.is_remote(self._directory):
            return
        needed, free = sum(leaf.nbytes for leaf in jax.tree.leaves(tree)), shutil.disk_usage(self._directory).free
        if free < needed:
            raise OSError(f"No space left on device: a step takes up to {needed:,} bytes, {free:,} are free")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            if isinstance(error, jax.errors.JaxRuntimeError):
                raise  # an error of devices or other processes, not of the disk
            if is_passing(error):
                raise PassingError(
                    f"cannot save into {self._steps} now ({first_line(error)}); run the same command to go on "
                    "from the newest step"
                ) from error
            if self._name is not None:
                advice = write_errors.write_advice(error)
                raise UserError(f"cannot write {self._name} ({write_errors.reason(error)}); {advice}") from error
            reason = write_errors.reason(error).rstrip(".")
            advice = write_errors.REMEDIES.get(write_errors.number_of(error) or 0, "put that right")
            raise UserError(
                f"cannot save into {self._steps} ({reason}); steps saved before are whole: "
                f"{advice}, then run the same command to go on from the newest"
            ) from error

    def close(self) -> None:
        self._manager.close()
        if self._store:
            self._store.close()


def _tree_handler() -> Any:
    """Return a handler that writes trees as Orbax's standard handler does, but makes the first save quick.

    Orbax cuts an array that several devices hold alike, and each writes a part. The cut of each shape is a program to
    compile: about 100 programs on 8 devices, unless small arrays stay whole. Orbax's global handlers are left as they
    are: the program that calls this package may save arrays of its own.
    """
    kinds = ocp.type_handlers
    arrays = kinds.ArrayHandler(min_slice_bytes_for_replica_parallel=_CUT_BYTES)
    handlers = {kind: kinds.get_type_handler(kind) for kind in kinds.supported_types()} | {jax.Array: arrays}
    handler: Any = ocp.PyTreeCheckpointHandler(
        type_handler_registry=kinds.create_type_handler_registry(*handlers.items())
    )
    handler.typestr = ocp.StandardCheckpointHandler.typestr  # the handler that a step names for its readers
    return handler


@functools.cache
def _drop_late_writes() -> None:
    """Silence the errors of writes that still run after a save has failed.

    Nobody waits for these writes, and TensorStore would print a traceback for each.
    """
    hook = sys.unraisablehook

    def hear(args: Any) -> None:
        if not (args.exc_type is RuntimeError and str(args.exc_value) == "Event loop is closed"):
            hook(args)

    sys.unraisablehook = hear


def _meet(*, key: str, timeout_ms: int) -> None:
    """Wait until all processes of a save have arrived here; Orbax calls this.

    If the save has failed in this process, raise its error again instead of waiting. The other processes are waiting at
    a different point, and this process must get there to report the failure.
    """
    if (error := sys.exc_info()[1]) is not None:
        raise error
    ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


def save_params(workdir: str, params: Any, facts: Mapping[str, Any], name: str | None = None) -> None:
    """Save only parameters, as a checkpoint of step 0 that ``read_params`` reads. ``name``: see ``Checkpoints``."""
    _save_alone(Checkpoints(workdir, CheckpointConfig(), name or workdir), 0, params, facts)


def save_best(workdir: str, step: int, params: Any, facts: Mapping[str, Any]) -> None:
    """Save only parameters, into ``workdir/best``.

    The previous best step is kept too, because a resume may go back to a step before this one.
    """
    folder = os.path.join(workdir, BEST)
    drop_after(folder, step - 1)  # later steps, saved before the run went back
    distributed.wait("later best steps are gone")
    _save_alone(Checkpoints(folder, CheckpointConfig(keep=2)), step, params, facts)


def _save_alone(checkpoints: Checkpoints, step: int, params: Any, facts: Mapping[str, Any]) -> None:
    checkpoints.save_tree(step, {"params": params}, facts)
    checkpoints.wait()
    checkpoints.close()


def drop_after(workdir: str, step: int) -> None:
    """Remove the steps saved after ``step``, the newest first.

    Only the first process does this. No save may be in progress.
    """
    if distributed.is_first():
        for later in sorted((saved for saved in saved_steps(workdir) if saved > step), reverse=True):
            files.remove(steps_folder(workdir) / str(later))
