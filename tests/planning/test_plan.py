"""Plans for CPU devices, against figures from other sources."""

import dataclasses
import importlib.util
import json
import math
import re

import jax
import pytest

from bert_jax.cli.main import run
from bert_jax.planning import page, topologies
from bert_jax.planning.compile import compile_phase, out_of_memory
from bert_jax.planning.largest_micro_batch import LargestMicroBatch
from bert_jax.planning.plan import Change, Machine, make_plan
from bert_jax.planning.smallest_change import smallest_change
from bert_jax.runs.recipe_plan import PlanRequest, PlanResult
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.state import abstract
from tests.planning import tiny


def parameters() -> int:
    """Return the number of parameters of the model in tests.planning.tiny, by hand (Devlin et al. 2019)."""
    d, mlp = tiny.SIZES["hidden_size"], tiny.SIZES["mlp_dim"]
    embeddings = (tiny.VOCABULARY + tiny.SIZES["max_length"] + 2) * d + 2 * d
    layer = 4 * (d * d + d) + d * mlp + mlp + mlp * d + d + 4 * d
    heads = (d * d + d) + (2 * d + 2) + (d * d + d) + 2 * d + tiny.VOCABULARY
    return embeddings + tiny.SIZES["num_layers"] * layer + heads


def test_memory(plan):
    memory = plan.phases[0].compiled.memory
    assert memory.parameters == 4 * parameters()
    assert memory.optimizer == pytest.approx(2 * memory.parameters, rel=0.01)  # two moments, and a few counters
    assert memory.temporaries > memory.parameters  # gradients alone are as many
    assert memory.total == sum(dataclasses.astuple(memory))
    assert plan.fits


def test_products_are_those_of_the_model(plan):
    """A plan counts the program, the model's figure is arithmetic, and the compiler counts elementwise work too."""
    phase = plan.phases[0]
    counted = phase.prediction.products * plan.topology.num_devices
    assert counted == pytest.approx(phase.model_flops, rel=0.05)
    whole = phase.prediction.products + phase.prediction.elementwise
    assert whole == pytest.approx(phase.compiled.flops, rel=0.25)


def test_data_parallel_sums_gradients_over_data(plan):
    rows = plan.phases[0].prediction.collectives
    assert {row.axes for row in rows} == {("data",)}
    assert {row.kind for row in rows} == {"all-reduce"}
    # The word embeddings' gradient is summed twice: as looked up and as decoded with.
    least = 4 * parameters()
    assert least <= sum(row.bytes for row in rows) <= least + 4 * tiny.VOCABULARY * tiny.SIZES["hidden_size"] + 1000


def test_a_sharded_update_sums_each_gradient_once(machine, plan, monkeypatch):
    monkeypatch.setattr(meshes, "SPLIT", 16)
    sharded = make_plan(tiny.recipe(), machine)
    memory, whole = sharded.phases[0].compiled.memory, plan.phases[0].compiled.memory
    assert memory.state < 0.25 * whole.state  # an eighth of the matrices, and the rest
    rows = {row.kind: row for row in sharded.phases[0].prediction.collectives}
    assert {row.axes for row in rows.values()} == {("data",)}
    assert rows["reduce-scatter"].bytes == rows["all-gather"].bytes >= 0.9 * whole.parameters
    assert rows["reduce-scatter"].bytes + rows["all-reduce"].bytes <= 4 * parameters() + 1000
    assert sharded.phases[0].prediction.products == plan.phases[0].prediction.products


def test_fsdp_gathers_parameters(machine, plan, monkeypatch):
    """No matrix is large enough for a sharded update, as a note says."""
    monkeypatch.setattr(meshes, "SPLIT", 1000)
    sharded = make_plan(tiny.recipe(mesh={"data": 1, "fsdp": 8}), machine)
    assert "8 devices divide no axis of 1000 or more" in sharded.notes[0]
    assert not plan.notes
    memory, whole = sharded.phases[0].compiled.memory, plan.phases[0].compiled.memory
    assert memory.state < 0.2 * whole.state  # an eighth, and what does not divide
    rows = sharded.phases[0].prediction.collectives
    assert {row.axes for row in rows} == {("fsdp",)}
    gathered = sum(row.bytes for row in rows if row.kind == "all-gather")
    assert gathered >= 0.9 * whole.parameters
    # No row of activations is on more than one device: each works through its own rows from first to last.
    assert f"f32[{tiny.ROWS},{tiny.LENGTH},{tiny.SIZES['hidden_size']}]" not in sharded.phases[0].compiled.text


@pytest.mark.heavy
def test_tensor_parallel_talks_over_tensor(machine):
    recipe = tiny.recipe(mesh={"data": 2, "tensor": 4}, training={"micro_batches": 2})
    rows = make_plan(recipe, machine).phases[0].prediction.collectives
    assert {axes for row in rows for axes in row.axes} >= {"data", "tensor"}


