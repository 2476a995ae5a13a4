"""Commands that stop where training would begin."""

from __future__ import annotations

import pytest

from bert_jax.runs import run as runs
from bert_jax.training.loop import Run


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """What each later command of the test hands to the training loop. There the command is interrupted (code 130)."""
    found: list[Run] = []

    def stop(run: Run) -> None:
        found.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "train_and_evaluate", stop)
    return found
