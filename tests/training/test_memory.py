"""What a step hands on to the next: a text read in segments, with memory, has the losses of the text read at once."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.checkpoints import restoring
from bert_jax.checkpoints.saving import CheckpointConfig, Checkpoints
from bert_jax.corpora.build import BuildConfig, build
from bert_jax.corpora.source import documents
from bert_jax.corpora.store import Corpus
from bert_jax.corpora.text_files import Source
from bert_jax.errors import UserError
from bert_jax.models.encoders import transformer_xl
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.objectives import base
from bert_jax.objectives.base import Setting
from bert_jax.objectives.ltr import Objective
from bert_jax.planning.compile import compile_phase
from bert_jax.records import Batch
from bert_jax.rows.loader import Loader, LoaderConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.rows.share import WHOLE, Share
from bert_jax.runs.checks import check_lanes, check_memory
from bert_jax.task import Variables
from bert_jax.text.tokenizer import Tokenizer, wordpiece
from bert_jax.training import mesh as meshes
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.experiment import Experiment, TrainingConfig
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import adamw
from bert_jax.training.schedules import linear
from bert_jax.training.state import TrainState
from tests import toy
from tests.toy import learn_wordpiece

LANES, LENGTH, STEPS = 16, 8, 7
ALL = LENGTH * STEPS  # memory that holds all that a lane has read
LAYOUTS = {  # devices, mesh, micro-batches
    "one device": (1, MeshConfig(), 1),
    "4 micro-batches": (1, MeshConfig(), 4),
    "replicated": (8, MeshConfig(weight_update="replicated"), 2),
    "sharded update": (8, MeshConfig(data=4, fsdp=2), 1),
}
NAMES = ["4 micro-batches", "sharded update", pytest.param("replicated", marks=pytest.mark.heavy)]
Text = tuple[Corpus, Tokenizer]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    """Its line has 5 steps of an epoch, so seven steps cross an epoch's end."""
    folder = tmp_path_factory.mktemp("corpus")
    paths = (str(toy.write_text(folder / "text.txt", documents=14)),)
    source = Source(paths=paths, format="sentences", document_boundary="blank_line")
    tokenizer = wordpiece(learn_wordpiece((s for one in documents(source) for s in one.sentences), 80, min_frequency=1))
    build(source, tokenizer, folder / "store", BuildConfig(0.3))
    return Corpus(folder / "store"), tokenizer


def task_of(text: Text, memory: int = ALL) -> Objective:
    config = transformer_xl.Config(
        text[1].size,
        128,
        2,
        2,
        128,
        memory_length=memory,
        dropout_rate=0.0,
        max_length=ALL,
        initializer_range=0.1,
        layers="scanned",
    )
    setting = Setting(config, {"phase1": LENGTH}, batch_sizes={"phase1": LANES})
    return Objective(base.Config(arrangement="streams"), setting).with_text(*text)


def experiment_of(mesh: MeshConfig | None = None, micro_batches: int = 1) -> Experiment:
    return Experiment(
        seed=0,
        phases=Phases((Phase(STEPS, LANES, LENGTH, "phase1"),)),
        optimizer=adamw.Optimizer(),
        schedule=linear.Schedule(1e-9, 1),
        mesh=mesh or MeshConfig(),
        training=TrainingConfig(micro_batches=micro_batches, eval_rows=10_000, loggers=()),
        checkpoints=CheckpointConfig(),
        loader=LoaderConfig(),
    )


def batches_of(task: Objective, start: int = 0, share: Share = WHOLE) -> list[dict[str, np.ndarray]]:
    phases = experiment_of().phases
    return [batch for _, batch in Loader(task.source, phases, start, task.batch_specs, LoaderConfig(), share)]


class Trainer:
    """Trains in one layout; the step is compiled once."""

    def __init__(self, task: Objective, layout: str):
        devices, mesh_config, micro_batches = LAYOUTS[layout]
        of = experiment_of(mesh_config, micro_batches)
        self.mesh = of.make_mesh(jax.devices()[:devices])
        self.initial = of.initial_state(task, self.mesh)
        self.first, self.frozen = self.initial.make(0)
        assert meshes.is_split(self.first.params) == (layout == "sharded update")
        self.step = of.jitted_step(task, "phase1", of.phases.phases[0], self.first)

    def __call__(self, batches: list[dict[str, np.ndarray]], state: TrainState | None = None) -> list[TrainState]:
        """The states after each step, with the metrics of that step alone."""
        state, states = state or self.first, []
        with meshes.activations(self.mesh):
            for batch in batches:
                before = state.metrics["lm_loss"]
                state = self.step(jax.tree.map(jnp.copy, state), self.frozen, meshes.to_devices(batch, self.mesh))
                states.append(jax.device_get(state))
                added = jax.tree.map(jnp.subtract, state.metrics["lm_loss"], before)
                states[-1].metrics = {"lm_loss": jax.device_get(added)}
        return states


