"""Which layouts a search compiles, and which it takes."""

import dataclasses

import pytest

from bert_jax.planning import page
from bert_jax.planning.plan import Change, Rates, make
from bert_jax.planning.search import Candidate, SearchResult, candidates, search
from bert_jax.training.mesh import MeshConfig
from tests.planning import tiny

BATCHES = {"phase1": tiny.ROWS}
SHORT = "at least 1 m 40 s, at least 0.2 chip-hours, at least 0.44 at 2 a chip-hour"
OTHER = "--config.mesh.data=4 --config.mesh.fsdp=1 --config.mesh.tensor=2"


@pytest.fixture(scope="module")
def machine():
    return tiny.machine()


@pytest.fixture(scope="module")
def plan(machine):
    return make(tiny.recipe(), machine, Rates(price_per_chip_hour=2.0, restarts_per_day=0))


@pytest.fixture
def taking(plan):
    """(seconds of training or None for what does not fit, mesh, own) -> a compiled layout."""

    def made(seconds: float | None, mesh: MeshConfig, own: bool = False) -> Candidate:
        phase = dataclasses.replace(plan.phases[0], fits=seconds is not None)
        step = dataclasses.replace(phase.prediction, seconds=(seconds or 0) / phase.phase.num_steps)
        whole = dataclasses.replace(plan, phases=(dataclasses.replace(phase, prediction=step),))
        return Candidate(Change(mesh, {"phase1": 1}, "none"), 2.0**30, 7.0, own, whole)

    return made


@pytest.fixture
def found(taking):
    """Return a search that found the recipe's own layout and another one; the seconds of both are given."""

    def made(own: float | None, other: float | None) -> SearchResult:
        two = taking(own, MeshConfig(8, 1, 1), own=True), taking(other, MeshConfig(4, 1, 2))
        return SearchResult(two, 9)

    return made


@pytest.mark.parametrize(
    ("own", "other", "is_own", "said"),
    [
        (100, 200, True, f"fastest that fits: the recipe's own layout ({SHORT}); nothing to change"),
        (100, 100, True, f"fastest that fits: the recipe's own layout ({SHORT}); nothing to change"),
        (100, None, True, f"fastest that fits: the recipe's own layout ({SHORT}); nothing to change"),
        (
            7260,
            7200,
            True,
            "the recipe's own layout (at least 2 h 01 m, at least 16.1 chip-hours, at least 32.27 at 2",
        ),
        (7260, 7200, True, "is within 1 % of the fastest that fits (at least 2 h 00 m, at least 16.0 chip-hours"),
        (102, 100, False, f"({SHORT}; the recipe's own layout takes at least 1 m 42 s, at least 0.2 chip-hours"),
        (None, 100, False, f"({SHORT}; the recipe's own layout does not fit)"),
    ],
)
def test_the_fastest_is_taken_unless_the_recipe_is_as_fast(found, own, other, is_own, said):
    result = found(own, other)
    assert result.best.own == is_own
    last = page.search_lines(result, BATCHES)[-2]
    assert said in last
    assert ("nothing to change" in last) == is_own
    assert (OTHER in last) != is_own


def test_nothing_fits(found):
    result = found(None, None)
    assert result.best is None
    assert "none of those compiled fits" in page.search_lines(result, BATCHES)[-2]


def test_the_row_of_the_recipe_is_marked(found):
    slow, fast = page.search_lines(found(3000, 2988), BATCHES)[2:0:-1]
    assert slow.endswith("50 m 00 s   the recipe's own")
    assert "49 m 48 s" in fast
    assert "own" not in fast
    records = [page.candidate_record(candidate) for candidate in found(3000, 2988).compiled]
    assert [record["own"] for record in records] == [False, True]


def test_the_own_layout_is_always_a_candidate(machine):
    """Also one that no list of sizes has, and micro-batches of the recipe keep no other mesh out."""
    recipe = tiny.recipe(training={"micro_batches": 16}, mesh={"data": -1, "tensor": 4}, model={"remat": "dots"})
    found = candidates(recipe, machine)
    [own] = [c for c in found if c.own]
    assert own.change == Change(MeshConfig(2, 1, 4), {"phase1": 16}, "dots")
    plain = [c.change for c in candidates(tiny.recipe(), machine)]
    assert [c.change for c in found if not c.own] == plain
    assert own.change not in plain


@pytest.mark.parametrize(
    ("training", "compiled"),
    [
        ({}, 1),  # the best by arithmetic is the recipe's own
        pytest.param({"micro_batches": 8}, 2, marks=pytest.mark.heavy),
    ],
)
def test_what_is_compiled(machine, training, compiled):
    notes: list[str] = []
    found = search(tiny.recipe(training=training), machine, Rates(), 1, notes.append)
    tried = [note for note in notes if not note.startswith("still compiling")]
    assert len(found.compiled) == len(tried) == compiled
    assert tried[0].startswith(f"layout 1 of {compiled}:  data=")
    assert found.own.plan is not None
    assert found.own.change == Change(MeshConfig(8, 1, 1), {"phase1": training.get("micro_batches", 1)}, "none")
    assert found.fastest.predicted_seconds == min(c.plan.training_seconds for c in found.compiled)
    assert found.best.change.mesh == MeshConfig(8, 1, 1)  # so small a model is only slowed by sharding