def test_the_step_is_that_of_the_loop(machine):
    """A planned state has the shapes and the places of a real state."""
    task, experiment = tiny.recipe(mesh={"data": 2, "fsdp": 2, "tensor": 2}).variant(Change(), machine.devices)
    mesh = experiment.make_mesh(machine.devices)
    initial = experiment.initial_state(task, mesh)
    planned, made = initial.shapes, abstract(initial.make(0))
    assert jax.tree.structure(planned) == jax.tree.structure(made)
    for one, other in zip(jax.tree.leaves(planned), jax.tree.leaves(made), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.sharding.is_equivalent_to(other.sharding, len(one.shape))
    batch = meshes.abstract_batch(task.batch_specs["phase1"], tiny.ROWS, mesh)
    assert batch["input_ids"].sharding.shard_shape((tiny.ROWS, tiny.LENGTH)) == (tiny.ROWS // 4, tiny.LENGTH)


def test_time_and_money_add_up(plan):
    phase = plan.phases[0]
    step = phase.prediction.seconds
    assert plan.training_seconds == pytest.approx(1000 * step)
    assert plan.money == pytest.approx(2 * 8 * 1000 * step / 3600)
    assert phase.mfu == pytest.approx(phase.model_flops / step / 8 / phase.peak_flops)
    text = "\n".join(page.as_lines(plan))
    money = ("PREDICTED for the whole run: at least", " chip-hours, at least ", "at 2 a chip-hour")
    for said in ("verdict: fits", "PREDICTED step: at least", "all-reduce", "lower bounds", *money):
        assert said in text
    record = json.loads(json.dumps(page.as_record(plan)))
    assert record["phases"][0]["memory"]["parameters"] == 4 * parameters()
    assert record["phases"][0]["predicted_phase_seconds"] == pytest.approx(1000 * step)
    assert "lower bounds" in record["prediction"]
    assert record["predicted_seconds"] == pytest.approx(1000 * step)


def with_memory(machine: Machine, size: float) -> Machine:
    return dataclasses.replace(machine, chip=dataclasses.replace(machine.chip, memory_bytes=size))


def test_micro_batches_of_a_phase(machine, plan, monkeypatch):
    """The second phase accumulates. If only this phase does not fit, only this phase is to accumulate more."""
    compiled = dataclasses.replace(plan.phases[0].compiled, text="")  # nothing is asked of its time
    monkeypatch.setattr("bert_jax.planning.plan.compile_phase", lambda *_: compiled)
    sizes = {"num_steps": 900, "batch_size": 64, "max_length": 32}
    recipe = tiny.recipe(phases={"phase1": sizes, "phase2": {**sizes, "micro_batches": 2}})
    made = make_plan(recipe, machine)
    assert ", phase1.micro_batches=1, phase2.micro_batches=2, remat" in page.as_lines(made)[0]
    assert [phase["micro_batches"] for phase in page.as_record(made)["phases"]] == [1, 2]
    changed = recipe.variant(Change(micro_batches={"phase2": 4}), machine.devices)[1]
    assert [changed.micro_batches(phase) for phase in changed.phases.phases] == [1, 4]
    refused = dataclasses.replace(made, phases=(made.phases[0], dataclasses.replace(made.phases[1], fits=False)))
    *_, same = smallest_change(recipe, machine, refused, lambda _: None)
    assert same.change == Change(micro_batches={"phase2": 4})
    assert same.change.overrides({}) == ["--config.phases.phase2.micro_batches=4"]


@pytest.mark.heavy
def test_what_does_not_fit_names_the_smallest_change(machine):
    recipe = tiny.recipe(phases={"phase1": {"num_steps": 1000, "batch_size": 1024, "max_length": 32}})
    memory = make_plan(recipe, machine).phases[0].compiled.memory
    small = with_memory(machine, memory.total - 0.3 * memory.temporaries)
    refused = make_plan(recipe, small)
    assert not refused.fits
    tried: list[str] = []
    first, same = smallest_change(recipe, small, refused, tried.append)
    assert first.change == Change(batch_divisor=2)
    assert first.fits
    assert same.change.batch_divisor == 1  # sums of gradients take room too, so two micro-batches need not suffice
    assert first.change.overrides({"phase1": 1024}) == ["--config.phases.phase1.batch_size=512"]
    trying = [line for line in tried if line.startswith("trying")]
    assert trying[:2] == ["trying batches of 1/2", "trying micro_batches=2"]


@pytest.mark.heavy
def test_phases_that_are_alike_are_compiled_once(machine, plan, monkeypatch):
    """Neither a name, nor a length, nor a schedule makes another step; rows and parts of a batch do."""
    sizes = {"num_steps": 500, "batch_size": tiny.ROWS, "max_length": tiny.LENGTH}
    own = {"num_steps": 900, "schedule": {"name": "linear", "peak_learning_rate": 1e-3, "warmup_steps": 10}}
    changes = [{}, own, {"micro_batches": 1}, {"micro_batches": 2}, {"batch_size": 32}, {"masking": {"rate": 0.3}}]
    phases = {f"phase{number}": sizes | change for number, change in enumerate(changes, 1)}
    compiled, of = [], plan.phases[0].compiled
    monkeypatch.setattr("bert_jax.planning.plan.compile_phase", lambda *given: compiled.append(given[2].kind) or of)
    made = make_plan(tiny.recipe(phases=phases), machine)
    assert compiled == ["phase1", "phase4", "phase5", "phase6"]
    assert [phase.phase.num_steps for phase in made.phases] == [500, 900, 500, 500, 500, 500]
    assert made.phases[1].seconds == pytest.approx(9 / 5 * made.phases[0].seconds)


def test_phases_that_fit_wait_for_those_that_do_not(machine, plan, monkeypatch):
    """The second of two phases does not fit: the first is compiled once, with the change that lets the second fit.

    Nothing is compiled here: activations are in proportion to the rows that are computed at once.
    """
    sizes = {"phase1": 64, "phase2": 1024}
    phases = {name: {"num_steps": 900, "batch_size": rows, "max_length": 32} for name, rows in sizes.items()}
    recipe = tiny.recipe(phases=phases)
    once, compiled = dataclasses.replace(plan.phases[0].compiled, text=""), list[str]()

    def pretend(task, experiment, phase, devices):
        compiled.append(phase.kind)
        rows = phase.batch_size // experiment.micro_batches(phase)
        return dataclasses.replace(once, memory=dataclasses.replace(once.memory, temporaries=rows * 2**20))

    monkeypatch.setattr("bert_jax.planning.plan.compile_phase", pretend)
    small = with_memory(machine, once.memory.total + 0.4 * sizes["phase2"] * 2**20)
    refused = make_plan(recipe, small)
    assert [phase.fits for phase in refused.phases] == [True, False]
    compiled.clear()
    tried: list[str] = []
    fitting = smallest_change(recipe, small, refused, tried.append)
    assert all(changed.fits for changed in fitting)
    trying = [line for line in tried if line.startswith("trying")]
    assert compiled.count("phase2") == len(trying)
    assert compiled.count("phase1") == len(fitting) > 0
    assert len(trying) > compiled.count("phase1")


@pytest.mark.parametrize("split", [False, True])
def test_nothing_helps_a_state_that_is_too_large(machine, plan, split):
    """Only sharding makes a state smaller, so nothing else is compiled."""
    compiled = dataclasses.replace(plan.phases[0].compiled, split=split)
    phase = dataclasses.replace(plan.phases[0], compiled=compiled, fits=False, prediction=None)
    refused = dataclasses.replace(plan, phases=(phase,))
    small = with_memory(machine, refused.phases[0].compiled.memory.state / 100)
    tried: list[str] = []
    assert smallest_change(tiny.recipe(), small, refused, tried.append) == []
    assert tried == []
    assert "verdict: does not fit" in page.as_lines(refused)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.50G of 15.75G hbm.", 18.5 * 2**30),
        ("RESOURCE_EXHAUSTED: ... required for HLO temporaries (29.50G) exceeds available HBM (15.75G).", 29.5 * 2**30),
        ("RESOURCE_EXHAUSTED: something else", 1),
        ("INTERNAL: a fault", None),
    ],
)
def test_a_compiler_that_runs_out_of_memory(message, size):
    assert out_of_memory(message) == (None if size is None else int(size))
    if "temporaries" in message:
        assert out_of_memory(message, 100) == int(size) + 100


