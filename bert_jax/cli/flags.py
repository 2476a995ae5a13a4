"""The flags that several verbs share, and how their values are read (``--config.KEY``: ``recipes.recipes``)."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
from collections.abc import Callable
from typing import Any

from bert_jax.cluster.watchdog import MOST_SECONDS
from bert_jax.recipes import key_names, trees
from bert_jax.reporting.profiled_steps import ProfiledSteps


def command_line() -> str:
    """Return the command line of this process, as a run records it."""
    return shlex.join(["bert-jax", *sys.argv[1:]])


def seconds(text: str) -> float:
    """Read a flag's value as seconds: a number above 0 and at most ``MOST_SECONDS``."""
    if not 0 < (value := _as_float(text)) <= MOST_SECONDS:
        allowed = f"a number of seconds above 0, at most {MOST_SECONDS:,.0f}, is needed"
        raise argparse.ArgumentTypeError(f"found {text!r}; {allowed}")
    return value


def whole_number(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a function that reads a flag's value as a whole number from ``least`` to ``most``."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"found {text!r}; a whole number from {least} to {most:,} is needed")
        return int(text)

    return read


def finite_number(text: str) -> float:
    """Read a flag's value as a finite number."""
    if not math.isfinite(value := _as_float(text)):
        raise argparse.ArgumentTypeError(f"found {text!r}; a number is needed")
    return value


def _as_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read a flag's value as whole numbers with commas between them."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*(,\s*[+-]?[0-9]{1,18}\s*)*", text):
        raise argparse.ArgumentTypeError(f"found {text!r}; give whole numbers, such as 0,1,2, of at most 18 digits")
    return tuple(int(number) for number in text.split(","))


def _profiled_steps(text: str) -> ProfiledSteps:
    """Read a flag's value as steps to trace: ``FIRST:LAST``, both included, counted from 1."""
    match = re.fullmatch(r"([1-9][0-9]{0,9}):([1-9][0-9]{0,9})", text)
    if match is None or int(match[1]) > int(match[2]):
        allowed = "FIRST:LAST is needed, two steps counted from 1, the first no later than the last, such as 100:104"
        raise argparse.ArgumentTypeError(f"found {text!r}; {allowed}")
    return ProfiledSteps(int(match[1]), int(match[2]))


def add_config(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the flag ``--config``, whose value ``recipes.load`` reads."""
    parser.add_argument(
        "--config",
        metavar="RECIPE",
        required=required,
        help="a recipe's name, or a file: FILE.py[:argument] runs as code, FILE.json is only read; --config.key=value "
        "changes one value of it",
    )
    add_trust(parser)


class _ShortKey(argparse.Action):
    """Adds ``--epochs=3`` to the overrides of the recipe, as ``--config.epochs=3``."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, value: Any, option: str | None = None) -> None:
        namespace.short = [*getattr(namespace, "short", []), f"--config.{self.dest}={value}"]


def add_short_keys(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each short key of ``key_names.SHORT``."""
    for name, key in key_names.SHORT.items():
        shown = f"--config.{key.format('PHASE')}"
        parser.add_argument(f"--{name}", action=_ShortKey, metavar="VALUE", default=argparse.SUPPRESS, help=shown)


def add_grid(parser: argparse.ArgumentParser) -> None:
    """Add the flags that ``ablate`` and ``sweep`` share: a recipe, the seeds and the data of a grid of runs."""
    add = parser.add_argument
    add_config(parser)
    add_short_keys(parser)
    add("--seeds", type=whole_numbers, default="0,1,2", help="each trains the whole grid (default: %(default)s)")
    add("--data", help="the folder with the files that fine-tuning reads (default: the current one)")
    add(
        "--over", default="", metavar="KEY", help="draw curves over this key, whose values are numbers, instead of bars"
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--trust_code``."""
    parser.add_argument(
        "--trust_code",
        action="store_true",
        help="run the users' own components that a workdir (its copies in code/) or a .json recipe names",
    )


def add_workdir(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--workdir``, the folder of ``what``, and the flags that choose and trust a model in it."""
    parser.add_argument("--workdir", required=True, help=f"folder of {what}")
    parser.add_argument(
        "--step", type=whole_number(0), help="a saved step (default: the best one kept, else the newest)"
    )
    add_trust(parser)


def add_pooling(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--pooling``: one of ``models.heads.Pooling``, whose names stand here so that help does not import jax."""
    names = ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    parser.add_argument("--pooling", choices=names, help=text)


def add_keys(parser: argparse.ArgumentParser) -> None:
    """Let ``--config.data.KEY`` and ``--config.task.KEY`` change how the examples for a model are read."""
    parser.set_defaults(overrides=[])


def add_task(parser: argparse.ArgumentParser) -> None:
    """Add ``--task``, which chooses one of the tasks that a model was trained on together."""
    parser.add_argument("--task", metavar="NAME", help="one of the tasks, for a model that was trained on several")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the flags that ``predict`` and ``evaluate`` share: a fine-tuned model, and how it reads an input file."""
    add_workdir(parser, "a fine-tuned run")
    add_task(parser)
    add_keys(parser)
    parser.add_argument(
        "--format",
        help="format of --input: the name of a file in bert_jax/examples, or a reader's own FILE.py (default: as in "
        "training)",
    )
    parser.add_argument(
        "--option",
        type=option,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the task, to decide otherwise than in training, such as null_score_diff_threshold=-1.5; "
        "--config.task.KEY=VALUE is the same, and --config.data.KEY=VALUE reads --input otherwise",
    )


def option(text: str) -> tuple[str, Any]:
    """Read a flag's value as KEY=VALUE. The value is a Python literal if it is one, else text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"found {text!r}; KEY=VALUE is needed")
    return key, trees.literal(value)


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--profile``."""
    parser.add_argument(
        "--profile",
        type=_profiled_steps,
        metavar="FIRST:LAST",
        help="trace these steps, counted from 1, into WORKDIR/profile for XProf, TensorBoard or Perfetto; the first "
        "step of a phase compiles",
    )


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add the flags of verbs (subcommands) that can run as several processes and can be restarted after a crash."""
    add = parser.add_argument_group("several processes (launch/README.md)").add_argument
    add("--coordinator", metavar="HOST:PORT", help="address of process 0; no other program may listen at that port")
    add("--num_processes", type=whole_number(1), help="number of processes of the job, one per host or per device")
    add("--process_id", type=whole_number(0), help="number of this process, from 0")
    add("--distributed", choices=["auto"], help="ask SLURM, Cloud TPU, GKE or Open MPI for these three")
    add("--heartbeat_seconds", type=seconds, help="a process silent or stuck for so long ends the job (default: 30)")
    add("--arrival_seconds", type=seconds, help="how long processes wait for each other at the start (default: 300)")
    add(
        "--restarts",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="start again up to N times after a crash (default: 0)",
    )
