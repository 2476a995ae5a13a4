"""Exports the revisions of a run: a model for each step that ``config.checkpoints.at`` names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.errors import UserError, few
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.program import Note
from bert_jax.storage import files, reading
from bert_jax.workdir.run_record import read_run

FILE = "revisions.json"  # in the folder of an export: whose revisions they are


def saved_revisions(workdir: str, note: Note) -> dict[str, int]:
    """Return name -> step of the revisions of a run that are saved, in ascending order. ``note``: told of all others.

    Raises ``UserError`` if none is saved.
    """
    if not files.as_path(workdir).exists():
        raise UserError(f"there is no folder {workdir}; give the folder of a run")
    named, saved = read_run(workdir).get("revisions", {}), saved_steps(workdir)
    there = {name: step for name, step in named.items() if step in saved}
    if not there:
        has = f"the revisions {few([*named])}, of which none is saved" if named else "no revisions"
        raise UserError(
            f"{workdir} has {has}; a run that is begun with --config.checkpoints.at=pythia, or with steps of your own, "
            f"has them. Of its saved steps ({few([*map(str, saved)]) or 'none'}) each is exported with --step"
        )
    if lost := [name for name in named if name not in there]:
        note(f"not saved: {few(lost)}")
    return there


def models_of(workdir: str, revisions: Mapping[str, int]) -> Iterator[tuple[str, TrainedModel]]:
    """Yield the name and the model of each of ``revisions`` (name -> step)."""
    for name, step in revisions.items():
        yield name, load(workdir, step)


def not_yet_there(
    workdir: str, revisions: Mapping[str, int], output: str, flags: Mapping[str, str | None]
) -> dict[str, int]:
    """Return the revisions that a folder of exports lacks, and record in the folder what it holds.

    A revision's folder appears whole or not at all, so an export that was cut goes on with the same command.

    Args:
      flags: the flags that change what is exported.

    Raises ``UserError`` if ``output`` holds something else.
    """
    place, facts = files.as_path(output), {"run_id": read_run(workdir).get("run_id"), "flags": dict(flags)}
    begun = reading.read_object(place / FILE)
    if begun is None:
        files.check_new(output)
    elif {name: begun.get(name) for name in facts} != facts:
        raise UserError(f"{output} holds the revisions of another run, or by other flags; give another --output")
    wanted = {name: step for name, step in revisions.items() if not (place / name).exists()}
    place.mkdir(parents=True, exist_ok=True)
    files.write_text(place / FILE, json.dumps({**facts, "revisions": dict(revisions)}, indent=1) + "\n")
    return wanted


def folder_of(output: str, name: str) -> str:
    """Return the folder of a revision in the folder of an export."""
    return os.fspath(files.as_path(output) / name)
