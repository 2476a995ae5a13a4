"""Trains ModernBERT and BERT here, then BERT by transformers' Trainer for as many seconds, and judges all three.

    python -m tests.benchmarks.race --text='books/*.txt' [--vocab=vocab.txt] [--steps=3000] [--output=runs/race]

The machine needs one GPU, the interpreter JAX for it, torch and transformers; nothing is downloaded. The models have 8
layers x 512 and rows of 128. The Trainer is set up as by ``run_mlm``: compiled, bfloat16, fused AdamW. Its clock
starts when it has compiled, and it trains for the seconds of our slower run. All three are judged on the same masked
rows of held-out text. Without --text the text is the docstrings of installed packages, which is little.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError

OURS = {"modernbert": "ModernBERT, 30 % predicted", "bert": "BERT"}
RECIPE = Path(__file__).with_name("recipe.py")


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        _check(arguments)
        results = race(arguments, Path(arguments.output))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    (Path(arguments.output) / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a glob of text files, each a document")
    parser.add_argument("--vocab", help="a vocab.txt; without it 30,522 pieces are learned from the text")
    parser.add_argument("--steps", type=int, default=3_000, help="of each of our runs")
    parser.add_argument("--rate", type=float, default=5e-4, help="the Trainer's peak learning rate")
    parser.add_argument("--output", default="runs/race", help="a folder for everything that is written")
    parser.add_argument("--tiny", action="store_true", help="small models, on any device")
    return parser


def _check(arguments: argparse.Namespace) -> None:
    lacking = [name for name in ("torch", "transformers", "accelerate") if importlib.util.find_spec(name) is None]
    if lacking:
        raise UserError(f"{', '.join(lacking)} is not installed in {sys.prefix}; the race needs it beside JAX")
    if arguments.steps < 20:
        raise UserError(f"--steps is {arguments.steps}; at least 20 are needed")
    if arguments.vocab and not Path(arguments.vocab).is_file():
        raise UserError(f"--vocab is {arguments.vocab}, which is no file; name a vocab.txt, or leave it out")
    if (Path(arguments.output) / "vocab.txt").exists():
        raise UserError(f"{arguments.output} has a race already; name another folder with --output")


def race(arguments: argparse.Namespace, output: Path) -> dict[str, Any]:
    """Return the results of the three sides, by their titles."""
    suffix = "_tiny" if arguments.tiny else ""
    recipe = f"--config={RECIPE}:bert{suffix}"
    text = ["--config.corpus.source=text_files", f"--config.corpus.options.paths={arguments.text}"]
    text = text if arguments.text else []
    output.mkdir(parents=True, exist_ok=True)
    if arguments.vocab:
        (output / "vocab.txt").write_bytes(Path(arguments.vocab).read_bytes())
    else:
        _ours("vocab", recipe, *text, f"--output={output / 'vocab.txt'}")
    vocabulary, corpus = f"--config.vocab.path={output / 'vocab.txt'}", output / "corpus"
    _ours("corpus", recipe, *text, vocabulary, f"--output={corpus}")
    _python("-m", "tests.benchmarks.race.rows", str(corpus), str(output))
    sides: dict[str, Any] = {}
    for name, title in OURS.items():
        steps = f"--config.phases.phase1.num_steps={arguments.steps}"
        given = [vocabulary, f"--config.corpus.path={corpus}", steps, f"--workdir={output / name}"]
        _ours("pretrain", f"--config={RECIPE}:{name}{suffix}", *given)
        sides[title] = {"steps": arguments.steps, "seconds": trained_seconds(output / name)}
    seconds = max(side["seconds"] for side in sides.values())
    tiny = ["tiny"] if arguments.tiny else []
    peer = "tests.benchmarks.race.trainer"
    said = _python("-m", peer, "train", str(output), f"{seconds:.1f}", str(arguments.rate), *tiny)
    sides["BERT by transformers' Trainer"] = json.loads(said)
    models = [*(str(output / name / "hugging_face") for name in OURS), str(output / "trainer")]
    judged = json.loads(_python("-m", peer, "judge", str(output), *models))
    for side, model in zip(sides.values(), models, strict=True):
        side.update(judged[model])
    return sides


def trained_seconds(workdir: Path) -> float:
    """Return the seconds of all steps of a run, without compiling, evaluations and saves."""
    records = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    passed, seconds = 0, 0.0
    for record in records:
        if record.get("split") == "train" and record.get("step_seconds"):
            seconds += record["step_seconds"] * (record["step"] - passed)
            passed = record["step"]
    return seconds


def table(sides: dict[str, Any]) -> str:
    heads = ("", "ms a step", "seconds of training", "held-out loss", "accuracy", "parameters")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, side in sides.items():
        figures = f"{1e3 * side['seconds'] / side['steps']:.1f} | {side['seconds']:.1f} | {side['loss']:.2f}"
        lines.append(f"| {name} | {figures} | {side['accuracy']:.2f} | {side['parameters'] / 1e6:.1f}M |")
    return "\n".join(lines)


def _ours(*words: str) -> None:
    _python("-m", "bert_jax", *words)


def _python(*words: str) -> str:
    """Run this Python on ``words``; what it says goes to stderr, and the last line of what it prints is returned."""
    print(f"+ {' '.join(words)}"[:200], file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(words[:3])} ended with {done.returncode}; its last line is above")
    return (done.stdout.strip().splitlines() or [""])[-1]


if __name__ == "__main__":
    sys.exit(main())
