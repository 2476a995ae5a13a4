"""The notebooks of launch: what they store, and (heavy) their cells, run as Jupyter runs them."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests import toy
from tests.launch import notebook
from tests.launch.stage import ROOT

FILE = ROOT / "launch" / "quickstart.ipynb"
FREE_GPU = ROOT / "launch" / "free_gpu.ipynb"
MOST_BYTES = 150_000  # of the file, outputs included
LINK = re.compile(r"\]\(([^)#]+)")
PLACE = re.compile(r"(?<![\w.:/])/(?:home|root|work|tmp|Users|mnt|usr|opt)/\w+")

BAR = """
from bert_jax.reporting.progress import ProgressLine
bar = ProgressLine(2)
bar.start(0)
bar.update(1, {"loss": 2.0})
bar.note("a note")
bar.update(2, {"loss": 1.0})
bar.finish()
"""


def outputs(cells: list[dict]) -> str:
    return json.dumps([cell.get("outputs", []) for cell in cells])


def test_the_notebook_is_whole_small_and_names_no_machine() -> None:
    stored = notebook.read(FILE)
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    assert FILE.stat().st_size < MOST_BYTES
    assert not PLACE.search(FILE.read_text(encoding="utf-8"))
    ids = [cell["id"] for cell in stored["cells"]]
    assert len(set(ids)) == len(ids)
    cells = [cell for cell in stored["cells"] if notebook.code(cell)]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), (
        "run anew: tests.launch.notebook"
    )
    assert "Traceback" not in outputs(cells)
    assert outputs(cells).count("image/svg+xml") == 2
    for cell in cells:
        compile(notebook.code(cell), cell["id"], "exec")
    links = LINK.findall("".join("".join(cell["source"]) for cell in stored["cells"] if cell not in cells))
    assert links
    assert [link for link in links if not (FILE.parent / link).is_file()] == []


def test_the_notebook_for_a_free_gpu_is_whole_and_stores_no_output() -> None:
    stored = notebook.read(FREE_GPU)
    assert not PLACE.search(FREE_GPU.read_text(encoding="utf-8"))
    cells = [cell for cell in stored["cells"] if notebook.code(cell)]
    assert [(cell["execution_count"], cell["outputs"]) for cell in cells] == [(None, [])] * len(cells)
    for cell in cells:
        compile(notebook.code(cell), cell["id"], "exec")
    links = LINK.findall("".join("".join(cell["source"]) for cell in stored["cells"]))
    assert [link for link in links if not (FREE_GPU.parent / link).is_file()] == []
    assert cells[-1]["id"] == "push"


def test_cells_are_run_as_jupyter_runs_them() -> None:
    class Shown:
        def __repr__(self) -> str:
            return "shown"

        def _repr_svg_(self) -> str:
            return "<svg/>"

    sources = [
        "import asyncio\nprint(asyncio.get_running_loop().is_running())\nx = 1",
        "x + 1",
        "shown()",
        "y = x",
        BAR,
    ]
    cells = [{"cell_type": "code", "source": [source], "outputs": []} for source in sources]
    small = {"cells": [{"cell_type": "markdown", "source": ["text"]}, *cells]}
    names = notebook.execute(small, shown=Shown)
    assert names["y"] == 1
    printed, number, drawn, nothing, bar = (cell["outputs"] for cell in cells)
    assert printed == [{"name": "stdout", "output_type": "stream", "text": ["True\n"]}]
    assert number[0]["data"] == {"text/plain": ["2"]}
    assert drawn[0]["data"] == {"text/plain": ["shown"], "image/svg+xml": ["<svg/>"]}
    assert nothing == []
    assert bar[0]["text"][0] == "a note\n"
    assert bar[0]["text"][1].startswith("step  2/2  100%  loss 1.000")
    assert len(bar[0]["text"]) == 2


@pytest.mark.heavy
def test_the_notebook_runs_from_text_to_a_fine_tuned_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    found = notebook.read(FILE)
    with toy.one_device():
        names = notebook.execute(found)
    baselines = json.loads((tmp_path / "runs/quickstart/baselines.json").read_text())
    assert names["metrics"]["mlm_loss"] < baselines["unigram_cross_entropy"]
    assert names["pretrained"]["accuracy"] > names["from_scratch"]["accuracy"] > 0.4  # a third by guessing
    assert names["record"]["prediction"] in names["found"]
    assert len(json.dumps(found)) < MOST_BYTES


@pytest.mark.heavy
def test_the_notebook_for_a_free_gpu_runs_on_a_cpu_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the push, which waits for the name of a repository."""
    monkeypatch.chdir(tmp_path)
    found = notebook.read(FREE_GPU)
    [cell] = [cell for cell in found["cells"] if cell["id"] == "pretrain"]
    cell["source"] = [notebook.code(cell).replace("overrides=settings", "overrides=settings | small")]
    small = {
        "corpus.options.packages": ("optax", "flax"),
        "phases": {"phase1": {"num_steps": 4, "batch_size": 4, "max_length": 128}},
        "training": {"eval_every_steps": 2, "eval_rows": 16, "log_every_steps": 1},
        "model.num_layers": 1,
    }
    with toy.one_device():
        names = notebook.execute(found, small=small)
    assert names["dtype"] == "float32"
    assert names["metrics"]["mlm_loss"] > 0
    assert (tmp_path / "runs/gpu/hugging_face/model.safetensors").exists()
