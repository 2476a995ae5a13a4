"""What an objective reads and does not train: the teacher of the page, on every layout, and a table of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file

import bert_jax
from bert_jax.checkpoints.restoring import read_params
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.models.encoders import bert
from bert_jax.models.model import config_of
from bert_jax.objectives import base
from bert_jax.planning.compile import bytes_of
from bert_jax.program import size
from bert_jax.runs.models_read import check_features
from bert_jax.runs.pretraining import Pretraining
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig
from bert_jax.workdir.run_record import read_run
from tests import toy
from tests.interchange.numpy_models import numpy_outputs
from tests.objectives.test_terms import one_update
from tests.objectives.texts import RECIPE, settings_of
from tests.training.test_layouts import compare

PAGE = Path(base.__file__).with_name("README.md").read_text(encoding="utf-8")
[TEACHER] = re.findall(
    r"^```python\n(\"\"\"Masked language modelling, and what a teacher.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)
TABLE = '''
    """Masked language modelling, and what a table says of each masked word, learned from a vector of [CLS]."""
    import dataclasses
    import jax.numpy as jnp
    import numpy as np
    from bert_jax.models.heads import Classifier
    from bert_jax.models.model import LM_HEAD, Part
    from bert_jax.objectives import base
    from bert_jax.records import Sum

    @dataclasses.dataclass(frozen=True)
    class Config(base.Config):
        table: str = dataclasses.field(kw_only=True, metadata={"file": True})

    def squared_error(outputs, batch):
        weights = batch["masked_weights"]
        errors = outputs["said"][:, :1, 0] - outputs["values"]
        return Sum(jnp.sum(errors**2 * weights), jnp.sum(weights))

    class Objective(base.PretrainingObjective):
        arrangement = "sentences"
        parts = (LM_HEAD, Part.of("table_head", Classifier, vectors="sequence", logits="said"))

        def frozen(self):
            return {"table": np.load(self.config.table)}

        def forward(self, variables, batch, rng):
            values = jnp.take(variables.frozen["table"], batch["masked_labels"], mode="clip")
            return {**super().forward(variables, batch, rng), "values": values}

        def terms(self, config):
            return {"mlm": base.MLM, "table": base.Term(squared_error)}
'''
STEPS, EVAL_ROWS = 4, 20
PACKED_HALVES = "--config.objective.packing=packed", "--config.model.dtype=bfloat16"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained teacher, twice as wide as its student, the page's file, and a recipe that names both."""
    folder = tmp_path_factory.mktemp("frozen")
    recipe = toy.recipe(
        toy.write_text(folder / "text.txt"),
        objective={"name": "mlm"},
        model={"mlp_dim": 128},
        phases={"phase1": {"num_steps": STEPS, "batch_size": 16, "max_length": 32}},
        schedule={"warmup_steps": 1},
        training={"log_every_steps": 1, "eval_every_steps": STEPS, "eval_rows": EVAL_ROWS, "loggers": ()},
        checkpoints={"every_steps": 2},
        examples=(),
    )
    path = toy.write_recipe(folder / "first.json", recipe)
    wide = ["--config.model.hidden_size=64", "--config.schedule.peak_learning_rate=0.02"]
    with toy.one_device():
        assert run(["pretrain", f"--config={path}", f"--workdir={folder / 'teacher'}", *wide]) == 0
    (folder / "teacher.py").write_text(TEACHER)
    (folder / "table.py").write_text(textwrap.dedent(TABLE))
    recipe["objective"] = {"name": "./teacher.py", "teacher": str(folder / "teacher")}
    (folder / "learns.py").write_text(RECIPE.replace("{}", repr(recipe)))
    recipe["vocab"]["path"] = str(shutil.copy(folder / "teacher" / "vocab.txt", folder))
    (folder / "own.py").write_text(RECIPE.replace("{}", repr(recipe)))
    return folder


@pytest.fixture(scope="module")
def student(place: Path) -> Path:
    """The workdir of the finished student, which eight devices have trained in two parts."""
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert pretrain(place, "student", "--config.training.micro_batches=2") == 0
    assert "divide no axis" not in err.getvalue()
    return place / "student"


