"""Write a run's model as a Hugging Face directory that transformers loads, or push it to the Hugging Face Hub."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.cli.flags import add_pooling, add_task, add_workdir
from bert_jax.errors import UserError, few
from bert_jax.program import say
from bert_jax.storage import files

if TYPE_CHECKING:
    from bert_jax.interchange.conversion import Report
    from bert_jax.interchange.push import Push
    from bert_jax.interchange.trained_model import TrainedModel
    from bert_jax.storage.replacing import Directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workdir(parser, "a run or of an import")
    add_task(parser)
    parser.add_argument("--output", help="the new folder to write; with --push it may be left out")
    parser.add_argument(
        "--as",
        dest="architecture",
        metavar="CLASS",
        help="another class of transformers than the task's own; BertModel leaves the heads out",
    )
    parser.add_argument(
        "--revisions",
        action="store_true",
        help="write a folder below --output, or with --push a branch, for each step that config.checkpoints.at names, "
        "such as step1000",
    )
    add_pooling(
        parser, "with BertModel: the pooling in the files for sentence-transformers (default: as trained, if it was)"
    )
    parser.add_argument("--push", metavar="USER/NAME", help="push it to this repository of the Hugging Face Hub")
    parser.add_argument("--revision", help="with --push: the branch, such as step-10000 (default: main)")
    visible = parser.add_mutually_exclusive_group()
    for name in ("private", "public"):
        text = f"with --push: a new repository is {name}"
        visible.add_argument(f"--{name}", dest="visibility", action="store_const", const=name, help=text)


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.interchange.loading import load
    from bert_jax.interchange.push import MAIN, Push

    a = arguments
    if not a.push:
        if not a.output:
            raise UserError("give --output=DIR, a new folder, or --push=USER/NAME, a repository of the Hub")
        if a.revision or a.visibility:
            raise UserError(f"--{'revision' if a.revision else a.visibility} needs --push=USER/NAME")
    if a.revisions:
        _export_revisions(a)
        return
    if a.output:
        files.check_new(a.output)
    push = Push(a.push, a.revision or MAIN, a.visibility) if a.push else None
    if push:
        push.check_account()
    model = load(a.workdir, a.step)
    if push:
        _push(a, model, push)
    else:
        print(_export(a, model, a.output))


def _export_revisions(a: argparse.Namespace) -> None:
    """Export each step that ``config.checkpoints.at`` named, into a folder below --output or to a branch of --push."""
    from bert_jax.interchange.push import Push
    from bert_jax.interchange.revisions import folder_of, models_of, not_yet_there, saved_revisions

    flags = {"--step": a.step is not None, "--revision": a.revision, "--output": a.push and a.output}
    if beside := [flag for flag, is_given in flags.items() if is_given]:
        given = "--revisions --push" if a.push else "--revisions"
        raise UserError(f"{given} exports every step that is named, each by its name; leave {beside[0]} out")
    if a.push:
        Push(a.push).check_account()
    revisions = saved_revisions(a.workdir, say)
    if a.push:
        for name, model in models_of(a.workdir, revisions):
            _push(a, model, Push(a.push, name, a.visibility))
        return
    of_export = {"as": a.architecture, "task": a.task, "pooling": a.pooling}
    left = not_yet_there(a.workdir, revisions, a.output, of_export)
    for name, model in models_of(a.workdir, left):
        print(_export(a, model, folder_of(a.output, name)))
    print(f"{len(revisions)} revisions are in {a.output}: {few([*revisions])}")


def _push(a: argparse.Namespace, model: TrainedModel, push: Push) -> None:
    """Export a model, push the export when it is checked, and print both."""
    push.check_visible(model.facts)
    place, pushed = push.find(model.facts), list[str]()

    @contextlib.contextmanager
    def checked_and_pushed(output: str | os.PathLike[str]) -> Iterator[Path]:
        """Yield the folder of the export, and push it after the block, in which it was written and checked."""
        with files.whole_directory(output) as folder:
            yield folder
            pushed.append(place.upload(folder, f"Step {model.step:,}, by bert_jax"))

    with tempfile.TemporaryDirectory(prefix="bert_jax-") as scratch:
        output = a.output or os.path.join(scratch, "export")
        report = str(_export(a, model, output, checked_and_pushed))
        print(report.replace(f"exported to {output}", f"exported to {a.output}" if a.output else "exported", 1))
    print(pushed[0])


def _export(a: argparse.Namespace, model: TrainedModel, output: str, into: Directory = files.whole_directory) -> Report:
    """Export the model that the flags choose, and return the report."""
    from bert_jax.interchange.loading import one_task
    from bert_jax.interchange.workdir import export_trained

    if a.task is not None:
        model = one_task(model, a.task)
    elif (tasks := model.facts.get("tasks")) and not a.architecture:
        raise UserError(
            f"{a.workdir} was trained on several tasks: {', '.join(tasks)}; say whose head to write, "
            f"--task={min(tasks)}, or give --as=CLASS, such as BertModel, which has none"
        )
    return export_trained(model, output, a.architecture, a.pooling, into)
