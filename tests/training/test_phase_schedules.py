"""Schedules at their corners, in tokens, and of phases with a clock of their own."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.errors import UserError
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.rows.phases import Phase
from bert_jax.training.experiment import Experiment
from bert_jax.training.schedules import inverse_sqrt, linear, warmup_stable_decay
from tests.training import line

WSD = warmup_stable_decay.Schedule


def test_the_decay_of_modernbert_at_its_corners() -> None:
    """Shares of the peak: 3 steps rise, 400 fall by 1 - sqrt to a thousandth (learning-rate-decay.yaml)."""
    schedule = WSD(2.0, 3, decay_steps=400, decay="one_minus_sqrt", final_fraction=0.001).make(500)
    steps = {0: 0.0, 2: 2 / 3, 3: 1.0, 100: 1.0, 104: 0.9001, 200: 0.5005, 500: 0.001}
    found = [float(schedule(step)) / 2.0 for step in steps]
    np.testing.assert_allclose(found, list(steps.values()), rtol=1e-6)


def test_a_linear_decay_may_end_above_zero() -> None:
    """Half of the run falls: Ettin's from 1 to 0.5 would be this with the other shape."""
    schedule = WSD(1.0, 0, decay_fraction=0.5, final_fraction=0.5).make(80)
    np.testing.assert_allclose([schedule(step) for step in (0, 40, 50, 80)], [1.0, 1.0, 0.875, 0.5])
    assert float(WSD(1.0, 0, final_fraction=0.5).make(8)(7)) == 1.0  # nothing falls without a decay


def test_the_rate_of_the_transformer() -> None:
    published = [512**-0.5 * min(max(step, 1) ** -0.5, step * 4000**-1.5) for step in range(0, 20_000, 500)]
    schedule = inverse_sqrt.Schedule((512 * 4000) ** -0.5, 4000).make(20_000)
    np.testing.assert_allclose(jax.vmap(schedule)(np.arange(0, 20_000, 500)), published, rtol=2e-6)
    assert [float(inverse_sqrt.Schedule(1.0, 0).make(9)(step)) for step in (0, 1, 4)] == [1.0, 1.0, 0.5]


PHASES = {
    "phase1": {"num_steps": 4, "batch_size": 2, "max_length": 16},
    "phase2": {"num_steps": 6, "batch_size": 4, "max_length": 16},
    "phase3": {"num_steps": 5, "batch_size": 2, "max_length": 64},
    "phase4": {"num_steps": 4, "batch_size": 4, "max_length": 16},
}
OWN = {"name": "warmup_stable_decay", "peak_learning_rate": 0.5, "warmup_steps": 1, "decay_steps": 2}


def experiment(schedule: dict[str, Any], **own: Any) -> Experiment:
    phases = {name: {**keys, **({"schedule": own[name]} if name in own else {})} for name, keys in PHASES.items()}
    recipe = {"objective": {"name": "mlm"}, "model": {"size": "tiny"}, "phases": phases, "schedule": schedule}
    return PretrainingSettings.of(recipe).experiment


def rates(of: Experiment) -> list[float]:
    schedule = jax.jit(of.make_schedule())
    return [float(schedule(step)) for step in range(of.phases.num_steps)]


def test_a_phase_has_a_clock_of_its_own() -> None:
    """The schedule of the run goes on after it as if it had not been there."""
    of = experiment({"name": "linear", "peak_learning_rate": 1.0, "warmup_steps": 2}, phase3=OWN)
    common = [0.0, 0.5, *(1 - n / 12 for n in range(12))]
    np.testing.assert_allclose(rates(of), [*common[:10], 0.0, 0.5, 0.5, 0.5, 0.25, *common[10:]], rtol=1e-6)
    assert [(name, steps) for name, (_, steps) in of.schedules.items()] == [("", 14), ("phase3", 5)]

    each = experiment({}, **dict.fromkeys(PHASES, {"peak_learning_rate": 1.0, "warmup_steps": 0}))
    np.testing.assert_allclose(rates(each), [1 - n / size for size in (4, 6, 5, 4) for n in range(size)], rtol=1e-6)
    assert list(each.schedules) == list(PHASES)  # that of the run has no step, so its warm-up of 10,000 fits too


def test_lengths_in_tokens_are_those_of_the_steps_that_read_them() -> None:
    """A step of phase1 reads 32 tokens, one of phase2 and phase4 64, one of phase3 128."""
    tokens = {"name": "warmup_stable_decay", "peak_learning_rate": 1.0, "warmup_tokens": 130, "decay_tokens": 256 + 1}
    assert rates(experiment(tokens)) == rates(experiment({**of_steps(5, 5), "peak_learning_rate": 1.0}))
    own = {"warmup_tokens": 128, **{key: value for key, value in OWN.items() if key != "warmup_steps"}}
    alone = experiment({**tokens, "decay_tokens": 64 * 4 + 64 * 5 - 1}, phase3=own)
    assert rates(alone) == rates(experiment({**of_steps(5, 9), "peak_learning_rate": 1.0}, phase3=OWN))


def of_steps(warmup: int, decay: int) -> dict[str, Any]:
    return {"name": "warmup_stable_decay", "warmup_steps": warmup, "decay_steps": decay}