@functools.cache
def trainer(text: Text, layout: str = "one device", memory: int = ALL) -> Trainer:
    return Trainer(task_of(text, memory), layout)


def read_at_once(task: Objective, params: Any, batches: list[dict[str, np.ndarray]]) -> np.ndarray:
    """The loss of each token [steps, lanes, length], if what a lane has read is one row of a model without memory."""
    runs: list[tuple[int, int, int]] = []  # lane, first step, the step after the last
    for lane in range(LANES):
        begins = [t for t, batch in enumerate(batches) if t == 0 or batch["lane_starts"][lane]]
        runs += [(lane, a, b) for a, b in zip(begins, [*begins[1:], len(batches)], strict=True)]
    ids = np.zeros((len(runs), LENGTH * len(batches)), np.int32)
    for row, (lane, a, b) in enumerate(runs):
        ids[row, : LENGTH * (b - a)] = np.concatenate([batch["input_ids"][lane] for batch in batches[a:b]])
    places = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    model = Model(task.setting.model, (LM_HEAD,))
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids), "masked_positions": places}
    logits = np.asarray(jax.jit(lambda p: model.apply({"params": p}, batch)["mlm_logits"])(params), np.float64)
    chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = np.zeros((len(batches), LANES, LENGTH))
    for row, (lane, a, b) in enumerate(runs):
        for t in range(a, b):
            labels = np.append(batches[t]["input_ids"][lane, 1:], batches[t]["next_ids"][lane])
            here = chances[row, LENGTH * (t - a) : LENGTH * (t - a + 1)]
            losses[t, lane] = -here[np.arange(LENGTH), labels]
    return losses


@functools.cache
def alone(text: Text) -> tuple[Objective, list[dict[str, np.ndarray]], list[TrainState]]:
    task = task_of(text)
    batches = batches_of(task)
    return task, batches, trainer(text)(batches)


def test_segments_with_memory_have_the_losses_of_the_whole_text(text: Text) -> None:
    """Over the end of an epoch too. Memory that is lost, or never zeroed, gives other losses."""
    task, batches, states = alone(text)
    per_epoch = task.source("train", "phase1", 0).for_batches(LANES).rows_per_epoch // LANES
    assert 1 < per_epoch < STEPS
    assert sum(batch["lane_starts"].sum() for batch in batches) == LANES + 1
    wanted = read_at_once(task, states[0].params, batches)
    found = [float(state.metrics["lm_loss"].mean()) for state in states]
    np.testing.assert_allclose(found, wanted.mean(axis=(1, 2)), rtol=1e-5)
    lost = trainer(text)([{**batch, "lane_starts": np.ones_like(batch["lane_starts"])} for batch in batches])
    losses = [float(state.metrics["lm_loss"].mean()) for state in lost]
    assert np.abs(np.subtract(losses[1:], found[1:])).min() > 1e-4
    never = [{**batch, "lane_starts": np.zeros_like(batch["lane_starts"])} for batch in batches]
    other = trainer(text)(never)
    assert abs(float(other[per_epoch].metrics["lm_loss"].mean()) - found[per_epoch]) > 1e-5


