"""What memory is for (Dai et al. 2019, section 3.2): a model with memory reads what its rows do not hold.

Toy text: a document is a random string of 24 letters out of 16, then the same string again. A letter of the second
string can be read 24 places back, and nowhere else, and rows have 16 places. So a model without memory can guess each
letter at best. A model with a memory of 32 places learns to copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_jax
from bert_jax.records import SPECIAL_TOKENS
from tests import toy
from tests.training.gang import records

PIECES, STRING, DOCUMENTS, STEPS = "abcdefghijklmnop", 24, 3_000, 500
LINE = 2 * STRING + 1  # a document and its separator
GUESSED = (2 * STRING / len(PIECES) + 1) / LINE  # the right share of a model that knows where separators are
COPIED = (STRING + STRING / len(PIECES) + 1) / LINE
SEGMENTS = 10  # of a lane in an evaluation: the memory of the first is empty, and half full in the second


def recipe(folder: Path, memory: int, seed: int) -> dict[str, Any]:
    """A run with a memory of so many places; the files that it reads are written to ``folder``."""
    rng = np.random.default_rng(seed)
    strings = [" ".join(rng.choice(list(PIECES), STRING)) for _ in range(DOCUMENTS)]
    (folder / "text.txt").write_text("\n\n".join(f"{string} {string}" for string in strings))
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *PIECES]))
    return toy.recipe(
        folder / "text.txt",
        seed=seed,
        vocab={"path": str(folder / "vocab.txt")},
        objective={"name": "ltr", "arrangement": "streams"},
        model={"encoder": "transformer_xl", "hidden_size": 64, "num_layers": 2, "num_heads": 2, "mlp_dim": 64}
        | {"dropout_rate": 0.0, "memory_length": memory, "initializer_range": 0.04},
        phases={"phase1": {"num_steps": STEPS, "batch_size": 32, "max_length": 16}},
        optimizer={"name": "adamw", "b2": 0.98, "weight_decay": 0.0, "bias_correction": "standard"},
        schedule={"name": "warmup_stable_decay", "peak_learning_rate": 2e-3, "warmup_steps": 50},
        training={"log_every_steps": 100, "eval_every_steps": STEPS, "eval_rows": 32 * SEGMENTS, "loggers": ()},
        checkpoints={"every_steps": 10_000},
        examples=(),
        export=False,
    )


def accuracy(folder: Path, memory: int, seed: int) -> float:
    """Return the share of held-out tokens that a model with so much memory predicts."""
    folder.mkdir()
    with toy.one_device():
        bert_jax.pretrain(recipe(folder, memory, seed), folder / "run")
    return float([one["lm_accuracy"] for one in records(folder / "run") if one["split"] == "eval"][-1])


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(3))
def test_a_string_before_the_row_is_copied_from_memory_alone(tmp_path: Path, seed: int) -> None:
    without, with_memory = accuracy(tmp_path / "without", 0, seed), accuracy(tmp_path / "with", 32, seed)
    print(f"\nseed {seed}: {without:.3f} without memory, {with_memory:.3f} with it; guessed {GUESSED:.3f}")
    assert without < GUESSED + 0.03
    assert with_memory > COPIED * (SEGMENTS - 2) / SEGMENTS - 0.03
