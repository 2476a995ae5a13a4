"""Write a run's model as a Hugging Face directory that transformers loads."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_pooling, add_task, add_workdir
from bert_jax.errors import UserError
from bert_jax.storage import files


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
    add_pooling(
        parser,
        "with BertModel: the pooling in the files for sentence-transformers (default: as trained, if it was)",
    )


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.interchange.loading import load, one_task
    from bert_jax.interchange.workdir import export_trained

    files.check_new(arguments.output)
    a, model = arguments, load(arguments.workdir, arguments.step)
    if a.task is not None:
        model = one_task(model, a.task)
    elif (tasks := model.facts.get("tasks")) and not a.architecture:
        raise UserError(
            f"{a.workdir} was trained on several tasks: {', '.join(tasks)}; say whose head to write, "
            f"--task={min(tasks)}, or give --as=CLASS, such as BertModel, which has none"
        )
    print(export_trained(model, a.output, a.architecture, a.pooling))
