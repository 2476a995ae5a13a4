"""A run that starts from another: what it sees, what it keeps, and what of its recipe gives way."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from bert_jax.checkpoints.restoring import read_params
from bert_jax.checkpoints.saving import save_best
from bert_jax.cli.main import run
from bert_jax.configuration import differences
from bert_jax.errors import UserError
from bert_jax.examples.load import DataConfig
from bert_jax.interchange import initial
from bert_jax.models.encoders import bert
from bert_jax.models.model import config_facts, config_of
from bert_jax.models.transformer import stack_layers
from bert_jax.parts import catalogue
from bert_jax.parts.catalogue import OwnCode
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs import run as runs
from bert_jax.training.loop import Run
from bert_jax.workdir import run_record
from bert_jax.workdir.run_record import read_run, settle
from tests import toy
from tests.runs.commands import first_state, pretrain

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a run of six steps, an export in it."""
    folder = tmp_path_factory.mktemp("parent")
    text = toy.write_text(folder / "text.txt", documents=20)
    with toy.one_device():
        assert pretrain(folder, recipe(text)) == 0
    return folder / "run"


def settings_of(objective: Any, model: Any = None, phases: Any = None) -> PretrainingSettings:
    phases = phases or {"phase1": {"num_steps": 8, "batch_size": 8, "max_length": 32}}
    return PretrainingSettings(objective=objective, model=model or {}, phases=phases)


def recipe(text: Path, mlp_dim: int = 64, **changes: Any) -> dict[str, Any]:
    """With dropout, and a step saved every two."""
    return toy.recipe(
        text,
        model={"num_layers": 1, "mlp_dim": mlp_dim, "dropout_rate": 0.1},
        phases={"phase1": {"num_steps": 6, "batch_size": 8, "max_length": 32}},
        training={"eval_every_steps": 6, "loggers": ()},
        checkpoints={"every_steps": 2},
        examples=(),
        **changes,
    )


def again(parent: Path, mlp_dim: int = 64) -> dict[str, Any]:
    """The recipe of ``parent`` on its very corpus."""
    places = {"corpus": {"path": str(parent / "corpus")}, "vocab": {"path": str(parent / "vocab.txt")}}
    return recipe(parent.parent / "text.txt", mlp_dim, **places)


def rows_of(task: Any) -> dict[str, list[np.ndarray]]:
    """Return the first rows of both splits, as the run reads them."""
    indices = np.arange(8)
    both = {split: task.source(split, "phase1", 0).rows(0 * indices, indices) for split in ("train", "eval")}
    return {split: [rows[name] for name in ("input_ids", "masked_positions")] for split, rows in both.items()}


def saved_as(parent: Path, workdir: Path, step: int) -> None:
    """Give a run that has only begun a saved step, so that it is bound to its start."""
    shutil.copytree(parent / "checkpoints" / "6", workdir / "checkpoints" / str(step))