@pytest.mark.heavy
@pytest.mark.parametrize(("load", "said"), [(99.0, 1), (0.0, 0)])
def test_a_busy_machine_is_named_and_the_best_of_several_measurements_counts(load, said, capsys, monkeypatch):
    rates = iter(range(1, 100))
    monkeypatch.setattr(topologies.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(topologies.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(topologies.peak_rates, "peak_flops", lambda device, dtype: next(rates))
    monkeypatch.setattr(topologies.peak_rates, "memory_bandwidth", lambda device: next(rates))
    monkeypatch.setattr(topologies.peak_rates, "elementwise_rates", lambda device: (next(rates), 50 - next(rates)))
    chip = topologies.chip(topologies.parse("cpu:8"))
    assert (chip.matrix_flops, chip.memory_bandwidth) == ({"bf16": 3.0, "f32": 6.0}, 9 / 8)
    assert (chip.vector_ops, chip.transcendentals) == (14 / 8, 39 / 8)
    assert capsys.readouterr().err.count("warning: this machine is busy (load 99.0 on 2 cores): its peaks") == said


def test_added_tokens_are_pieces_of_the_vocabulary():
    assert tiny.recipe(vocab={"added": ("<e1>", "</e1>")}).shape().vocab_size == tiny.VOCABULARY + 2


def test_command(capsys, tmp_path, monkeypatch, plan):
    found = {"phase1": LargestMicroBatch(9, 8, 1)}  # as test_largest_micro_batch.py finds them
    monkeypatch.setattr("bert_jax.runs.recipe_plan.largest_micro_batches", lambda *_: found)
    recipe = tmp_path / "tiny.json"
    recipe.write_text(json.dumps(tiny.config()))
    command = ["plan", f"--config={recipe}", "--topology=cpu:8", "--price_per_chip_hour=1"]
    compiled = []
    once = plan.phases[0].compiled
    monkeypatch.setattr("bert_jax.planning.plan.compile_phase", lambda *given: compiled.append(given[2].kind) or once)
    assert run(command) == 0
    hint = next(line for line in capsys.readouterr().out.splitlines() if "largest micro-batch" in line)
    assert compiled == ["phase1"]
    assert run([*command, "--json"]) == 0
    assert "largest_micro_batches" not in json.loads(capsys.readouterr().out)
    [asked] = re.findall(r"--\w+", hint)
    assert run([*command, asked]) == 0
    assert "phase1: the largest micro-batch that fits has 9 rows" in capsys.readouterr().out
    assert run([*command, asked, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["fits"]
    assert record["next"].startswith("next, on cpu:8: JAX_NUM_CPU_DEVICES=8 ")
    assert record["next"].endswith(f"pretrain --config={recipe} --workdir=runs/tiny")
    assert math.isfinite(record["predicted_price"])
    assert record["largest_micro_batches"] == {"phase1": {"rows": 9, "own": 8, "micro_batches": 1}}


def test_the_plan_is_printed_before_a_smaller_one_is_sought(plan):
    refused = dataclasses.replace(plan, phases=(dataclasses.replace(plan.phases[0], fits=False),))
    sought = []
    result = PlanResult(refused, PlanRequest("cpu:8"), {}, lambda: sought.append(1) or [], dict)
    lines = result.as_lines()
    while next(lines) != "verdict: does not fit":
        assert not sought
    assert "no smaller batch, more micro_batches, remat or fsdp makes it fit; take a larger topology" in lines
    assert sought == [1]
    assert result.next_line().startswith("next: a larger machine: ")
    assert sought == [1]


@pytest.mark.heavy
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu (pip install 'jax[tpu]')")
@pytest.mark.parametrize("topology", ["v4:2x2x1", "v5e:4x4", "v5p:2x2x1", "v6e:2x2"])
def test_tpu(topology):
    recipe = tiny.recipe(model={"dtype": "bfloat16"})
    made = make_plan(recipe, Machine.of(topologies.parse(topology)))
    assert made.fits
    least = 4 * (parameters() - tiny.VOCABULARY * tiny.SIZES["hidden_size"])  # the word embeddings may be split
    assert least < made.phases[0].compiled.memory.parameters <= 4 * parameters()
    # The gradient of the word embeddings that are looked up is a product with one-hot rows.
    looked_up = 2 * tiny.ROWS * tiny.LENGTH * tiny.VOCABULARY * tiny.SIZES["hidden_size"]
    assert made.phases[0].prediction.products * made.topology.num_devices == pytest.approx(
        made.phases[0].model_flops + looked_up, rel=0.3
    )
    assert re.search("all-reduce +data", "\n".join(page.as_lines(made)))


@pytest.mark.heavy
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu (pip install 'jax[tpu]')")
@pytest.mark.parametrize("shape", [(8, 2, 1), (2, 1, 8), (2, 2, 4)])
def test_a_mesh_may_split_an_axis_of_the_torus(shape):
    devices = Machine.of(topologies.parse("v5e:4x4")).devices
    mesh = meshes.make_mesh(MeshConfig(*shape), devices)
    assert mesh.devices.shape == shape
    assert set(mesh.devices.flat) == set(devices)


@pytest.mark.heavy
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu (pip install 'jax[tpu]')")
def test_tpu_refuses_what_does_not_fit():
    recipe = tiny.recipe(phases={"phase1": {"num_steps": 1000, "batch_size": 2**20, "max_length": 32}})
    machine = Machine.of(topologies.parse("v5e:2x2"))
    task, experiment = recipe.variant(Change(), machine.devices)
    compiled = compile_phase(task, experiment, experiment.phases.phases[0], machine.devices)
    assert compiled.refused_bytes > machine.chip.memory_bytes
