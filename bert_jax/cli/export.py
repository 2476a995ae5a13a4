"""Write a run's model as a Hugging Face directory that transformers loads, or push it to the Hugging Face Hub."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bert_jax.cli.flags import add_pooling, add_task, add_workdir
from bert_jax.errors import UserError
from bert_jax.storage import files


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
    add_pooling(
        parser,
        "with BertModel: the pooling in the files for sentence-transformers (default: as trained, if it was)",
    )
    parser.add_argument("--push", metavar="USER/NAME", help="push it to this repository of the Hugging Face Hub")
    parser.add_argument("--revision", help="with --push: the branch, such as step-10000 (default: main)")
    visible = parser.add_mutually_exclusive_group()
    for name in ("private", "public"):
        text = f"with --push: a new repository is {name}"
        visible.add_argument(f"--{name}", dest="visibility", action="store_const", const=name, help=text)


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.interchange.loading import load, one_task
    from bert_jax.interchange.push import MAIN, Push
    from bert_jax.interchange.workdir import export_trained

    a = arguments
    if not a.push:
        if not a.output:
            raise UserError("give --output=DIR, a new folder, or --push=USER/NAME, a repository of the Hub")
        if a.revision or a.visibility:
            raise UserError(f"--{'revision' if a.revision else a.visibility} needs --push=USER/NAME")
    if a.output:
        files.check_new(a.output)
    push = Push(a.push, a.revision or MAIN, a.visibility) if a.push else None
    if push:
        push.check_account()
    model = load(a.workdir, a.step)
    if a.task is not None:
        model = one_task(model, a.task)
    elif (tasks := model.facts.get("tasks")) and not a.architecture:
        raise UserError(
            f"{a.workdir} was trained on several tasks: {', '.join(tasks)}; say whose head to write, "
            f"--task={min(tasks)}, or give --as=CLASS, such as BertModel, which has none"
        )
    if push is None:
        print(export_trained(model, a.output, a.architecture, a.pooling))
        return
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
        report = export_trained(model, output, a.architecture, a.pooling, checked_and_pushed)
        print(str(report).replace(f"exported to {output}", f"exported to {a.output}" if a.output else "exported", 1))
    print(pushed[0])
