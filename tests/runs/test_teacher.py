"""``config.teacher``: what a student learns from a teacher in pretraining."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file

import bert_jax
from bert_jax import task as contract
from bert_jax.checkpoints.restoring import read_params
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.loading import load
from bert_jax.losses import distillation
from bert_jax.losses.teacher import content
from bert_jax.models.model import config_of
from bert_jax.models.transformer import stack_layers
from bert_jax.recipes import recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs import recipe_plan
from bert_jax.runs.models_read import frozen_contents
from bert_jax.runs.pretraining import Pretraining
from bert_jax.training import mesh as meshes
from bert_jax.training.loop import Run
from bert_jax.training.mesh import MeshConfig
from bert_jax.workdir.run_record import read_run
from tests import toy
from tests.interchange.numpy_models import numpy_outputs
from tests.objectives.test_terms import LAYOUTS, one_update
from tests.runs.bad_teachers import ANOTHER, BAD, OF_A_RUN
from tests.runs.commands import first_state, records
from tests.training.test_layouts import compare

STEPS, EVAL_ROWS = 4, 20
LESSONS = ("soft_mlm", "hidden", "attention")
NO_DROPOUT = ("--config.model.dropout_rate=0.0", "--config.model.attention_dropout_rate=0.0")
EVERYTHING = (
    "--config.teacher.soft.temperature=2",
    "--config.teacher.soft.weight=5",
    "--config.teacher.labels=2",
    "--config.teacher.hidden.weight=1",
    "--config.teacher.attention.weight=1",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained teacher of 4 layers, twice as wide as its student of 2, and the student's recipe."""
    folder = tmp_path_factory.mktemp("teacher")
    recipe = toy.recipe(
        toy.write_text(folder / "text.txt"),
        objective={"name": "mlm"},
        model={"num_layers": 2},
        phases={"phase1": {"num_steps": STEPS, "batch_size": 16, "max_length": 32}},
        schedule={"warmup_steps": 1},
        training={"log_every_steps": 1, "eval_every_steps": STEPS, "eval_rows": EVAL_ROWS, "loggers": ()},
        checkpoints={"every_steps": 2},
        examples=(),
    )
    path = toy.write_recipe(folder / "first.json", recipe)
    large = ["--config.model.hidden_size=64", "--config.model.num_layers=4", "--config.learning_rate=0.02"]
    large += ["--config.model.layers=scanned"]  # compiled once, not four times
    with toy.one_device():
        assert run(["pretrain", f"--config={path}", f"--workdir={folder / 'teacher'}", *large]) == 0
    recipe["vocab"]["path"] = str(shutil.copy(folder / "teacher" / "vocab.txt", folder))
    toy.write_recipe(folder / "alone.json", recipe)
    toy.write_recipe(folder / "student.json", recipe | {"teacher": {"init": str(folder / "teacher")}})
    return folder


@pytest.fixture(scope="module")
def student(place: Path) -> Path:
    """The workdir of the finished student, which has learned all there is."""
    with toy.one_device():
        assert pretrain(place, "student", *EVERYTHING) == 0
    return place / "student"


def pretrain(place: Path, workdir: str, *flags: str, recipe: str = "student.json") -> int:
    return run(["pretrain", f"--config={place / recipe}", f"--workdir={place / workdir}", *flags])


@pytest.fixture(scope="module")
def read() -> Any:
    """Reads each model once."""
    return functools.cache(load)


def checked(place: Path, *flags: str, read: Any = load) -> Any:
    config = recipes.load(str(place / "student.json"), flags).to_dict()
    return Pretraining(PretrainingSettings.of(config), devices=jax.devices()[:1], read=read)


def with_text(place: Path, workdir: Path, *flags: str) -> Any:
    recipe = checked(place, *flags)
    inputs = dataclasses.replace(recipe.inputs, workdir=str(workdir))
    task, _ = recipe.with_text(*inputs.open(lambda line: None))
    return task


