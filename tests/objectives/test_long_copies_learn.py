"""What the long phase of a ModernBERT is for (Warner et al. 2024, section 2.2.2): it reads what is far away.

Toy text: a document is a random string of 311 letters out of four, then the same string again. A masked letter can be
read 311 places further on or back, and nowhere else. So rows of 128 teach nothing. In rows of 624, which follow in the
same run with another base of rotary positions, a layer that sees the whole row learns to copy; a layer that sees 64
places to each side does not. The model has one layer, so that this takes a minute. 311 lets a head look both ways at
once: its cosine is all but -1, while that of 300 is all but 0, and the fastest rotation would tell it nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_jax
from bert_jax.parts import catalogue
from bert_jax.records import SPECIAL_TOKENS
from tests import toy
from tests.training.gang import records

PIECES, STRING, DOCUMENTS, RATE = "acgt", 311, 600, 0.15
CHANCE = 1 / len(PIECES)
MOST = 1 - RATE + RATE * CHANCE  # a letter that is masked in both strings can only be guessed
SHORT_STEPS, LONG_STEPS = 100, 400
LOCAL = """
import dataclasses
from bert_jax.models.encoders import modernbert
from bert_jax.models.encoders.modernbert import SIZES, LmHead, Pooler

@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(modernbert.Config):
    @property
    def blocks(self):
        near = {"window": self.local_attention // 2, "rotation": self.local_theta}
        return tuple(dataclasses.replace(block, **near) for block in super().blocks)

class Encoder(modernbert.Encoder):
    pass
"""


def recipe(folder: Path, encoder: str, seed: int) -> dict[str, Any]:
    """A run of the encoder in two phases; the files that it reads are written to ``folder``."""
    rng = np.random.default_rng(seed)
    strings = [" ".join(rng.choice(list(PIECES), STRING)) for _ in range(DOCUMENTS)]
    (folder / "text.txt").write_text("\n\n".join(f"{string} {string}" for string in strings))
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *PIECES]))
    decay = {"name": "linear", "peak_learning_rate": 5e-3, "warmup_steps": 50}
    masks = {"rate": RATE, "mask_share": 1.0, "random_share": 0.0}
    return toy.recipe(
        folder / "text.txt",
        seed=seed,
        vocab={"path": str(folder / "vocab.txt")},
        objective={"name": "mlm", "arrangement": "sentences", "masking": masks},
        model={"encoder": encoder, "hidden_size": 64, "num_layers": 1, "num_heads": 4, "mlp_dim": 64}
        | {"max_length": 2 * STRING + 2, "global_theta": 10_000.0, "initializer_range": 0.04}
        | {"attention_output_dropout_rate": 0.0},
        phases={
            "phase1": {"num_steps": SHORT_STEPS, "batch_size": 16, "max_length": 128},
            "phase2": {"num_steps": LONG_STEPS, "batch_size": 4, "max_length": 2 * STRING + 2, "schedule": decay}
            | {"model": {"global_theta": 160_000.0}},
        },
        optimizer={"name": "adamw", "b2": 0.98, "weight_decay": 0.0, "bias_correction": "standard"},
        schedule={"name": "warmup_stable_decay", "peak_learning_rate": 1e-3, "warmup_steps": 50},
        training={"log_every_steps": 50, "eval_every_steps": SHORT_STEPS, "eval_rows": 100, "loggers": ()},
        checkpoints={"every_steps": 10_000},
        examples=(),
        export=False,
    )


def found(folder: Path, encoder: str, seed: int) -> tuple[float, float, float]:
    """Return how often masked pieces are found: in the short rows, and in held-out long rows after each phase."""
    folder.mkdir()
    with toy.one_device():
        bert_jax.pretrain(recipe(folder, encoder, seed), folder / "run", trust_code=True)
    metrics = records(folder / "run")
    [short] = [one["mlm_accuracy"] for one in metrics if one["split"] == "train" and one["step"] == SHORT_STEPS]
    held = {one["step"]: one["mlm_accuracy"] for one in metrics if one["split"] == "eval"}
    return short, held[SHORT_STEPS], held[SHORT_STEPS + LONG_STEPS]


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(3))
def test_what_is_far_is_read_in_long_rows_by_layers_that_see_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(catalogue, "_names", {})
    monkeypatch.setattr(catalogue, "_trusted", {})
    (tmp_path / "local.py").write_text(LOCAL)
    whole = found(tmp_path / "whole", "modernbert", seed)
    local = found(tmp_path / "local", str(tmp_path / "local.py"), seed)
    print(f"\nseed {seed}: short rows, long rows before and after: whole {whole}, local {local}")
    assert max(*whole[:2], *local) < CHANCE + 0.03
    assert whole[2] > MOST - 0.05