def test_it_does_not_see_again_what_its_parent_saw(
    parent: Path, tmp_path: Path, reached: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in ([], [f"--init={parent / 'hugging_face'}"], [f"--init={parent}"], [f"--init={parent}@4"]):
        assert pretrain(tmp_path, again(parent, mlp_dim=96), *flags) == 130
    message = "the model of --init is taken, not the recipe's: mlp_dim 64"
    assert capsys.readouterr().err.count(message) == 3

    (own, rows), (of_export, rows_of_export), *continued = [(run.experiment.seed, rows_of(run.task)) for run in reached]
    assert of_export == own == 0
    jax.tree.map(np.testing.assert_array_equal, rows_of_export, rows)
    assert len({own, *(seed for seed, _ in continued)}) == 3
    for _, others in continued:
        assert all((a != b).any() for a, b in zip(others["train"], rows["train"], strict=True))
        jax.tree.map(np.testing.assert_array_equal, others["eval"], rows["eval"])


def test_a_resume_needs_neither_the_flag_nor_the_parent(
    parent: Path, tmp_path: Path, reached: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, workdir = again(parent), tmp_path / "run"
    assert pretrain(tmp_path, config, f"--init={parent}") == 130
    record = read_run(str(workdir))
    saved_as(parent, workdir, step=2)
    monkeypatch.setattr(initial, "load", lambda source, flag: pytest.fail(f"{source} was read"))
    assert pretrain(tmp_path, config) == 130
    begun, resumed = reached
    assert begun.start is not None
    assert resumed.start is None, "it is restored"
    assert resumed.experiment == begun.experiment
    jax.tree.map(np.testing.assert_array_equal, rows_of(resumed.task), rows_of(begun.task))
    again_recorded = read_run(str(workdir))
    assert again_recorded["identity"] == record["identity"]
    assert again_recorded["facts"] == record["facts"]
    assert len(record["facts"]["parent_key"]) == 64


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_moments_are_kept_and_steps_begin_anew(
    parent: Path, tmp_path: Path, reached: list[Run], capsys: pytest.CaptureFixture[str], layers: str
) -> None:
    flags = [f"--config.model.layers={layers}", "--config.optimizer.b2=0.98"]
    assert pretrain(tmp_path, again(parent), f"--init={parent}@4", "--init_optimizer=kept", *flags) == 130
    assert f"the moments of the optimizer of {parent}@4 are kept" in capsys.readouterr().err
    fresh, state = first_state(reached[0])
    step, reader = parent / "checkpoints" / "4" / "state", ocp.PyTreeCheckpointer()
    tree = reader.metadata(step).item_metadata.tree
    saved = reader.restore(step, restore_args=jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree))
    moments, params = saved["opt_state"], saved["params"]
    for found, wanted in ((state.params, params), (state.opt_state[1].mu, moments[1]["mu"])):
        found, wanted = jax.tree.map(np.asarray, found), stack_layers(wanted) if layers == "scanned" else wanted
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(state.opt_state[1].nu))
    assert int(state.step) == 0
    jax.tree.map(np.testing.assert_array_equal, state.metrics, fresh.metrics)
    where = jax.tree.map(lambda leaf: leaf.sharding, (state.params, state.opt_state))
    assert where == jax.tree.map(lambda leaf: leaf.sharding, (fresh.params, fresh.opt_state))