def compare(found: list[TrainState], wanted: list[TrainState]) -> None:
    """Row by row: each lane has its own memory."""
    for one, other in zip(found, wanted, strict=True):
        assert float(one.metrics["lm_loss"].mean()) == pytest.approx(float(other.metrics["lm_loss"].mean()), 1e-5)
        np.testing.assert_array_equal(one.memory["past_mask"], other.memory["past_mask"])
        np.testing.assert_allclose(one.memory["past_states"], other.memory["past_states"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", NAMES)
def test_every_layout_hands_on_the_same_memory(layout: str, text: Text) -> None:
    _, batches, wanted = alone(text)
    compare(trainer(text, layout)(batches), wanted)
    assert np.abs(np.diff(wanted[-1].memory["past_states"], axis=0)).max(axis=(1, 2, 3)).min() > 0.1


def test_a_run_goes_on_with_its_memory_on_other_devices(text: Text, tmp_path: Path) -> None:
    _, batches, wanted = alone(text)
    whole, other = trainer(text), trainer(text, "sharded update")
    for name, step in (("one", whole), ("eight", other)):
        state = step.first
        with meshes.activations(step.mesh):
            for batch in batches[:3]:
                state = step.step(jax.tree.map(jnp.copy, state), step.frozen, meshes.to_devices(batch, step.mesh))
        checkpoints = Checkpoints(str(tmp_path / name), CheckpointConfig())
        checkpoints.save(state, {})
        checkpoints.close()
    for name, step in (("one", other), ("eight", whole)):
        restored = restoring.restore(str(tmp_path / name), step.initial.shapes[0], print)
        compare(step(batches[3:], restored), wanted[3:])


def test_no_gradient_reaches_an_earlier_step(text: Text) -> None:
    """The gradient of a loss to the memory that it reads is zero, though the loss depends on the memory."""
    task, batches, states = alone(text)
    memory = states[0].memory

    def loss(states: jax.Array) -> jax.Array:
        batch: Batch = {**batches[1], **memory, "past_states": states}
        return task.loss(Variables(params, {}), batch, None).terms["lm"].value

    params = states[0].params
    value, gradient = jax.jit(jax.value_and_grad(loss))(memory["past_states"])
    assert not np.any(gradient)
    assert abs(float(value) - float(jax.jit(loss)(0 * memory["past_states"]))) > 0.1


def test_an_evaluation_carries_its_own_memory(text: Text) -> None:
    """It begins with empty memory, reads the lanes of the held-out text in order, and does so every time."""
    task, _, states = alone(text)
    mesh, phase = meshes.make_mesh(MeshConfig()), experiment_of().phases.phases[0]
    source = task.source("eval", "phase1", 0, "").for_batches(LANES)
    steps = source.rows_per_epoch // LANES
    assert steps >= 2
    rows = [np.arange(LANES) + LANES * t for t in range(steps)]
    batches = [source.rows(np.zeros_like(indices), indices) for indices in rows]
    wanted = read_at_once(task, states[0].params, batches)
    evaluation = Evaluation(task, mesh, phase, 10_000)
    found = [evaluation.run(states[0].params, {})["lm_loss"] for _ in range(2)]
    assert found[0] == found[1] == pytest.approx(wanted.mean(), rel=1e-5)
    assert "lm_loss" in evaluation.metric_names()


def test_lanes_go_on_from_step_to_step_for_any_number_of_hosts(text: Text) -> None:
    task, batches, _ = alone(text)
    for before, after in zip(batches, batches[1:], strict=False):
        goes_on = after["lane_starts"] == 0
        assert goes_on.sum() >= LANES - 1
        np.testing.assert_array_equal(before["next_ids"][goes_on], after["input_ids"][goes_on, 0])
    for count in (2, 4):
        shares = [batches_of(task, 3, Share((part,), count)) for part in range(count)]
        for wanted, *parts in zip(batches[3:], *shares, strict=True):
            for name, value in wanted.items():
                np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), value)


def test_a_skipped_step_leaves_every_lane_empty(text: Text) -> None:
    _, batches, _ = alone(text)
    spoilt = {**batches[1], "row_weights": np.full(LANES, np.nan, np.float32)}
    states = trainer(text)([batches[0], spoilt, batches[2]])
    assert int(states[-1].skipped.count) == 1
    assert not any(np.any(x) for x in states[1].memory.values())
    np.testing.assert_array_equal(states[2].memory["past_mask"].sum(axis=1), LENGTH)


def test_runs_that_cannot_hand_memory_on_are_refused(text: Text) -> None:
    task, of = task_of(text), experiment_of()
    check_memory(task, of, has_parts=False)
    with pytest.raises(UserError, match=r"config.corpus.parts is a mixture, .*memory_length to 0, or give one corpus"):
        check_memory(task, of, has_parts=True)
    rolls = dataclasses.replace(of, training=dataclasses.replace(of.training, on_spike="roll_back"))
    with pytest.raises(UserError, match="on_spike is 'roll_back', which skips batches, .* set it to 'warn'"):
        check_memory(task, rolls, has_parts=False)
    check_memory(task_of(text, 0), rolls, has_parts=True)
    steps = task.source("eval", "phase1", 0).for_batches(LANES).rows_per_epoch // LANES
    check_lanes(task_of(text, steps * LENGTH), of)
    with pytest.raises(UserError, match=f"memory_length is {steps * LENGTH + 1}, and each of {LANES} rows of a batch"):
        check_lanes(task_of(text, steps * LENGTH + 1), of)
    many = Phases((Phase(STEPS, 1000, LENGTH, "phase1"),))
    with pytest.raises(UserError, match="phase1.batch_size is 1000, and each row of a batch reads its own part"):
        check_lanes(task, dataclasses.replace(of, phases=many))


@pytest.mark.heavy
def test_a_plan_has_the_memory_of_the_rows_that_it_tries(text: Text) -> None:
    of = experiment_of()
    larger = dataclasses.replace(of.phases.phases[0], batch_size=2 * LANES)
    found = compile_phase(task_of(text), of, larger, jax.devices()[:1]).memory
    assert found.carried == 2 * LANES * ALL * (2 * 128 * 4 + 4)
    assert found.padding == 0
