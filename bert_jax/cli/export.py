"""Write a run's model as a Hugging Face directory that transformers loads, or a directory for each revision."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bert_jax.cli.flags import add_pooling, add_task, add_workdir
from bert_jax.errors import UserError, few
from bert_jax.program import say
from bert_jax.storage import files

if TYPE_CHECKING:
    from bert_jax.interchange.conversion import Report
    from bert_jax.interchange.trained_model import TrainedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workdir(parser, "a run or of an import")
    add_task(parser)
    parser.add_argument("--output", required=True, help="the new folder to write")
    parser.add_argument(
        "--as",
        dest="architecture",
        metavar="CLASS",
        help="another class of transformers than the task's own; BertModel leaves the heads out",
    )
    parser.add_argument(
        "--revisions",
        action="store_true",
        help="write a folder below --output for each step that config.checkpoints.at names, such as step1000",
    )
    add_pooling(
        parser,
        "with BertModel: the pooling in the files for sentence-transformers (default: as trained, if it was)",
    )


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.interchange.loading import load
    from bert_jax.interchange.revisions import export_revisions, folder_of, not_yet_there, saved_revisions

    a = arguments
    if not a.revisions:
        files.check_new(a.output)
        print(_export(a, load(a.workdir, a.step), a.output))
        return
    if a.step is not None:
        raise UserError("--revisions exports every step that is named; leave --step out")
    revisions = saved_revisions(a.workdir, say)
    flags = {"as": a.architecture, "task": a.task, "pooling": a.pooling}
    left = not_yet_there(a.workdir, revisions, a.output, flags)
    for report in export_revisions(a.workdir, left, lambda model, name: _export(a, model, folder_of(a.output, name))):
        print(report)
    print(f"{len(revisions)} revisions are in {a.output}: {few([*revisions])}")


def _export(a: argparse.Namespace, model: TrainedModel, output: str) -> Report:
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
    return export_trained(model, output, a.architecture, a.pooling)