def test_a_run_that_kept_moments_goes_on_without_the_flag_and_begins_only_with_it(parent: Path, tmp_path: Path) -> None:
    start = {"init": f"{parent}@4", "init_optimizer": "kept"}
    run_record.write_run(str(tmp_path), {"run_id": "a", "identity": {"objective": {}, **start}})
    for flags in ({"init": None}, {"init": f"{parent}@4"}):
        resumed = run_record.content(str(tmp_path), {}, {"objective": {}, **flags}, "")
        assert resumed["identity"] == {"objective": {}, **start}
    with pytest.raises(UserError, match="begun with --init_optimizer=kept and has saved no step yet; give --init_opt"):
        run_record.content(str(tmp_path), {}, {"objective": {}, **flags}, "", bound=False)
    assert "init_optimizer" not in read_run(str(parent))["identity"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--init_optimizer=kept needs --init=WORKDIR@STEP, a step of a run; leave --init_optimizer out"),
        (["--init={parent}/hugging_face"], "hugging_face is no run of bert-jax and has no optimizer state; leave"),
        (["--init={parent}@3"], "has only steps 2, 4, 6; choose one of them"),
        (["--init={best}"], "(step 3) has no optimizer state; name one of the steps that are kept (2, 4, 6): --init="),
        (["--init={parent}", "--config.optimizer.name=lamb"], "was trained with adamw, this run has lamb; leave"),
        (
            ["--init={parent}", "--config.optimizer.bias_correction=standard"],
            "has another state (1/count: None there, () here); leave --init_optimizer out",
        ),
        (
            ["--init={parent}", "--config.objective.name=mlm"],
            "has encoder, mlm_head, nsp_head, pooler; this run encoder, mlm_head; leave",
        ),
        (["--init={parent}", "--vocab={vocab}"], "needs the vocabulary of {parent}, in its order; leave --vocab"),
    ],
)
def test_moments_that_cannot_be_kept_are_refused_at_once(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    vocab, best = tmp_path / "vocab.txt", tmp_path / "best"
    vocab.write_text((parent / "vocab.txt").read_text() + "extra\n")
    if flags == ["--init={best}"]:
        shutil.copytree(parent, best, ignore=shutil.ignore_patterns("corpus"))
        params, facts, _ = read_params(str(parent))
        save_best(str(best), 3, params, facts)
    places = {"parent": parent, "vocab": vocab, "best": best}
    config = recipe(parent.parent / "text.txt")
    assert pretrain(tmp_path, config, "--init_optimizer=kept", *(flag.format(**places) for flag in flags)) == 2
    assert message.format(**places) in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_encoder_without_a_head_is_said_to_get_a_fresh_one(
    parent: Path, tmp_path: Path, reached: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = str(tmp_path / "encoder")
    assert run(["export", f"--workdir={parent}", "--as=BertModel", f"--output={encoder}"]) == 0
    assert run(["fill-mask", f"--workdir={encoder}", "a [MASK]."]) == 2
    assert "has no masked-LM head (its parts: encoder, pooler), and a fresh one knows no" in capsys.readouterr().err
    assert pretrain(tmp_path, again(parent), f"--init={encoder}") == 130
    fresh, state = first_state(reached[0])
    assert f"starting from {encoder}; fresh: mlm_head, nsp_head\n" in capsys.readouterr().err
    found = jax.tree.map(lambda x, y: x is y, state.params, fresh.params)
    assert {name for name, tree in found.items() if all(jax.tree.leaves(tree))} == {"mlm_head", "nsp_head"}


def test_a_model_of_both_sides_becomes_a_left_to_right_model(
    parent: Path, tmp_path: Path, reached: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    assert pretrain(tmp_path, {**again(parent), "objective": {"name": "ltr"}}, f"--init={parent}") == 130
    assert "of --init predicted tokens from both sides; the objective does from what" in capsys.readouterr().err
    assert config_of(reached[0].facts["model"]).causal


def test_what_a_restart_may_change_of_the_model(tmp_path: Path) -> None:
    run = settle(str(tmp_path), {}, {"model": {"remat": "none", "mlp_dim": 64}})
    run = settle(str(tmp_path), run, {"model": {"remat": "full", "mlp_dim": 64}})
    assert read_run(str(tmp_path))["facts"]["model"]["remat"] == "full"
    with pytest.raises(UserError, match="run.model.mlp_dim: 64 -> 96. Put them back"):
        settle(str(tmp_path), run, {"model": {"remat": "full", "mlp_dim": 96}})


def test_a_file_that_an_own_config_names_is_identity_by_its_content(tmp_path: Path) -> None:
    marked = "dataclasses.field(default='', metadata={'file': True})"
    start = "import dataclasses\nfrom bert_jax.objectives import mlm\nfrom bert_jax.objectives.mlm import Objective\n"
    config = f"@dataclasses.dataclass(frozen=True)\nclass Config(mlm.Config):\n    words: str = {marked}\n"
    code = OwnCode(str(tmp_path / "mine.py"), f"{start}\n{config}".encode())
    catalogue.trust(code)
    task = OwnCode(str(tmp_path / "task.py"), f"{start}\n{config}\nTask = None\n".encode())
    catalogue.trust(task)
    data = DataConfig(format="jsonl", splits={"train": "train.jsonl"})
    found = []
    for folder, content in (("a", "one"), ("b", "one"), ("b", "two")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (words := tmp_path / folder / "words.txt").write_text(content)
        identity = settings_of({"name": code.name, "words": str(words)}).identity()
        assert (
            FinetuningSettings(task={"name": task.name, "words": str(words)}, data=data).identity()["task"]["words"]
            == (identity["objective"]["words"])
        )
        found.append(identity)
    assert found[0] == found[1]
    [changed] = differences(found[1], found[2])
    assert re.fullmatch(r"config.objective.words: 'words.txt@\w{16}' -> 'words.txt@\w{16}'", changed)
    assert settings_of({"name": code.name}).identity()["objective"]["words"] == ""
    with pytest.raises(UserError, match="config.objective.words is 'gone.txt', and there is no such file"):
        settings_of({"name": code.name, "words": "gone.txt"}).identity()


def test_micro_batches_of_a_phase_may_change() -> None:
    settings = [
        settings_of({"name": "mlm"}, phases={"phase1": {"num_steps": 8, "batch_size": 8, "max_length": 32, **parts}})
        for parts in ({}, {"micro_batches": 2})
    ]
    one, other = (each.identity() for each in settings)
    assert one == other


def test_the_attention_kernel_is_no_part_of_a_run_or_a_model() -> None:
    """A restart, a fine-tuning run and whoever reads the model may have other devices."""
    plain, rows = ({"size": "tiny", "attention_kernel": kernel} for kernel in ("plain", "rows"))
    one, other = (settings_of({"name": "mlm"}, model).identity() for model in (plain, rows))
    assert one == other
    data = DataConfig(format="jsonl", splits={"train": "train.jsonl"})
    task = {"name": "classification"}
    one, other = (FinetuningSettings(task=task, data=data, model=model).identity() for model in (plain, rows))
    assert one == other
    config = bert.Config(64, attention_kernel="rows")
    assert config_of(config_facts(config)) == dataclasses.replace(config, attention_kernel="auto")


@pytest.mark.parametrize("flag", ["model.hidden_size=64", "model.size=tiny", "model={'hidden_size':64,'num_heads':2}"])
def test_a_typed_key_that_contradicts_it_is_an_error(
    flag: str, parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = again(parent)
    del config["model"]["hidden_size"]
    assert pretrain(tmp_path, config, f"--init={parent}", f"--config.{flag}") == 2
    error = capsys.readouterr().err
    assert f"--config.{flag.partition('=')[0]}=" in error
    assert f"contradicts --init={parent}, whose model has" in error
    assert "hidden_size 32" in error
    assert not (tmp_path / "run").exists()


def test_a_start_that_saved_nothing_is_not_begun_again_without_it(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "train_and_evaluate", killed)
    for flags, code in (([f"--init={parent}"], 130), ([], 2), ([f"--init={parent}@4"], 130)):
        assert pretrain(tmp_path, again(parent), *flags) == code
    message = f"was begun with --init={parent} and has saved no step yet; give --init again, or another --workdir"
    assert message in capsys.readouterr().err


def test_the_recipe_that_continues_counts_its_epochs(
    parent: Path, tmp_path: Path, reached: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--config=continue", f"--workdir={tmp_path / 'run'}", "--config.training.loggers=()"]
    flags += [f"--config.corpus.options.paths={parent.parent / 'text.txt'}", "--config.export=False"]
    flags += ["--config.phases.phase1.max_length=32", "--config.phases.phase1.batch_size=4"]
    flags.append("--config.corpus.options.document_boundary=blank_line")
    assert run(["pretrain", *flags]) == 2
    assert "goes on from a model and has its architecture; give --init=DIR" in capsys.readouterr().err
    flags.append(f"--init={parent}")
    assert run(["pretrain", *flags, "--config.phases.phase1.num_epochs=1"]) == 130
    record = read_run(str(tmp_path / "run"))
    once = record["phases"]["phase1"]["num_steps"]
    assert record["facts"]["model"] == read_run(str(parent))["facts"]["model"]
    saved_as(parent, tmp_path / "run", once)
    capsys.readouterr()
    assert run(["pretrain", *flags, "--config.phases.phase1.num_epochs=2"]) == 2
    assert "num_epochs: 1.0 -> 2.0. Give the old values, or another --workdir; --extend" in capsys.readouterr().err
    assert run(["pretrain", *flags, "--config.phases.phase1.num_epochs=2", "--extend"]) == 130
    steps = [run.experiment.phases.num_steps for run in reached]
    assert steps[0] == once
    assert 2 * once - 1 <= steps[1] <= 2 * once
