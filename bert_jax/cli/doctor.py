"""Say whether this machine can train: versions, devices, extras, disk and memory, a line each; exit code 1 means no."""

from __future__ import annotations

import argparse
import json

from bert_jax.cli.flags import seconds
from bert_jax.program import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device_seconds", type=seconds, default=60.0, help="how long devices may take to answer (default: 60)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from bert_jax.inspection.check import as_table
    from bert_jax.machine.doctor import examine
    from bert_jax.program import program

    say(f"asking jax for its devices, for at most {arguments.device_seconds:g} s")
    checks = examine(arguments.device_seconds)
    sound = all(check.status != "bad" for check in checks)
    if arguments.json:
        findings = [{"name": c.name, "found": c.figure, "verdict": c.status, "advice": c.fix} for c in checks]
        print(json.dumps({"ready": sound, "findings": findings}))
        return int(not sound)
    print(as_table(checks, "training cannot start"))
    if sound:
        has_gpu = any(check.name == "devices" and "platform gpu" in check.figure for check in checks)
        recipe, run = ("modernbert_gpu", "gpu") if has_gpu else ("quickstart", "quickstart")
        print(f"next: {program()} pretrain --config={recipe} --workdir=runs/{run}")
    return int(not sound)