def test_of_itself_a_student_learns_nothing(place: Path, tmp_path: Path) -> None:
    """Where teacher and student are one model, each term of the teacher is 0, and so is its gradient."""
    with jax.enable_x64(True):
        shape = {"hidden_size": 64, "num_layers": 4, "dtype": "float64", "layers": "scanned"}
        same = tuple(f"--config.model.{key}={value}" for key, value in shape.items())
        cosine = ("--config.teacher.hidden.loss=cosine", "--config.teacher.labels=0")
        task = with_text(place, tmp_path / "run", *EVERYTHING, *same, *NO_DROPOUT, *cosine)
        assert task.loss_weights == {"mlm": 0.0, "soft_mlm": 5.0, "hidden": 1.0, "attention": 1.0}
        batch = task.heldout_rows("phase1", 4)
        [(name, given)] = task.given.arrays.items()
        params = stack_layers(jax.tree.map(lambda x: np.asarray(x, np.float64), given))

        def of(params: Any) -> Any:
            terms = task.loss(contract.Variables(params, {name: given}), batch, None).terms
            return sum(terms[name].value for name in LESSONS), terms

        (_, terms), gradients = jax.jit(jax.value_and_grad(of, has_aux=True))(params)
        assert float(terms["mlm"].value) > 1.0
        assert max(abs(float(terms[name].value)) for name in LESSONS) < 1e-10
        assert max(float(abs(x).max()) for x in jax.tree.leaves(gradients)) < 1e-9


def test_the_losses_are_those_of_numpy(place: Path, student: Path) -> None:
    """numpy computes the losses of the finished student again, from the tensors of both exports."""
    batches = bert_jax.batches(str(place / "student.json"), str(student), overrides=dict(_typed(EVERYTHING)))
    rows = batches.task.heldout_rows("phase1", EVAL_ROWS)
    logits = {}
    for name in ("teacher", "student"):
        tensors = load_file(place / name / "hugging_face" / "model.safetensors")
        config = config_of(read_run(str(place / name))["facts"]["model"])
        both = {key: np.asarray(value, np.float64) for key, value in tensors.items()}
        every = numpy_outputs(both, config, rows, frozenset({"mlm_head"}), "BertForMaskedLM")["mlm_logits"]
        logits[name] = np.take_along_axis(every, rows["masked_positions"][..., None], axis=1) / 2.0  # the temperature
    log_shares = {name: x - np.log(np.exp(x).sum(-1, keepdims=True)) for name, x in logits.items()}
    divergence = (np.exp(log_shares["teacher"]) * (log_shares["teacher"] - log_shares["student"])).sum(-1)
    weights = rows["masked_weights"]
    found = records(student, "eval")
    np.testing.assert_allclose(found[-1]["soft_mlm_loss"], 4 * (divergence * weights).sum() / weights.sum(), rtol=1e-4)
    variables = contract.Variables(read_params(str(student))[0], batches.task.given.arrays)
    hidden = jax.jit(lambda batch: batches.task.loss(variables, batch, None).terms["hidden"])(rows)
    # the evaluation has filled up its last batch with copies
    np.testing.assert_allclose(found[-1]["hidden_loss"], float(hidden.value / hidden.count), rtol=1e-4)
    assert found[0]["soft_mlm_loss"] > found[-1]["soft_mlm_loss"] > 1e-3
    assert found[0]["hidden_loss"] > found[-1]["hidden_loss"] > 1e-3


def _typed(flags: tuple[str, ...]) -> list[tuple[str, float]]:
    matches = [re.fullmatch(r"--config\.(.*)=(.*)", flag) for flag in flags]
    return [(match[1], float(match[2])) for match in matches if match]


