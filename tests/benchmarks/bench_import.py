"""Seconds that ``import bert_jax`` and the light packages take in a fresh process; the first should stay under 0.5."""

import subprocess
import sys
import time

import pytest


@pytest.mark.parametrize(
    "module", ["bert_jax", "bert_jax.text.wordpiece", "bert_jax.corpora.store", "bert_jax.cli.main"]
)
def test_import(module):
    def seconds(program: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True)
        return time.perf_counter() - start

    bare = min(seconds("pass") for _ in range(5))
    print(f"\nimport {module}: {min(seconds(f'import {module}') for _ in range(5)) - bare:.3f} s")
