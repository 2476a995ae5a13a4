"""Mutations of configs and of files, and what a command may do about them: work, or say one line."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.trained_model import TrainedModel
from tests.features.test_features import CONFIG, TOKENIZER
from tests.interchange.heads import HEADS, params_of

SECONDS = 30  # of processor time that a command may take before its training begins
HANG_SECONDS = 300  # of any time: on a machine with much else to do
MORE_MEMORY = 8 << 30  # bytes of addresses that a command may take: one that reads a device without end takes all
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 100, 2**31, 2**63, 10**23, -(10**23), 10**11),
    *(0.0, -0.5, 0.5, 1.0, 1e-300, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", " ", "x", "None", "true", "0.5", "1e9", "ä", "\ud800", "a\0b", "../..", "~", "/", "/dev/null", "x" * 9999),
    *([], [1], [[]], [None], ["x", "x"], {}, {"a": 5}, {"": None}, {"x": {"y": []}}),
]
ODD = [b'"', b"[", b"{", b"null", b"-1", b"\t", b"\n", b"\\ud800", b"1e999", b"\0", b"\xff\xfe", b"9" * 30, b"NaN", b""]


@dataclasses.dataclass(frozen=True)
class Command:
    """The arguments of ``bert-jax``, and what is odd about them or about the files that they name.

    ``finds``: whether the exit code 1 says that something is wrong with what was read, after it was reported.
    """

    argv: list[str]
    what: str
    finds: bool = False

    def __str__(self) -> str:
        return f"{self.what}: bert-jax {' '.join(map(repr, self.argv))[:500]}"

    @property
    def is_for_a_process(self) -> bool:
        """Return whether a process can be given these arguments: they have no NUL and no half of a character."""
        try:
            return b"\0" not in os.fsencode("".join(self.argv))
        except UnicodeEncodeError:
            return False


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What every case starts from: a tiny run that has ended, its ``text.txt``, and configs that work."""

    folder: Path
    pretrain: dict[str, Any]
    corpus: dict[str, Any]  # that of ``text.txt``; the one of ``pretrain`` is built
    finetune: dict[str, Any]

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @functools.cached_property
    def tuned(self) -> Path:
        """Return the folder of a fine-tuned run, made when it is first asked for."""
        recipe = write_json(self.folder / "tuned.json", self.finetune)
        assert (
            run(["finetune", f"--config={recipe}", f"--data={self.folder}", f"--workdir={self.folder / 'tuned'}"]) == 0
        )
        return self.folder / "tuned"

    @functools.cached_property
    def narrow(self) -> Path:
        """Return the folder of an export whose heads are as wide as those of published sizes."""
        config = dataclasses.replace(CONFIG, num_layers=2, hidden_size=64, num_heads=1, mlp_dim=256)
        model = TrainedModel("", params_of(HEADS["masked_lm"], config), config, TOKENIZER, HEADS["masked_lm"])
        export_model(model, self.folder / "narrow", "card")
        return self.folder / "narrow"

    @functools.cached_property
    def vocabularies(self) -> dict[str, bytes]:
        """Return file name -> content for each kind of vocabulary; they are learned when first asked for."""
        recipe = write_json(self.folder / "learn.json", self.pretrain | {"vocab": {}, "corpus": self.corpus})
        found = {"vocab.txt": (self.run / "vocab.txt").read_bytes()}
        for kind, name, size in (
            ("unigram", "spiece.model", 50),
            ("bpe", "bpe.model", 90),
            ("byte_bpe", "tokenizer.json", 300),
        ):
            flags = [f"--config.vocab.kind={kind}", f"--config.vocab.size={size}", f"--output={self.folder / name}"]
            assert run(["vocab", f"--config={recipe}", *flags]) == 0
            found[name] = (self.folder / name).read_bytes()
        return found


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


def attempt(command: Command, folder: Path) -> str:
    """Run a command in this process and return how it ended: "done", "reached" or "refused".

    Raises:
      AssertionError: it had a traceback, took too long, said more than a line of error, or was refused and left
        something behind in ``folder``.
    """
    out, err = io.StringIO(), io.StringIO()
    before = set(folder.rglob("*"))

    def stop(*_: Any) -> None:
        raise AssertionError(f"{command}: still busy after {SECONDS} s of processor time, or {HANG_SECONDS} s")

    signals = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGPROF)}
    signal.alarm(HANG_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), little_memory():
            code = run(command.argv)
    except AssertionError as error:
        raise AssertionError(f"{command}: {error}") from error
    except (Exception, SystemExit) as error:
        raise AssertionError(f"{command}: {type(error).__name__}: {str(error)[:300]}") from error
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in signals.items():
            signal.signal(number, handler)
    return ending(command, code, err.getvalue(), folder, before)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Let this process take ``MORE_MEMORY`` in the block; beyond that there is a ``MemoryError``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def attempt_in_a_process(command: Command, folder: Path) -> str:
    """Run a command as a user does, in a process of its own; return and raise as ``attempt`` does."""
    before = set(folder.rglob("*"))
    argv = [sys.executable, "-m", "bert_jax", *command.argv]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=HANG_SECONDS)
    return ending(command, done.returncode, done.stderr, folder, before)


def ending(command: Command, code: int, said: str, folder: Path, before: set[Path]) -> str:
    """Return how a command ended, by its exit code and by what it said on stderr, as ``attempt`` does."""
    assert "Traceback" not in said, f"{command}: {said[-1500:]}"
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if code == 0 or (code == 1 and command.finds and not errors):
        return "done"
    assert code == 2, f"{command}: exit code {code}: {said[-500:]}"
    assert len(errors) == 1, f"{command}: {said[-500:]}"
    assert said.strip().splitlines()[-1] == errors[0], f"{command}: {said[-500:]}"
    if errors[0].endswith(("error: reached", ": reached")):
        return "reached"
    assert len(errors[0]) < 3000, f"{command}: {len(errors[0])} characters: {errors[0][:300]}"
    errors[0].encode()
    left = sorted(str(path.relative_to(folder)) for path in set(folder.rglob("*")) - before)
    assert not left, f"{command}: refused ({errors[0][:200]}), and left {left[:20]}"
    return "refused"


def write_json(path: Path, config: Any) -> Path:
    path.write_text(json.dumps(config))
    return path
