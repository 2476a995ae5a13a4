"""A wrong request for a plan ends in one line, before anything is compiled."""

import importlib.util
import re
from pathlib import Path

import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.planning import topologies
from bert_jax.runs.recipe_plan import PlanRequest, plan
from tests.planning import tiny

ROOT = Path(__file__).parents[2]


def phase(batch_size: int, max_length: int) -> dict[str, dict[str, dict[str, int]]]:
    return {"phases": {"phase1": {"num_steps": 999, "batch_size": batch_size, "max_length": max_length}}}


CASES = {
    "unknown kind": ({}, "v9:2x2", "unknown topology 'v9:2x2'; .*v5e: 1x1, 2x2.*cpu"),
    "a slip": ({}, "v5:4x4", "did you mean 'v5"),
    "unknown shape": ({}, "v5e:3x5", "v5e comes as v5e:1x1, .*v5e:16x16"),
    "no number": ({}, "cpu:many", "write cpu:N"),
    "mesh": ({"mesh": {"data": 3}}, "cpu:8", "does not divide the 8 devices"),
    "batch": (phase(12, 32), "cpu:8", "nearest .* 8 or 16"),
    "row": (phase(8, 64), "cpu:8", "32 positions"),
    "key": ({"model": {"hiden_size": 3}}, "cpu:8", "did you mean 'hidden_size'"),
}


@pytest.mark.parametrize("name", CASES)
def test_is_named_before_a_compile(name):
    changes, topology, message = CASES[name]
    notes: list[str] = []
    with pytest.raises(UserError, match=message):
        plan(tiny.config(**changes), PlanRequest(topology), notes.append)
    assert notes == []


def test_recipes_of_fine_tuning_are_refused():
    with pytest.raises(UserError, match=r"one for fine-tuning.*--config=continue --init=DIR"):
        plan({"task": {"name": "classification"}}, PlanRequest("cpu:8"), print)


def test_every_listed_name_is_understood():
    for kind, shapes in topologies.SHAPES.items():
        for shape in shapes:
            found = topologies.parse(f"{kind}:{shape}")
            assert found.platform == "tpu"
            assert len(found.shape) == topologies.CHIPS[kind].dimensions
    assert topologies.parse("h200:16").num_devices == 16


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed here")
def test_missing_compiler(capsys):
    assert run(["plan", "--config=bert_base", "--topology=v5e:16x16"]) == 2
    said = capsys.readouterr().err
    assert "pip install 'jax[tpu]'" in said
    assert "-r requirements/tpu.txt" in said


def test_missing_compiler_for_gpus(capsys, monkeypatch):
    """The message names the packages of the extra, and a lock file that has them."""
    monkeypatch.setattr(topologies, "has_gpu_compiler", lambda: False)
    assert run(["plan", "--config=bert_base", "--topology=h200:8"]) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert "(no GPU is needed); install it with: pip install 'jax[cuda12-local]' nvidia-cuda-nvcc-cu12 (" in said
    [lock] = re.findall(r"requirements/[\w-]+\.txt", said)
    assert {"jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12"} <= names(lock) - names("requirements.txt")


def names(lock):
    return set(re.findall(r"^([\w-]+)==", (ROOT / lock).read_text(), re.MULTILINE))


def test_a_recipe_that_goes_on_from_a_model_needs_it(capsys):
    start = ["plan", "--config=continue", "--config.phases.phase1.num_steps=9", "--topology=cpu:1"]
    assert run(start) == 2
    assert "config.model is empty" in (error := capsys.readouterr().err)
    assert "give --init=DIR" in error
    assert run([*start, "--init=nothing-there"]) == 2
    assert "--init=nothing-there is neither a Hugging Face directory" in capsys.readouterr().err


def test_the_machine_is_needed(capsys):
    assert run(["plan", "--config=quickstart"]) == 2
    assert "required: --topology" in capsys.readouterr().err


@pytest.mark.parametrize(("price", "found"), [("-1", "-1.0"), ("inf", "inf")])
def test_a_price_is_a_positive_number(price, found, capsys):
    assert run(["plan", "--config=quickstart", "--topology=cpu:8", f"--price_per_chip_hour={price}"]) == 2
    [line] = capsys.readouterr().err.splitlines()  # no line tells of a compile
    assert f"--price_per_chip_hour is {found}; more than 0 is needed" in line
