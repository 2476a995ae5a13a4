"""Mutations of configs and of files, and what a command may do about them: work, or say one line."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError

SECONDS = 30  # of processor time that a command may take before its training begins
HANG_SECONDS = 300  # of any time: on a machine with much else to do
CODES = (0, 2)
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 100, 2**31, 2**63, 10**23, -(10**23), 10**11),
    *(0.0, -0.5, 0.5, 1.0, 1e-300, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", " ", "x", "None", "true", "0.5", "1e9", "ä", "\ud800", "a\0b", "../..", "~", "/", "/dev/null", "x" * 9999),
    *([], [1], [[]], [None], ["x", "x"], {}, {"a": 5}, {"": None}, {"x": {"y": []}}),
]
ODD = [b'"', b"[", b"{", b"null", b"-1", b"\t", b"\n", b"\\ud800", b"1e999", b"\0", b"\xff\xfe", b"9" * 30, b"NaN", b""]


class Reached(UserError):
    """A command has come to its training, which these tests leave out."""


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return the paths of all keys of a config, groups too."""
    if path:
        yield path
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))


def mutated_config(config: dict[str, Any], rng: random.Random) -> tuple[dict[str, Any], str]:
    """Return a copy of ``config`` with a value replaced, a key mistyped, added or taken out; and what was done."""
    found = copy.deepcopy(config)
    *above, last = path = rng.choice(sorted(leaves(config)))
    node = found
    for key in above:
        node = node[key]
    kind = rng.choice(["value", "value", "value", "value", "typo", "less", "swap"])
    if kind == "value":
        node[last] = rng.choice(VALUES)
        return found, f"{'.'.join(path)}={str(node[last])[:40]!r}"
    if kind == "typo":
        place = rng.randrange(len(last) + 1)
        node[last[:place] + rng.choice("abx_ ") + last[place + 1 :]] = node.pop(last)
    elif kind == "less":
        del node[last]
    else:
        node[last] = copy.deepcopy(rng.choice(list(node.values())))
    return found, f"{kind} {'.'.join(path)}"


def mutated_bytes(raw: bytes, rng: random.Random) -> bytes:
    """Return ``raw`` with one to four places cut, doubled, changed or spoilt by something odd."""
    for _ in range(rng.randint(1, 4)):
        a, b = sorted(rng.randrange(len(raw) + 1) for _ in range(2))
        raw = rng.choice(
            [
                raw[:a] + raw[b:],
                raw[:a] + raw[a:b] * 2 + raw[b:],
                raw[:a] + bytes([rng.randrange(256)]) + raw[a + 1 :],
                raw[:a] + rng.choice(ODD) + raw[a:],
                raw[:a] + rng.choice(ODD) + raw[a + 1 :],
            ]
        )
    return raw


def stop_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``pretrain`` and ``finetune`` end where training would begin: what they check is checked by then."""

    def reached(*_: Any, **__: Any) -> Any:
        raise Reached("reached")

    for module in ("bert_jax.runs.pretraining", "bert_jax.runs.finetuning"):
        monkeypatch.setattr(f"{module}.train_and_evaluate", reached)


def attempt(argv: list[str], what: str, new: Path | None = None) -> str:
    """Run a command and return how it ended: "done", "reached" or "refused".

    Raises:
      AssertionError: it had a traceback, took too long, said more than a line of error, or left something behind.
    """
    out, err = io.StringIO(), io.StringIO()
    title = f"{what}: bert-jax {' '.join(map(repr, argv))[:500]}"

    def stop(*_: Any) -> None:
        raise AssertionError(f"{title}: still busy after {SECONDS} s of processor time, or {HANG_SECONDS} s")

    signals = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGPROF)}
    signal.alarm(HANG_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(argv)
    except AssertionError as error:
        raise AssertionError(f"{title}: {error}") from error
    except (Exception, SystemExit) as error:
        raise AssertionError(f"{title}: {type(error).__name__}: {str(error)[:300]}") from error
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in signals.items():
            signal.signal(number, handler)
    said = err.getvalue()
    assert code in CODES, f"{title}: exit code {code}: {said[-500:]}"
    assert "Traceback" not in said, f"{title}: {said[-1500:]}"
    if code == 0:
        return "done"
    lines = said.strip().splitlines()
    assert lines[-1].startswith("error: "), f"{title}: {said[-500:]}"
    if lines[-1] == "error: reached":
        return "reached"
    assert sum(line.startswith("error: ") for line in lines) == 1, f"{title}: {said[-500:]}"
    assert len(lines[-1]) < 3000, f"{title}: {len(lines[-1])} characters: {lines[-1][:300]}"
    lines[-1].encode()
    if new is not None:
        assert not new.exists(), f"{title}: refused ({lines[-1][:200]}), and left {[p.name for p in new.iterdir()]}"
    return "refused"


def write_json(path: Path, config: Any) -> Path:
    path.write_text(json.dumps(config))
    return path


def fresh(argv: list[str]) -> list[str]:
    """Return the real command for ``argv``, in a process of its own."""
    return [sys.executable, "-m", "bert_jax", *argv]
