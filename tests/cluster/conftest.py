"""Jobs whose hearts beat quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_jax.cluster import heartbeat_server
from tests.cluster.job import Job, free_address


@pytest.fixture
def address() -> str:
    return free_address()


@pytest.fixture
def new_job(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    """``new_job(4, heartbeat_seconds=1.0)``; several of one test have the same address and workdir."""
    monkeypatch.setattr(heartbeat_server, "BEAT_SECONDS", 0.05)
    yield lambda count, **limits: Job(address, tmp_path, count, **limits)
    Job.end_all()