def pretrain(place: Path, workdir: str, *flags: str, recipe: str = "own.py") -> int:
    return run(["pretrain", f"--config={place / recipe}", f"--workdir={place / workdir}", *flags])


@functools.cache
def checked(place: Path, *flags: str) -> Any:
    """Return the pretraining of ``own.py`` with ``flags``, without text."""
    return Pretraining(settings_of(place / "own.py", *flags), devices=jax.devices()[:1])


def records(workdir: Path, split: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == split]


@pytest.mark.parametrize(
    "mesh",
    [
        MeshConfig(data=2, fsdp=4),  # each device updates a part
        pytest.param(MeshConfig(data=2, fsdp=2, tensor=2, weight_update="replicated"), marks=pytest.mark.heavy),
    ],
    ids=["sharded", "all axes"],
)
def test_every_layout_gives_the_same_step(
    mesh: MeshConfig, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jax.enable_x64(True):
        recipe = checked(place, "--config.model.dtype=float64")
        inputs = dataclasses.replace(recipe.inputs, workdir=str(tmp_path / "run"))
        task, _ = recipe.with_text(*inputs.open(lambda line: None))
        monkeypatch.setattr(meshes, "SPLIT", 16)
        expected = one_update(task, "phase1", 1, MeshConfig(), 1)
        assert expected[0]["teacher_loss"] > 1e-3
        found = one_update(task, "phase1", 8, mesh, 2)
        compare(found, expected, loss_tolerance=1e-12, gradient_tolerance=1e-10)


@pytest.mark.heavy
@pytest.mark.parametrize("update", ["replicated", "sharded"])
def test_eight_devices_and_two_parts_have_the_curve_of_one(update: str, place: Path) -> None:
    flags = [f"--config.mesh.weight_update={update}", "--config.training.micro_batches=2", "--config.export=False"]
    with toy.one_device():
        assert pretrain(place, f"{update}_one", "--config.export=False") == 0
    assert pretrain(place, update, *flags) == 0
    for split in ("train", "eval"):
        found, expected = (records(place / workdir, split) for workdir in (update, f"{update}_one"))
        for name in ("mlm_loss", "teacher_loss"):
            curves = [[line[name] for line in lines] for lines in (found, expected)]
            np.testing.assert_allclose(*curves, rtol=1e-4, err_msg=f"{split} {name}")


def test_the_loss_is_that_of_numpy(place: Path, student: Path) -> None:
    """numpy computes the loss of the finished student again, from the tensors of both exports."""
    batches = bert_jax.batches(str(place / "own.py"), str(student))
    rows = batches.task.heldout_rows("phase1", EVAL_ROWS)
    logits = {}
    for name in ("teacher", "student"):
        tensors = load_file(place / name / "hugging_face" / "model.safetensors")
        config = config_of(read_run(str(place / name))["facts"]["model"])
        both = {key: np.asarray(value, np.float64) for key, value in tensors.items()}
        every = numpy_outputs(both, config, rows, frozenset({"mlm_head"}), "BertForMaskedLM")["mlm_logits"]
        logits[name] = np.take_along_axis(every, rows["masked_positions"][..., None], axis=1) / 2.0  # the temperature
    log_shares = {name: x - np.log(np.exp(x).sum(-1, keepdims=True)) for name, x in logits.items()}
    shares = np.exp(log_shares["teacher"])
    divergence = (shares * (log_shares["teacher"] - log_shares["student"])).sum(-1)
    weights = rows["masked_weights"]
    expected = 4.0 * (divergence * weights).sum() / weights.sum()
    found = records(student, "eval")[-1]["teacher_loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert records(student, "eval")[0]["teacher_loss"] > found > 1e-2


def test_no_checkpoint_holds_the_teacher_and_the_student_needs_it_no_more(
    place: Path, student: Path, tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = ocp.PyTreeCheckpointer().metadata(student / "checkpoints" / str(STEPS) / "state").item_metadata.tree
    sizes = [int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree)]
    params, facts, _ = read_params(str(student))
    trained = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert 3 * trained <= sum(sizes) <= 3 * trained + 500  # parameters and two moments; metrics and skipped steps
    assert set(params) == {"encoder", "mlm_head"}
    taught = sum(leaf.size for leaf in jax.tree.leaves(read_params(str(place / "teacher"))[0]))
    assert taught > 2 * trained
    content = facts["objective"]["teacher"]  # a name that does not change where the teacher lies
    assert re.fullmatch("teacher@[0-9a-f]{16}", content)
    assert facts["run"]["identity"]["objective"]["teacher"] == content

    alone = shutil.copytree(student, tmp_path / "alone")
    moved = (place / "teacher").rename(place / "elsewhere")
    try:
        assert run(["fill-mask", f"--workdir={alone}", "the [MASK] sees the river."]) == 0
        assert run(["export", f"--workdir={alone}", f"--output={tmp_path / 'model'}"]) == 0
        assert json.loads((tmp_path / "model" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
        parts = "--config.training.micro_batches=2"
        key = "--config.objective.teacher"
        assert pretrain(place, str(alone), parts, f"{key}={moved / 'hugging_face'}") == 0  # elsewhere, as its export
        assert pretrain(place, str(alone), parts, f"{key}={moved}@2") == 2
        assert f"config.objective.teacher: '{content}' -> 'teacher@" in capsys.readouterr().err
        assert pretrain(place, str(alone)) == 2
        assert f"config.objective.teacher={place / 'teacher'} is neither" in capsys.readouterr().err
    finally:
        moved.rename(place / "teacher")


def test_two_objectives_share_a_teacher_and_plans_count_it(
    place: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, colder = checked(place), checked(place, "--config.objective.temperature=1")
    earlier = checked(place, f"--config.objective.teacher={place / 'teacher'}@2")
    frozen = [one.task.given.arrays.keys() for one in (recipe, colder)]
    assert frozen[0] == frozen[1] != earlier.task.given.arrays.keys()
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(read_params(str(place / "teacher"))[0]))
    for devices in (1, 8):
        mesh = meshes.make_mesh(MeshConfig(), jax.devices("cpu")[:devices])
        assert bytes_of(recipe.experiment.initial_state(recipe.task, mesh).shapes[1]) == whole
    assert run(["plan", f"--config={place / 'own.py'}", "--topology=cpu:1"]) == 0
    assert f"frozen {size(whole)}, " in capsys.readouterr().out


def write_several(place: Path, folder: Path, among: str, teacher: Path | str) -> tuple[Path, str]:
    """Write a recipe in which one of several objectives has a teacher; return its path and the teacher's key."""
    recipe = json.loads((place / "first.json").read_text())
    taught = {"name": str(place / "teacher.py"), "teacher": str(teacher)}
    if among == "phases":
        steps = {"num_steps": 2, "batch_size": 16, "max_length": 32}
        recipe["phases"] = {"phase1": {**steps, "objective": taught}, "phase2": steps}
        key = "config.phases.phase1.objective.teacher"
    else:
        recipe["objective"] = {"members": {"plain": {"name": "mlm"}, "taught": taught}, "arrangement": "sentences"}
        key = "config.objective.members.taught.teacher"
    recipe |= {"vocab": {"path": str(place / "vocab.txt")}, "export": False}
    own = folder / "own.py"
    own.write_text(RECIPE.replace("{}", repr(recipe)))
    return own, key


@pytest.mark.parametrize("among", ["phases", "members"])
def test_one_of_several_objectives_has_a_teacher(among: str, place: Path, tmp_path: Path) -> None:
    """The run is known by what the teacher is, wherever it lies."""
    (tmp_path / "moved").symlink_to(place / "teacher")
    names = [checked(place).identity()["objective"]["teacher"]]
    for teacher in (tmp_path / "moved", f"{place / 'teacher'}@2"):
        own, key = write_several(place, tmp_path, among, teacher)
        identity: Any = Pretraining(settings_of(own), devices=jax.devices()[:1]).identity()
        names.append(functools.reduce(lambda tree, name: tree[name], key.split(".")[1:], identity))
    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch("teacher@[0-9a-f]{16}", name) for name in names)
    own, key = write_several(place, tmp_path, among, "gone")
    assert f"{key}=gone is neither" in said_of(place, recipe=str(own))


@pytest.mark.parametrize("among", [pytest.param("phases", marks=pytest.mark.heavy), "members"])
def test_one_of_several_objectives_learns_from_its_teacher(
    among: str, place: Path, tmp_path: Path, one_device: None
) -> None:
    own, _ = write_several(place, tmp_path, among, place / "teacher")
    assert run(["pretrain", f"--config={own}", f"--workdir={tmp_path / 'run'}"]) == 0
    assert any("teacher_loss" in line for line in records(tmp_path / "run", "train"))


def test_a_table_of_ones_own(place: Path, one_device: None, capsys: pytest.CaptureFixture[str]) -> None:
    table = place / "table.npy"
    np.save(table, np.linspace(-1.0, 1.0, 200))
    flags = [f"--config.objective.name={place / 'table.py'}", f"--config.objective.table={table}"]
    assert pretrain(place, "listed", *flags) == 0
    losses = [line["table_loss"] for line in records(place / "listed", "eval")]
    assert losses[-1] < losses[0]
    np.save(table, np.linspace(-1.0, 2.0, 200))
    assert pretrain(place, "listed", *flags) == 2
    err = capsys.readouterr().err
    assert "config.objective.table: 'table.npy@" in err
    assert "config.frozen.phase1.table: '" in err


WRONG = {
    "gone": (["--config.objective.teacher=gone"], "config.objective.teacher=gone is neither a Hugging Face directory"),
    "too short": (
        ["--config.phases.phase1.max_length=64", "--config.model.max_length=64"],
        "teacher reads at most 32 positions, and the rows of phase1 have 64; lower config.phases.phase1.max_length",
    ),
}
OWN = {
    "trained": ('self.setting.models["teacher"].params', "frozen names encoder, mlm_head, which this run trains"),
    "a model": ("self.setting.models", "frozen names 'teacher', in which there is a TrainedModel; only arrays"),
    "no names": ("[1, 2]", "frozen returned a list; a dict name -> arrays is needed"),
}


def said_of(place: Path, *flags: str, recipe: str = "own.py") -> str:
    """Return the line that refuses a run before anything is made."""
    with pytest.raises(UserError) as refused:
        Pretraining(settings_of(place / recipe, *flags), devices=jax.devices()[:1])
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", WRONG)
def test_a_teacher_that_does_not_fit(name: str, place: Path) -> None:
    flags, said = WRONG[name]
    assert said in said_of(place, *flags)


def test_a_teacher_that_is_left_out(place: Path) -> None:
    recipe = (place / "own.py").read_text()
    (place / "own2.py").write_text(recipe.replace(f", 'teacher': {str(place / 'teacher')!r}", ""))
    assert "missing key config.objective.teacher" in said_of(place, recipe="own2.py")


def test_a_run_has_the_vocabulary_of_its_teacher(
    place: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It neither learns one nor reads another: the command says so in one line, before anything is made."""
    own, other = place / "teacher" / "vocab.txt", place / "other.txt"
    other.write_text(own.read_text() + "zebra\n")
    for recipe, flags, said in (
        ("learns.py", [], f"add --config.vocab.path={own}"),
        ("own.py", [f"--config.vocab.path={other}"], f"--config.vocab.path={own} --config.vocab.lowercase=True"),
    ):
        assert pretrain(place, "refused", *flags, recipe=recipe) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1
        assert not (place / "refused").exists()


@pytest.mark.parametrize("name", OWN)
def test_frozen_returns_arrays_by_names_of_their_own(name: str, place: Path) -> None:
    returned, said = OWN[name]
    (place / "wrong.py").write_text(f"{TEACHER}\n    def frozen(self):\n        return {returned}\n")
    assert said in said_of(place, f"--config.objective.name={place / 'wrong.py'}")


def test_packed_rows_need_a_teacher_that_reads_them(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = checked(place, *PACKED_HALVES).task
    check_features(task.setting.models, task.batch_specs, "config.objective")
    monkeypatch.setattr(bert.Encoder, "reads", frozenset({"token_type_ids"}))
    with pytest.raises(UserError, match="does not read position_ids; set config.objective.packing to 'none'"):
        check_features(task.setting.models, task.batch_specs, "config.objective")


def test_a_model_computes_in_the_dtype_of_the_run(place: Path) -> None:
    task = checked(place, *PACKED_HALVES).task
    teacher = task.setting.models["teacher"]
    assert teacher.config == dataclasses.replace(bert_jax.load(place / "teacher").config, dtype="bfloat16")
