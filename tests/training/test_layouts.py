"""The loss and its gradient are those of the global batch, whatever the mesh and the accumulation."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.corpora.build import BuildConfig, build
from bert_jax.corpora.source import documents
from bert_jax.corpora.store import Corpus
from bert_jax.corpora.text_files import Source
from bert_jax.errors import UserError
from bert_jax.models.encoders import bert
from bert_jax.objectives.base import Setting
from bert_jax.objectives.mlm_nsp import Config, Objective
from bert_jax.rows.phases import Phase
from bert_jax.text.tokenizer import Tokenizer, wordpiece
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import adamw
from bert_jax.training.schedules import linear
from bert_jax.training.state import InitialState
from bert_jax.training.step import jit_train_step, make_gradients, make_train_step
from tests import toy
from tests.toy import learn_wordpiece
from tests.training.line import WIDTH, Line, Points, train

ROWS = 16
LAYOUTS = {  # devices, mesh, micro-batches
    "accumulated": (1, MeshConfig(), 4),
    "data": (8, MeshConfig(), 2),
    "fsdp": (8, MeshConfig(data=1, fsdp=8), 2),
    "tensor": (2, MeshConfig(data=1, tensor=2), 1),
    "sharded update": (8, MeshConfig(), 2),
    "sharded over fsdp": (8, MeshConfig(data=2, fsdp=4), 1),
}
TOGETHER = ("fsdp", "tensor")  # in test_all_axes_in_float64, so they are heavy where they are alone
NAMES = [pytest.param(name, marks=[pytest.mark.heavy] * (name in TOGETHER)) for name in LAYOUTS]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, Tokenizer]:
    folder = tmp_path_factory.mktemp("corpus")
    source = Source(
        paths=(str(toy.write_text(folder / "text.txt")),), format="sentences", document_boundary="blank_line"
    )
    sentences = (sentence for document in documents(source) for sentence in document.sentences)
    tokenizer = wordpiece(learn_wordpiece(sentences, 120, min_frequency=1))
    build(source, tokenizer, folder / "store", BuildConfig(0.2))
    return Corpus(folder / "store"), tokenizer


def one_update(
    text: tuple[Corpus, Tokenizer],
    devices: int,
    mesh_config: MeshConfig,
    micro_batches: int,
    drawn: Any = None,
    **model: Any,
) -> tuple[dict[str, float], Any, Any]:
    """Metrics, first moments (a tenth of the gradient, unclipped) after a step on a batch of uneven masks, first state.

    ``drawn``: the first state from elsewhere; if None, the devices draw one.
    """
    corpus, tokenizer = text
    config = bert.Config(
        tokenizer.size, 32, 1, 2, 64, max_length=32, **{"dropout_rate": 0.1, "attention_dropout_rate": 0.1, **model}
    )
    task = Objective(Config(), Setting(config, {"phase1": 32})).with_text(corpus, tokenizer)
    mesh = meshes.make_mesh(mesh_config, jax.devices()[:devices])
    tx = adamw.Optimizer(clip_norm=None).make()
    schedule = linear.Schedule(1e-3, 0).make(10)
    initial = InitialState(task, tx, mesh, mesh_config.weight_update)
    if drawn is None:
        state, frozen = initial.make(0)
    else:
        state, frozen = jax.tree.map(lambda array, like: jax.device_put(array, like.sharding), drawn, initial.shapes)
    first = jax.device_get((state, frozen))
    indices = np.arange(ROWS)
    batch = task.source("train", "phase1", 0).rows(np.zeros_like(indices), indices)
    batch["masked_weights"][::3, 1:] = 0  # uneven over rows, devices and micro-batches
    batch["next_sentence_labels"][: ROWS // 2] = 1  # of even labels the gradient of a bias would be mere rounding
    with meshes.activations(mesh):
        gradients = make_gradients(task, micro_batches, state.params)
        step = jit_train_step(make_train_step(task, tx, schedule, 0, gradients), state)
        state = step(state, frozen, meshes.to_devices(batch, mesh))
    metrics = {name: float(s.value / s.count) for name, s in state.metrics.items() if name != "tokens"}
    return metrics, jax.device_get(state.opt_state[1].mu), first


@pytest.fixture(scope="module")
def alone(text: tuple[Corpus, Tokenizer]) -> tuple[dict[str, float], Any, Any]:
    """What one device gives."""
    return one_update(text, 1, MeshConfig(), 1)


def compare(
    found: tuple[Any, ...], expected: tuple[Any, ...], loss_tolerance: float, gradient_tolerance: float
) -> None:
    for name, value in expected[0].items():
        assert found[0][name] == pytest.approx(value, rel=loss_tolerance), name
    for path, wanted in jax.tree_util.tree_leaves_with_path(expected[1]):
        got = found[1]
        for key in path:
            got = got[key.key]
        # The gradient of a key's bias is zero but for rounding: softmax does not see it.
        largest = 0.1 if "'key'" in str(path) and "'bias'" in str(path) else np.abs(wanted).max()
        assert np.abs(got - wanted).max() <= gradient_tolerance * largest, jax.tree_util.keystr(path)


@pytest.mark.parametrize("name", NAMES)
def test_every_layout_gives_the_same_step(
    name: str, text: tuple[Corpus, Tokenizer], alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout is on: its bits follow the rows. One layout here, and all axes below, also draw the first parameters."""
    devices, mesh_config, micro_batches = LAYOUTS[name]
    monkeypatch.setattr(meshes, "SPLIT", 16 if name.startswith("sharded") else 1000)
    drawn = None if name == "sharded update" else alone[2]
    found = one_update(text, devices, mesh_config, micro_batches, drawn)
    compare(found, alone, loss_tolerance=1e-6, gradient_tolerance=1e-5)


