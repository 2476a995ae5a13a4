"""Checkpoints: the one file that knows Orbax.

A step folder appears by a rename once it is whole (on an object store: by its marker), so a run that is killed in a
save goes on from the step before. A step that cannot be read is set aside by name and the one before it is taken.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.training.state import TrainState

_COMMITTED = "commit_success.txt"  # Orbax writes it last


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every_steps: int = 1000
    keep: int = 3  # newest steps kept
    keep_every_steps: int | None = None  # these are kept for ever, beside the newest

    def __post_init__(self) -> None:
        if self.every_steps < 1 or self.keep < 1:
            raise UserError(f"checkpoints: every_steps and keep must be at least 1; found {self}")


class Checkpoints:
    """Asynchronous saves into ``workdir/checkpoints``; restores the newest whole step."""

    def __init__(self, workdir: str, config: CheckpointConfig):
        self._workdir, self._directory = workdir, _folder(workdir)
        self._config = config
        self._manager = self._open()

    def _open(self) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=self._config.keep,
            keep_period=self._config.keep_every_steps,
            cleanup_tmp_directories=True,
            create=True,
        )
        return ocp.CheckpointManager(self._directory, options=options)

    def save(self, state: TrainState, facts: Mapping[str, Any]) -> None:
        """Begin to save; returns once the state may be donated. An error of the save before this one is raised here."""
        step = int(state.step)
        try:
            items = ocp.args.Composite(state=ocp.args.StandardSave(state), facts=ocp.args.JsonSave(dict(facts)))
            if not self._manager.save(step, args=items, force=True):
                raise UserError(f"step {step} was not saved into {self._directory}: a later step is there already")
        except (OSError, ValueError, RuntimeError) as error:
            raise self._failure(error) from error

    def wait(self) -> None:
        """Until every save has ended, well or with an error."""
        try:
            self._manager.wait_until_finished()
        except (OSError, ValueError, RuntimeError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> UserError:
        reason = str(error).strip().splitlines()[0][:200]
        return UserError(
            f"cannot save into {self._directory} ({reason}); steps saved before are whole: free some space, then run "
            "the same command to go on from the newest"
        )

    def last_saved_step(self) -> int | None:
        steps = saved_steps(self._workdir)
        return steps[-1] if steps else None

    def restore(
        self, abstract_state: TrainState, note: Callable[[str], None], only: int | None = None
    ) -> TrainState | None:
        """The newest step that can be read (or ``only`` that), placed as ``abstract_state`` says; None without one."""
        for step in reversed(saved_steps(self._workdir) if only is None else [only]):
            try:
                items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state))
                return self._manager.restore(step, args=items).state
            except Exception as error:  # whatever a damaged file makes a library raise
                damaged = self._directory.parent / f"damaged-step-{step}"
                note(f"step {step} cannot be read ({str(error).splitlines()[0][:160]}); set aside as {damaged}")
                self._manager.close()
                shutil.rmtree(damaged, ignore_errors=True)
                (self._directory / str(step)).rename(damaged)
                self._manager = self._open()
        return None

    def close(self) -> None:
        self._manager.close()


def _folder(workdir: str) -> epath.Path:
    """Where the steps lie; Orbax takes absolute paths only."""
    return epath.Path(workdir if files.is_remote(workdir) else os.path.abspath(workdir)) / "checkpoints"


def save_params(workdir: str, params: Any, facts: Mapping[str, Any]) -> None:
    """A checkpoint of step 0 that holds parameters alone, for ``read_params``."""
    with ocp.CheckpointManager(_folder(workdir)) as manager:
        items = ocp.args.Composite(
            state=ocp.args.StandardSave({"params": params}), facts=ocp.args.JsonSave(dict(facts))
        )
        manager.save(0, args=items)


def saved_steps(workdir: str) -> list[int]:
    """Steps that were written whole, ascending."""
    folder = _folder(workdir)
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit() and (p / _COMMITTED).exists())


def read_params(workdir: str, step: int | None = None) -> tuple[Any, dict[str, Any], int]:
    """Parameters alone, as numpy, of the newest step (or ``step``): what exports and new runs start from.

    Returns:
      (params, facts saved with them, step).

    Raises:
      UserError: there is no whole checkpoint, or not that one.
    """
    directory = _folder(workdir)
    steps = saved_steps(workdir)
    if not steps or (step is not None and step not in steps):
        found = f"only steps {', '.join(map(str, steps))}" if steps else "no finished checkpoint"
        raise UserError(f"{workdir} has {found}; {'choose one of them' if steps else 'train first: bert-jax pretrain'}")
    step = steps[-1] if step is None else step
    checkpointer = ocp.PyTreeCheckpointer()
    tree = checkpointer.metadata(directory / str(step) / "state").item_metadata.tree
    item = {"params": jax.tree.map(lambda _: 0, tree["params"])}
    as_numpy = {"params": jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree["params"])}
    restored = checkpointer.restore(
        directory / str(step) / "state",
        args=ocp.args.PyTreeRestore(item=item, restore_args=as_numpy, partial_restore=True),
    )
    facts = json.loads((directory / str(step) / "facts" / "metadata").read_text())
    return restored["params"], facts, step