def test_layers_are_compared(place: Path, student: Path) -> None:
    """Hidden states through one projection, and scores: by ``hidden_states`` of both models, and numpy."""
    teacher, own = bert_jax.load(str(place / "teacher")), bert_jax.load(str(student))
    assert distillation.PROJECTION not in own.params, "a loaded model has no part that only the teacher needed"
    params, text = read_params(str(student))[0], "the cat sees the river."
    dense = params[distillation.PROJECTION]["dense"]
    [of_teacher], [of_student] = teacher.hidden_states([text]), own.hidden_states([text])
    states = of_student @ dense["kernel"] + dense["bias"]
    expected = sum(((states[m] - of_teacher[2 * m]) ** 2).mean() for m in range(3))

    task, ids = checked(place, *EVERYTHING).task, own.tokenizer.encode(text).input_ids
    spec = next(iter(task.batch_specs.values()))
    row = {name: np.zeros((1, *one.shape), one.dtype) for name, one in spec.items()}
    row["input_ids"][0, : len(ids)], row["attention_mask"][0, : len(ids)] = ids, 1
    row["row_weights"][:] = 1
    variables = contract.Variables(params, task.given.arrays)
    found = jax.jit(lambda batch: task.loss(variables, batch, None).terms)(row)
    np.testing.assert_allclose(float(found["hidden"].value / found["hidden"].count), expected, rtol=1e-4)
    expected = sum(
        ((scores(own.params, of_student, m) - scores(teacher.params, of_teacher, 2 * m)) ** 2).mean() for m in (1, 2)
    )
    np.testing.assert_allclose(float(found["attention"].value / found["attention"].count), expected, rtol=1e-4)

    scanned = checked(place, *EVERYTHING, "--config.model.layers=scanned", "--config.model.remat=full").task
    variables = contract.Variables(stack_layers(params), scanned.given.arrays)
    again = jax.jit(lambda batch: scanned.loss(variables, batch, None).terms)(row)
    for name in LESSONS:
        np.testing.assert_allclose(again[name].value, found[name].value, rtol=1e-5)


def scores(params: Any, hidden: np.ndarray, layer: int) -> np.ndarray:
    """Return the attention scores of a layer, counted from 1, before the softmax: [H, T, T]."""
    own = params["encoder"][f"layer_{layer - 1}"]["attention"]
    query, key = (
        np.einsum("td,dhe->the", hidden[layer - 1], own[name]["kernel"]) + own[name]["bias"]
        for name in ("query", "key")
    )
    return np.asarray(np.einsum("qhe,khe->hqk", query, key) / np.sqrt(query.shape[-1]))


