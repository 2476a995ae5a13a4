"""List the saved steps of a run (ls), or verify them by their sha256 (verify)."""

from __future__ import annotations

import argparse
import time

from bert_jax.cli.flags import whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["ls", "verify"], help="list the steps, or read and verify all of them")
    parser.add_argument("--workdir", required=True, help="folder of a run")
    parser.add_argument("--step", type=whole_number(0), help="only this step")


def run(arguments: argparse.Namespace) -> int:
    from bert_jax.checkpoints.integrity import findings
    from bert_jax.checkpoints.restoring import UNMARKED, misplaced
    from bert_jax.errors import UserError
    from bert_jax.workdir.steps import overview

    there = overview(arguments.workdir)
    chosen = [saved for saved in there if arguments.step in (None, saved.step)]
    if not chosen:
        steps = ", ".join(str(step) for step in sorted({saved.step for saved in there}))
        raise UserError(
            f"{arguments.workdir} has no saved step {arguments.step}, only {steps}; choose one of them"
            if there
            else f"{arguments.workdir} has no saved step; give the --workdir of a run that has saved one"
        )
    width, damaged = max(len(saved.name) for saved in chosen), False
    for saved in chosen:
        if saved.set_aside:
            verdict = "set aside: it was found to be damaged"
        elif saved.unmarked:
            damaged, verdict = True, UNMARKED
        elif arguments.action == "ls":
            verdict = "complete"
        else:
            home = saved.folder.parent.parent
            wrong = list(findings(saved.folder)) or list(filter(None, [misplaced(saved.folder, home, saved.step)]))
            damaged = damaged or bool(wrong)
            verdict = "; ".join(wrong) or "whole"
        when = "-" if saved.time is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(saved.time))
        print(f"{saved.name:<{width}}  {saved.size / 1e6:>10,.2f} MB  {when:<19}  {verdict}", flush=True)
    return 1 if damaged and arguments.action == "verify" else 0