def test_all_axes_in_float64(text: tuple[Corpus, Tokenizer]) -> None:
    with jax.enable_x64(True):
        expected = one_update(text, 1, MeshConfig(), 1, dtype="float64")
        found = one_update(text, 8, MeshConfig(data=2, fsdp=2, tensor=2), 2, dtype="float64")
    compare(found, expected, loss_tolerance=1e-12, gradient_tolerance=1e-12)


def test_dropout_matters(text: tuple[Corpus, Tokenizer], alone: Any) -> None:
    with_dropout = alone[0]["loss"]
    without = one_update(text, 1, MeshConfig(), 1, dropout_rate=0.0, attention_dropout_rate=0.0)[0]["loss"]
    assert abs(with_dropout - without) > 1e-4


def test_meshes_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="does not divide the 8 devices"):
        meshes.make_mesh(MeshConfig(data=3))
    with pytest.raises(UserError, match="data and config.mesh.fsdp are -1; only one"):
        meshes.make_mesh(MeshConfig(data=-1, fsdp=-1))
    with pytest.raises(UserError, match="the nearest that does: 8 or 16"):
        meshes.check_batch(meshes.make_mesh(MeshConfig()), 12, 1, "batch_size")


def test_an_indivisible_vocabulary_is_replicated(text: tuple[Corpus, Tokenizer]) -> None:
    corpus, tokenizer = text
    odd = dataclasses.replace(
        bert.Config(tokenizer.size, 32, 1, 2, 64, max_length=32), vocab_size=tokenizer.size + tokenizer.size % 2 + 1
    )
    task = Objective(Config(), Setting(odd, {"phase1": 32})).with_text(corpus, tokenizer)
    mesh = meshes.make_mesh(MeshConfig(data=-1, tensor=2))
    state, _ = InitialState(task, adamw.Optimizer().make(), mesh).shapes
    table = state.params["encoder"]["embeddings"]["word_embeddings"].sharding.spec
    assert table[0] is None
    assert state.params["encoder"]["layer_0"]["mlp"]["input"]["kernel"].sharding.spec == jax.P("fsdp", "tensor")


def test_a_phase_has_micro_batches_of_its_own(tmp_path: Path) -> None:
    """Only the second phase is computed in parts. The losses are those of a run without."""
    traced: list[int] = []

    class Counted(Line):
        def __init__(self, points: Points) -> None:
            super().__init__(points, ("phase1", "phase2"))

        def loss(self, variables: Any, batch: Any, rng: Any) -> Any:
            traced.append(len(batch["labels"]))
            return super().loss(variables, batch, rng)

    def losses(name: str, micro_batches: int | None) -> list[float]:
        phases = (Phase(4, 16, WIDTH, "phase1"), Phase(6, 32, WIDTH, "phase2", micro_batches=micro_batches))
        train(tmp_path / name, task=Counted, phases=phases, eval_phase="phase1")
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [record["loss"] for record in map(json.loads, lines) if record["split"] == "train"]

    whole, wholes = losses("whole", None), set(traced)
    traced.clear()
    np.testing.assert_allclose(losses("parts", 4), whole, rtol=1e-6)
    assert (len(whole), wholes) == (5, {1, 16, 32})  # a shape alone, and the rows of both phases
    assert set(traced) == {1, 8, 16, 32}  # 32 for the counts alone
    with pytest.raises(UserError, match=r"phases.phase2.batch_size = 32 does not divide by .* micro_batches 3 = 24;"):
        losses("odd", 3)
    with pytest.raises(UserError, match=r"config.phases.phase2.micro_batches is 0; at least 1 is needed"):
        losses("none", 0)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_the_model_is_traced_once_for_a_step_and_once_for_the_counts_of_its_parts(micro_batches: int) -> None:
    traces: list[int] = []

    class Counted(Line):
        def loss(self, variables: Any, batch: Any, rng: Any) -> Any:
            traces.append(len(batch["labels"]))
            return super().loss(variables, batch, rng)

    task, tx = Counted(), adamw.Optimizer().make()
    state, frozen = InitialState(task, tx, meshes.make_mesh(MeshConfig())).shapes
    traces.clear()
    schedule = linear.Schedule(1e-3, 0).make(10)
    step = make_train_step(task, tx, schedule, 0, make_gradients(task, micro_batches))
    batch = {"inputs": jax.ShapeDtypeStruct((8, 8), "float32"), "labels": jax.ShapeDtypeStruct((8,), "float32")}
    jax.eval_shape(step, state, frozen, batch)
    assert traces == ([8] if micro_batches == 1 else [8, 8 // micro_batches])