def test_a_student_starts_from_layers_of_its_teacher(
    place: Path, tmp_path: Path, one_device: None, reached: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--config.teacher.start=(1, 4)", "--config.model.hidden_size=64", "--config.model.encoder=distilbert"]
    assert pretrain(place, str(tmp_path / "run"), *flags) == 130
    found, teacher = first_state(reached[0])[1].params, bert_jax.load(str(place / "teacher")).params
    assert "layers (1, 4)" in capsys.readouterr().err
    encoder = {**teacher["encoder"], "layer_1": teacher["encoder"]["layer_3"]}
    assert found["encoder"].keys() == {"embeddings", "layer_0", "layer_1"}
    assert "token_type_embeddings" not in found["encoder"]["embeddings"]
    for name, tree in found["encoder"].items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            like = dict(jax.tree_util.tree_leaves_with_path(encoder[name]))[path]
            np.testing.assert_array_equal(leaf, like)
    jax.tree.map(np.testing.assert_array_equal, found["mlm_head"], teacher["mlm_head"])


@pytest.mark.heavy
def test_every_layout_gives_the_same_step(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jax.enable_x64(True):
        task = with_text(place, tmp_path / "run", *EVERYTHING, "--config.model.dtype=float64")
        monkeypatch.setattr(meshes, "SPLIT", 16)
        expected = one_update(task, "phase1", 1, MeshConfig(), 1)
        assert min(expected[0][name] for name in map("{}_loss".format, LESSONS)) > 1e-3
        fsdp = {"fsdp": (8, MeshConfig(data=2, fsdp=2, tensor=2, weight_update="replicated"), 1)}
        for layout in (LAYOUTS | fsdp).values():
            compare(one_update(task, "phase1", *layout), expected, loss_tolerance=1e-12, gradient_tolerance=1e-10)


def test_a_run_goes_on_beside_its_teacher_and_no_other(
    place: Path,
    student: Path,
    tmp_path: Path,
    one_device: None,
    reached: list[Run],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where it lies elsewhere. No checkpoint holds it. Other parameters, or another epsilon, make it another."""
    tree = ocp.PyTreeCheckpointer().metadata(student / "checkpoints" / str(STEPS) / "state").item_metadata.tree
    assert set(tree["params"]) == {"encoder", "mlm_head", distillation.PROJECTION}
    name = read_run(str(student))["identity"]["teacher"]["init"]
    teacher = content(bert_jax.load(str(place / "teacher")))
    assert name == f"teacher@{teacher}"

    begun, moved = str(shutil.copytree(student, tmp_path / "begun")), place / "teacher" / "hugging_face"
    assert pretrain(place, begun, *EVERYTHING, f"--config.teacher.init={moved}") == 130
    assert frozen_contents(reached[0].task) == {"config.teacher": teacher}
    edited = shutil.copytree(moved, tmp_path / "edited")
    config = json.loads((edited / "config.json").read_text())
    (edited / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-5}))
    (edited / "SHA256SUMS").unlink()
    for other in (f"{place / 'teacher'}@2", edited):
        assert pretrain(place, begun, *EVERYTHING, f"--config.teacher.init={other}") == 2
        assert f"config.teacher.init: '{name}' -> 'teacher@" in capsys.readouterr().err
    assert len(reached) == 1


def test_nothing_is_cached_in_pretraining(place: Path) -> None:
    with pytest.raises(UserError, match="cached is for fine-tuning; rows of pretraining are never the same twice"):
        checked(place, "--config.teacher.cached=True")


def test_plans_and_mfu_count_the_teacher(place: Path) -> None:
    """Its forward pass, a third of what its training would cost, and its memory."""
    taught, alone = checked(place).task, checked(place, "--config.teacher=None").task
    spec, config = taught.batch_specs["phase1"], bert_jax.load(str(place / "teacher")).config
    forward = config.train_flops(32, spec["masked_positions"].shape[0], 0) / 3
    assert taught.flops_per_row["phase1"] == alone.flops_per_row["phase1"] + forward
    frozen = jax.tree.leaves(jax.eval_shape(taught.init, jax.random.key(0)).frozen)
    assert sum(x.size for x in frozen) == sum(x.size for x in jax.tree.leaves(taught.given.arrays)) > 0


@pytest.mark.parametrize("name", BAD)
def test_a_teacher_that_does_not_fit(name: str, place: Path, read: Any) -> None:
    flags, said = BAD[name]
    with pytest.raises(UserError) as caught:
        checked(place, *(flag.format(place=place) for flag in flags), read=read)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", OF_A_RUN)
def test_a_teacher_that_does_not_fit_the_run(
    name: str, place: Path, tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "other.txt").write_text((place / "teacher" / "vocab.txt").read_text() + "zebra\n")
    flags, said = OF_A_RUN[name]
    assert pretrain(place, str(tmp_path / "run"), *(flag.format(place=place) for flag in flags)) == 2
    assert said in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "run" / "corpus").exists()


@pytest.mark.parametrize("command", ["plan", "preflight"])
def test_what_needs_no_run_refuses_another_vocabulary(
    command: str,
    place: Path,
    tmp_path: Path,
    one_device: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the same line. A preflight also has a row with the teacher, so that all hosts are compared."""

    def compiled(*_: Any, **__: Any) -> None:
        raise UserError("the step is compiled")

    def said(vocab: Any, right: bool = False) -> str:
        assert (run([*asked, f"--config.vocab.path={vocab}"]) == 0) == right
        captured = capsys.readouterr()
        return captured.out + captured.err

    monkeypatch.setattr(recipe_plan, "make_plan", compiled)
    (place / "other.txt").write_text((place / "teacher" / "vocab.txt").read_text() + "zebra\n")
    own = "--topology=cpu:1" if command == "plan" else f"--workdir={tmp_path / 'run'}"
    asked = [command, f"--config={place / 'student.json'}", own]
    refused = said(place / "other.txt")
    assert f"config.teacher.init={place / 'teacher'} {ANOTHER}{place / 'teacher' / 'vocab.txt'}" in refused
    assert "has a vocabulary of its own, and reads no other; add --config.vocab.path=" in said(""), "it is learned"
    name = content(bert_jax.load(str(place / "teacher")))
    accepted = {"plan": "the step is compiled", "preflight": f"ok +frozen +config.teacher@{name}"}
    assert re.search(accepted[command], said(place / "vocab.txt", right=command == "preflight"))
