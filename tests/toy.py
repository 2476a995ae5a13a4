"""A toy corpus and a tiny recipe, for tests that run the real commands."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_SUBJECTS = ["the cat", "a dog", "my aunt", "the old king", "every child", "a small bird", "the ship"]
_VERBS = ["sees", "likes", "follows", "finds", "carries", "remembers", "paints", "builds"]
_OBJECTS = ["the river", "a red house", "some bread", "the long road", "a letter", "two stones"]


def environment() -> dict[str, str]:
    """Return the environment of a command that a user runs: with the devices that are there, not the tests' eight."""
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "host_platform_device_count" not in flag]
    return os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}


@contextlib.contextmanager
def one_device() -> Iterator[None]:
    """Commands find one device here: their steps compile in half the time of those for eight.

    Plans, which ask for the devices of a backend by name, find them all.
    """
    import jax

    every = jax.devices
    with pytest.MonkeyPatch.context() as patch:
        for found in ("devices", "local_devices"):
            patch.setattr(jax, found, lambda backend=None: every(backend) if backend else every()[:1])
        yield


def write_text(path: Path, documents: int = 60, seed: int = 0, case: Callable[[str], str] = str) -> Path:
    """One sentence a line, a blank line between documents; ``case`` may change the case of letters."""
    rng = random.Random(seed)
    parts = (_SUBJECTS, _VERBS, _OBJECTS)
    texts = [
        "\n".join(" ".join(map(rng.choice, parts)) + "." for _ in range(rng.randint(4, 12))) for _ in range(documents)
    ]
    path.write_text(case("\n\n".join(texts) + "\n"))
    return path


def label(text: Path) -> dict[str, Any]:
    """Add documents of two sentences to ``text``; return columns that say how its sentences begin, in three classes."""
    phrases = text.with_name("phrases.tsv")
    phrases.write_text("".join(f"{subject}\tclass {i % 3}\n" for i, subject in enumerate(_SUBJECTS)))
    with text.open("a") as file:
        for i, subject in enumerate(_SUBJECTS * 6):
            file.write(f"\nthe ship finds {_OBJECTS[i % 6]}.\n{subject} builds {_OBJECTS[i % 5]}.\n")
    return dict.fromkeys(("connectives", "relevance"), {"annotator": "leading_phrases", "phrases": str(phrases)})


def recipe(text: Path, **changes: Any) -> dict[str, Any]:
    """A config tree: a 2 x 32 BERT for 24 steps on ``text``. ``changes`` replace keys of its groups."""
    config: dict[str, Any] = {
        "seed": 0,
        "vocab": {"size": 120, "min_frequency": 1},
        "corpus": {
            "source": "text_files",
            "options": {"paths": (str(text),), "format": "sentences", "document_boundary": "blank_line"},
            "heldout_fraction": 0.2,
        },
        "objective": {"name": "mlm_nsp"},
        "model": {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "mlp_dim": 64, "max_length": 32},
        "phases": {"phase1": {"num_steps": 24, "batch_size": 8, "max_length": 32}},
        "optimizer": {},
        "schedule": {"name": "linear", "peak_learning_rate": 1e-3, "warmup_steps": 4},
        "mesh": {},
        "loader": {},
        "training": {"log_every_steps": 2, "eval_every_steps": 8, "eval_rows": 20},
        "checkpoints": {"every_steps": 5},
        "examples": ("the [MASK] sees the river.",),
    }
    for group, values in changes.items():
        config[group] = {**config[group], **values} if isinstance(config.get(group), dict) else values
    return config


# Settings of the model that an objective needs; all others take BERT's.
MODELS: dict[str, dict[str, Any]] = {
    "mass": {"encoder": "seq2seq", "num_decoder_layers": 1},
    "permuted": {"encoder": "xlnet"},
}
# Columns of the corpus that an objective reads, with their annotators.
COLUMNS: dict[str, dict[str, Any]] = {"capitals": {"capitals": {"annotator": "capitals"}}}


def write_recipe(path: Path, config: dict[str, Any]) -> Path:
    """As a ``.json`` recipe for ``--config``."""
    path.write_text(json.dumps(config))
    return path