AT = "config.phases.phase3.schedule"
BAD = {
    "longer than the phase": ({"decay_steps": 9}, f"{AT}: warmup_steps 1 \\+ decay_steps 9 exceed the phase's 5 steps"),
    "in tokens": ({"decay_tokens": 999, "decay_steps": None}, f"{AT}: .* \\+ decay_steps 8 exceed the phase's 5 steps"),
    "final": ({"final_fraction": 1.5}, f"{AT}.final_fraction is 1.5; a share from 0 to 1 is needed"),
    "negative": ({"warmup_tokens": -1, "warmup_steps": None}, f"{AT}.warmup_tokens is -1; at least 0 is needed"),
    "unknown": ({"name": "wsd"}, f"{AT}.name: there is no schedule 'wsd' in .*; valid: .*cosine.*"),
    "key": ({"decay_stepz": 1}, f"unknown key {AT}.decay_stepz; did you mean 'decay_steps'"),
    "shape": ({"decay": "sqrt"}, f"{AT}.decay is 'sqrt'; allowed: 'linear', 'one_minus_sqrt'"),
    "two": ({"decay_fraction": 0.5}, f"{AT} has decay_steps and decay_fraction, of which one is allowed"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_schedule_of_a_phase_is_named(name: str) -> None:
    changes, message = BAD[name]
    own = {key: value for key, value in (OWN | changes).items() if value is not None}
    with pytest.raises(UserError, match=message):
        experiment({"warmup_steps": 0}, phase3=own).check()


def test_a_schedule_of_a_phase_that_rises_for_long_says_so() -> None:
    of = experiment({"warmup_steps": 0}, phase3={**OWN, "warmup_steps": 3})
    [line_] = [one for schedule, steps in of.schedules.values() for one in schedule.remarks(steps)]
    assert line_ == (
        f"the learning rate rises for 3 of 5 steps ({AT}); --{AT}.warmup_fraction=0.1 lets it rise for a tenth of the "
        "steps"
    )


def test_it_is_part_of_what_a_run_is() -> None:
    """A run of before has no entry for it, as a phase without one."""
    recipe = {"objective": {"name": "mlm"}, "model": {"size": "tiny"}, "phases": PHASES}
    plain = PretrainingSettings.of(recipe).identity()["phases"]["phase3"]
    assert plain["schedule"] is None
    phases = {**PHASES, "phase3": {**PHASES["phase3"], "schedule": {**OWN, "warmup_fraction": 0.2}}}
    del phases["phase3"]["schedule"]["warmup_steps"]
    found = PretrainingSettings.of({**recipe, "phases": phases}).identity()["phases"]["phase3"]["schedule"]
    assert (found["warmup_fraction"], found["peak_learning_rate"], found["decay"]) == (0.2, 0.5, "linear")
    assert "warmup_steps" not in found


def test_a_run_that_is_cut_in_a_phase_with_its_own_goes_on_at_its_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, whether it is cut before the first step of the phase or within it."""
    make, phases = line.experiment, tuple(Phase(6, line.BATCH, line.WIDTH, kind) for kind in ("a", "b", "c"))
    own = {"b": WSD(0.03, 2, decay_steps=2, decay="one_minus_sqrt", where="config.phases.b.schedule")}
    changed = {"own_schedules": own, "checkpoints": CheckpointConfig(every_steps=3, keep=9)}
    monkeypatch.setattr(line, "experiment", lambda **changes: dataclasses.replace(make(**changes), **changed))

    def train(workdir: Path) -> list[dict[str, Any]]:
        task: Any = lambda points: line.Line(points, ("a", "b", "c"))  # noqa: E731
        line.train(workdir, task=task, phases=phases, log_every_steps=1)
        lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
        names = ("step", "learning_rate", "loss", "squared_error")
        return [{name: one[name] for name in names if name in one} for one in lines]

    whole = train(tmp_path / "whole")
    rates = [one["learning_rate"] for one in whole if "learning_rate" in one]
    expected = [*(0.01 * n for n in range(5)), 0.05, 0.0, 0.015, 0.03, 0.03, 0.03, 0.03 * (1 - 0.5**0.5)]
    np.testing.assert_allclose(rates, [*expected, *(0.05 * (1 - n / 7) for n in range(1, 7))], rtol=1e-5)
    for step in (6, 9):
        cut = tmp_path / str(step)
        shutil.copytree(tmp_path / "whole", cut)
        for later in (one for one in saved_steps(str(cut)) if one > step):
            shutil.rmtree(cut / "checkpoints" / str(later))
        assert saved_steps(str(cut))[-1] == step
        assert train(cut) == whole
        jax.tree.map(np.testing.assert_array_equal, *(read_params(str(one))[0] for one in (cut, tmp_path / "whole")))


def test_an_experiment_keeps_the_path_of_a_schedule() -> None:
    schedule = dataclasses.replace(linear.Schedule(1.0, 9, where="config.phases.a.schedule"), warmup_steps=7)
    assert schedule.path == "config.phases.a.schedule"
    assert schedule == linear.Schedule(1.0, 7)
    of = dataclasses.replace(line.experiment(phases=(Phase(4, 8, 8, "a"),)), own_schedules={"a": schedule})
    with pytest.raises(UserError, match=r"config.phases.a.schedule: warmup_steps 7 exceed the phase's 4 steps"):
        of.make_schedule()
