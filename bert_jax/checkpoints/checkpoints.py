"""Checkpoints: the one file that knows Orbax.

A step folder appears by a rename once it is whole (on an object store: by its marker), so a run that is killed in a
save goes on from the step before. A step that cannot be read is set aside by name and the one before it is taken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax.checkpoints.leaves import Fresh, none_fresh, read_tree
from bert_jax.checkpoints.remote_steps import RemoteSteps, readable, whole_steps
from bert_jax.checkpoints.wholeness import check_step
from bert_jax.cluster import distributed
from bert_jax.configuration import check_fields
from bert_jax.errors import PassingError, UserError, first_line
from bert_jax.storage import files


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every_steps: int = 1000
    keep: int = 3  # newest steps kept
    keep_every_steps: int | None = None  # these are kept for ever, beside the newest

    def __post_init__(self) -> None:
        names = ("every_steps", "keep")
        check_fields(self, "config.checkpoints", "at least 1 is needed", *names, sound=lambda value: value >= 1)
        allowed = "at least 1 is needed, or None to keep none for ever"
        check_fields(
            self, "config.checkpoints", allowed, "keep_every_steps", sound=lambda value: value is None or value >= 1
        )

    def kept(self, steps: list[int]) -> list[int]:
        """Those of ``steps``, ascending, that are not pruned."""
        forever = [s for s in steps if self.keep_every_steps and s % self.keep_every_steps == 0]
        return sorted({*steps[-self.keep :], *forever})


class Checkpoints:
    """Asynchronous saves into ``workdir/checkpoints``; restores the newest whole step.

    On an object store one process writes each step on its machine first and uploads it whole; several processes write
    together, which Orbax does on ``gs://`` alone.
    """

    def __init__(self, workdir: str, config: CheckpointConfig):
        self._workdir, self._steps, self._config = workdir, _folder(workdir), config
        self._store: RemoteSteps | None = None
        if files.is_remote(workdir) and jax.process_count() == 1:
            self._store = RemoteSteps(self._steps, config.kept)
        elif files.is_remote(workdir) and not workdir.startswith("gs://"):
            raise UserError(
                f"--workdir={workdir}: several hosts save together on gs:// or on a file system that all of them "
                "mount; choose such a --workdir"
            )
        self._directory = epath.Path(self._store.local if self._store else self._steps)
        self._manager = self._open()

    def _open(self) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=self._config.keep,
            keep_period=self._config.keep_every_steps,
            cleanup_tmp_directories=True,
            create=True,
            async_options=ocp.AsyncOptions(barrier_sync_fn=_meet),
        )
        return ocp.CheckpointManager(self._directory, options=options)

    def save(self, state: Any, facts: Mapping[str, Any]) -> None:
        """Begin to save; returns once the state may be donated. An error of the save before this one is raised here."""
        self.save_tree(int(state.step), state, facts)

    def save_tree(self, step: int, tree: Any, facts: Mapping[str, Any]) -> None:
        """``save`` of any tree as ``step``."""
        with self._explained():
            self.wait()
            self._check_space(sum(leaf.nbytes for leaf in jax.tree.leaves(tree)))
            items = ocp.args.Composite(state=ocp.args.StandardSave(tree), facts=ocp.args.JsonSave(dict(facts)))
            if not self._manager.save(step, args=items, force=True):
                raise UserError(f"step {step} was not saved into {self._steps}: a later step is there already")
            if self._store:
                self._store.upload(step, self._manager.wait_until_finished)

    def wait(self) -> None:
        """Until every save has ended, well or with an error."""
        with self._explained():
            self._manager.wait_until_finished()
            if self._store:
                self._store.wait()

    def _check_space(self, needed: int) -> None:
        """Before a byte is written: of a disk that fills in a save, the libraries tell in hundreds of lines."""
        if files.is_remote(self._directory):
            return
        free = shutil.disk_usage(self._directory).free
        if free < needed:
            raise OSError(f"No space left on device: a step takes up to {needed:,} bytes, {free:,} are free")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            if isinstance(error, jax.errors.JaxRuntimeError):
                raise  # of devices or other processes, not of the disk
            if files.is_passing(error):
                raise PassingError(
                    f"cannot save into {self._steps} now ({first_line(error)}); run the same command to go on "
                    "from the newest step"
                ) from error
            advice = "free some space" if files.is_full(error) else "mend that"
            raise UserError(
                f"cannot save into {self._steps} ({first_line(error)}); steps saved before are whole: {advice}, then "
                "run the same command to go on from the newest"
            ) from error

    def restore(self, abstract_state: Any, note: Callable[[str], None], fresh: Fresh = none_fresh) -> Any | None:
        """The newest step that can be read, placed as ``abstract_state`` says; None if nothing was saved yet.

        Leaves that a step of an earlier version lacks are those that ``fresh`` makes; without it they are an error.
        Steps that cannot be read are set aside once an older one has been. If none can, the fault may lie elsewhere
        (memory, network, another version), and nothing is touched.

        Raises:
          PassingError: the store does not answer.
          UserError: there are steps, and none can be read.
        """
        unreadable: dict[int, str] = {}
        for step in _agreed_steps(self._workdir):
            try:
                state = read_step(self._workdir, step, abstract_state, fresh)
            except Exception as error:  # whatever a damaged file makes a library raise
                if files.is_passing(error):  # the step may be whole
                    raise PassingError(
                        f"cannot read {self._steps} now ({first_line(error)}); run the same command again"
                    ) from error
                state, unreadable[step] = None, f"step {step} cannot be read ({first_line(error)})"
            if not distributed.all_agree(state is not None):
                unreadable.setdefault(step, f"step {step} cannot be read on another process")
                continue
            for damaged, reason in unreadable.items():
                note(f"{reason}; set aside as {self._set_aside(damaged)}")
            return state
        if unreadable:
            raise UserError(
                f"{self._steps}: {'; '.join(unreadable.values())}. Nothing was changed; if the folders are damaged, "
                "move them away and run the same command to begin anew"
            )
        return None

    def _set_aside(self, step: int) -> epath.Path:
        damaged = self._steps.parent / f"damaged-step-{step}"
        self._manager.close()
        if distributed.is_first():
            if damaged.exists():
                damaged.rmtree()
            (self._steps / str(step)).rename(damaged)
        distributed.wait(f"step {step} set aside")
        self._manager = self._open()  # one that has not seen the step will save it again
        return damaged

    def close(self) -> None:
        self._manager.close()
        if self._store:
            self._store.close()


def _meet(*, key: str, timeout_ms: int) -> None:
    """Where Orbax has the processes of a save wait for each other. A process whose save has failed comes here with the
    error on its hands, while the others wait elsewhere: it has to tell, not to wait."""
    if (error := sys.exc_info()[1]) is not None:
        raise error
    ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


def _agreed_steps(workdir: str) -> list[int]:
    """Saved steps as process 0 sees them, the newest first."""
    steps = sorted(saved_steps(workdir), reverse=True)
    number = distributed.agreed(len(steps))
    return [distributed.agreed(step) for step in [*steps, *[0] * number][:number]]


def _folder(workdir: str) -> epath.Path:
    """Where the steps lie; Orbax takes absolute paths only."""
    return files.as_path(workdir if files.is_remote(workdir) else os.path.abspath(workdir)) / "checkpoints"


def save_params(workdir: str, params: Any, facts: Mapping[str, Any]) -> None:
    """A checkpoint of step 0 that holds parameters alone, for ``read_params``."""
    checkpoints = Checkpoints(workdir, CheckpointConfig())
    checkpoints.save_tree(0, {"params": params}, facts)
    checkpoints.wait()
    checkpoints.close()


BEST = "best"  # a workdir within the workdir: the parameters of the best evaluation


def save_best(workdir: str, step: int, params: Any, facts: Mapping[str, Any]) -> None:
    """Parameters alone into ``workdir/best``. The best before is kept too: a resume may go back behind this one."""
    folder = os.path.join(workdir, BEST)
    if distributed.is_first():
        for later in (found for found in saved_steps(folder) if found >= step):  # of a run that was cut back
            (_folder(folder) / str(later)).rmtree()
    distributed.wait(f"best at step {step}")
    checkpoints = Checkpoints(folder, CheckpointConfig(keep=2))
    checkpoints.save_tree(step, {"params": params}, facts)
    checkpoints.wait()
    checkpoints.close()


def saved_steps(workdir: str) -> list[int]:
    """Steps that were written whole, ascending."""
    return whole_steps(_folder(workdir))


def read_step(workdir: str, step: int, abstract_state: Any, fresh: Fresh = none_fresh) -> Any:
    """The state saved at ``step``, placed as ``abstract_state`` says; leaves that it lacks are those that ``fresh``
    makes. Raises whatever Orbax raises, here alone: no process waits for another."""
    with _whole(workdir, step) as folder:
        return read_tree(epath.Path(folder) / "state", abstract_state, fresh, _alone())


def _alone() -> ocp.options.MultiprocessingOptions:
    """This process reads, whether or not there are others."""
    own = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own}, barrier_sync_key_prefix="alone")


@contextlib.contextmanager
def _whole(workdir: str, step: int) -> Iterator[str]:
    """The folder of a step where Orbax reads it. Raises ``DamagedStepError`` if a part is missing."""
    with readable(_folder(workdir) / str(step)) as folder:
        if not files.is_remote(folder):
            check_step(folder)
        yield folder


def read_params(workdir: str, step: int | None = None) -> tuple[Any, dict[str, Any], int]:
    """Parameters alone, as numpy, of the newest step (or ``step``): what exports and new runs start from.

    Returns:
      (params, facts saved with them, step).

    Raises:
      UserError: there is no whole checkpoint, not that one, or it is damaged.
    """
    steps = saved_steps(workdir)
    if not steps and not files.as_path(workdir).exists():
        raise UserError(f"there is no folder {workdir}; give that of a run")
    if not steps or (step is not None and step not in steps):
        found = f"only steps {', '.join(map(str, steps))}" if steps else "no finished checkpoint"
        raise UserError(f"{workdir} has {found}; {'choose one of them' if steps else 'train first'}")
    step = steps[-1] if step is None else step
    try:
        return *_read_params(workdir, step), step
    except Exception as error:  # whatever a damaged file makes a library raise
        others = ", ".join(str(s) for s in steps if s != step)
        advice = (
            f"choose another of its steps: {others}" if others else "it has no other; copy it again, or train again"
        )
        raise UserError(f"{workdir}: step {step} cannot be read ({first_line(error)}); {advice}") from error


def _read_params(workdir: str, step: int) -> tuple[Any, dict[str, Any]]:
    """(params as numpy, facts) of ``step``. Raises whatever Orbax raises."""
    alone = _alone()
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    checkpointer = ocp.Checkpointer(handler, multiprocessing_options=alone)
    with _whole(workdir, step) as folder:
        state = epath.Path(folder) / "state"
        tree = checkpointer.metadata(state).item_metadata.tree["params"]
        restored = checkpointer.restore(
            state,
            args=ocp.args.PyTreeRestore(
                item={"params": jax.tree.map(lambda _: 0, tree)},
                restore_args={"params": jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)},
                partial_restore=True,
            ),
        )
        facts = json.loads((epath.Path(folder) / "facts" / "metadata").read_text())
    return restored["params"], facts
