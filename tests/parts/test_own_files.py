"""Files of a user, named by their paths: a run of them is cut and goes on with the same bits."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.cli.main import run
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import encoder_file, encoder_of, fresh_params
from bert_jax.parts import catalogue
from bert_jax.parts.catalogue import OwnCode
from bert_jax.training.optimizers import adamw
from tests.interchange.heads import TOKENIZER
from tests.parts.texts import ADAM, AHEAD, BLOCKS, NEAR, OTHER, PAIRS, PARTS, RARE_PIECES, RULES, TEACHER, lines_of
from tests.training import gang

pytestmark = pytest.mark.usefixtures("fresh")
TEXT = "the cat sees the river. " * 4
FILES = {
    "ahead": AHEAD,
    "blocks": BLOCKS,
    "rare_pieces": RARE_PIECES,
    "two_rules": RULES["optimizers"],
    "root": RULES["schedules"],
    "pairs": PAIRS,
    "lines": PARTS["reporting/loggers/lines.py"],
    "arrows": PARTS["examples/arrows.py"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``FILES``, a recipe, a run ``whole``, and a run ``cut`` that has lost 50 steps and goes on.

    The steps that it has are those of ``whole``: it is not trained twice up to there.
    """
    folder = tmp_path_factory.mktemp("outside")
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text).lstrip())
    (folder / "pairs.tsv").write_text(
        "the cat sees the river.\triver the sees cat the.\na dog finds a letter.\tdog letter a a finds.\n"
    )
    training = {"log_every_steps": 1, "eval_every_steps": 10, "eval_rows": 20}
    checkpoints = {"every_steps": 10, "keep": 100}
    recipe = gang.make_inputs(folder, 20, training=training, checkpoints=checkpoints, export=True, examples=())
    gang.train(recipe, folder / "whole", *flags(folder))
    shutil.copytree(folder / "whole", folder / "cut")
    for step in saved_steps(str(folder / "cut")):
        if step > 10:
            shutil.rmtree(folder / "cut" / "checkpoints" / str(step))
    gang.train(recipe, folder / "cut", *flags(folder))
    return folder


def flags(folder: Path) -> list[str]:
    """Return the flags of three phases: batches of an own objective beside masked ones, the objective alone, masks."""
    own = {name: str(folder / f"{name}.py") for name in FILES}
    phase, masking = {"num_steps": 20, "batch_size": 8, "max_length": 32}, {"strategy": own["rare_pieces"]}
    members = {"masked": {"name": "mlm", "masking": masking}, "ours": {"name": own["ahead"], "share": 0.5}}
    evaluation = {"name": own["pairs"], "pairs": str(folder / "pairs.tsv")}
    values = {
        "objective": {"name": "mlm", "packing": "packed", "arrangement": "sentences"},
        "phases": {
            "phase1": {**phase, "objective": {"members": members}},
            "phase2": {**phase, "objective": {"name": own["ahead"]}},
            "phase3": {**phase, "masking": masking},
        },
        "model.encoder": own["blocks"],
        "optimizer.name": own["two_rules"],
        "schedule.name": own["root"],
        "training.eval_phase": "phase1",
        "selection.metric": "pairs/accuracy",
        "training.loggers": (own["lines"],),
        "training.evaluations": {"pairs": evaluation, "seldom": {**evaluation, "every": 2}},
    }
    return [f"--config.{key}={value}" for key, value in values.items()]


def test_a_run_of_files_goes_on_with_the_same_bits(place: Path) -> None:
    assert lines_of(AHEAD) <= 40
    assert gang.records(place / "cut") == gang.records(place / "whole")
    gang.assert_same_model(place / "cut", place / "whole")


def test_each_phase_and_each_member_has_its_metrics(place: Path) -> None:
    found = gang.records(place / "cut")
    train = [record for record in found if record["split"] == "train"]
    objectives = [[name for name in ("mlm", "ahead") if f"{name}_loss" in record] for record in train]
    assert all(len(names) == 1 for names in objectives)
    assert 4 <= objectives[:20].count(["ahead"]) <= 10, "a third of the batches"
    assert objectives[20:] == [["ahead"]] * 20 + [["mlm"]] * 20
    rates = [record["learning_rate"] for record in train]
    np.testing.assert_allclose(rates[5:], 1e-3 * np.sqrt(4) / np.sqrt(np.arange(5, 60)), rtol=1e-6)

    evaluations = {record["step"]: record for record in found if record["split"] == "eval"}
    for name in ("mlm_loss/masked", "lm_loss/ours", "ahead_loss/ours", "mlm_loss", "ahead_loss"):
        assert evaluations[40][name] < evaluations[0][name], name
    assert "mlm_loss/ours" not in evaluations[40]
    assert [step for step, record in evaluations.items() if "pairs/accuracy" in record] == [*range(0, 61, 10)]
    assert [step for step, record in evaluations.items() if "seldom/accuracy" in record] == [*range(0, 61, 20)]
    scores = [evaluations[step]["pairs/accuracy"] for step in range(10, 61, 10)]
    assert max(saved_steps(str(place / "cut" / "best"))) == 10 * (len(scores) - scores[::-1].index(max(scores)))
    assert "'ahead_loss'" in (place / "cut" / "lines.txt").read_text()


def test_the_model_is_of_the_last_phase_and_is_exported_as_bert(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A head that the last phase does not train keeps its bits."""
    workdir = place / "cut"
    at_change, at_end = (read_params(str(workdir), step)[0] for step in (40, 60))
    assert at_change.keys() == {"encoder", "mlm_head", "ahead_head"}
    jax.tree.map(np.testing.assert_array_equal, at_end["ahead_head"], at_change["ahead_head"])
    ours, theirs = (bert_jax.load(str(path), trust_code=True) for path in (workdir, workdir / "hugging_face"))
    assert ours.params.keys() == theirs.params.keys() == {"encoder", "mlm_head"}
    assert not ours.config.causal
    assert architectures(workdir / "hugging_face") == ["BertForMaskedLM"]
    assert "blocks" not in theirs.params["encoder"]["embeddings"]
    first, second = ours.params["encoder"]["embeddings"]["blocks"]
    assert np.abs(first - second).max() > 0.01
    [one], [other] = ours.hidden_states([TEXT]), theirs.hidden_states([TEXT])
    assert one.shape[1] > 20, "positions of both blocks"
    np.testing.assert_allclose(one, other, atol=1e-5)
    assert run(["export", f"--workdir={workdir}", f"--output={place / 'exported'}", "--trust_code"]) == 0
    assert "read back as bert, it has the same outputs" in capsys.readouterr().out
    for model in (f"--workdir={workdir}", f"--workdir={workdir / 'hugging_face'}"):
        assert run(["fill-mask", model, "the [MASK] sees the river.", "--trust_code"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :], "what a run fills is what its export fills"


def test_a_changed_file_is_another_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also a file that an own part reads."""
    recorded = json.loads((place / "cut" / "run.json").read_text())["config"]
    name = recorded["training"]["evaluations"]["pairs"]["name"]
    assert (place / "cut" / "code" / name.partition("@")[2] / "pairs.py").read_text() == FILES["pairs"]
    folder = Path(shutil.copytree(place, place.with_name("changed"), ignore=shutil.ignore_patterns("whole", "cut")))
    for file in (*folder.glob("*.py"), folder / "pairs.tsv"):
        file.write_text(file.read_text() + "\n")
    argv = [f"--config={place / 'recipe.json'}", f"--workdir={place / 'cut'}"]
    assert run(["pretrain", *argv, *flags(folder)]) == 2
    said = capsys.readouterr().err
    for key, file in {
        "phases.phase1.objective.members.ours.name": "ahead.py",
        "phases.phase1.objective.members.masked.masking.strategy": "rare_pieces.py",
        "phases.phase2.objective.name": "ahead.py",
        "phases.phase3.masking.strategy": "rare_pieces.py",
        "model.encoder": "blocks.py",
        "optimizer.name": "two_rules.py",
        "schedule.name": "root.py",
        "training.evaluations.pairs.name": "pairs.py",
        "training.evaluations.pairs.pairs": "pairs.tsv",
    }.items():
        assert re.search(rf"config\.{key}: '{file}@\w+' -> '{file}@", said), key


def test_a_model_of_an_own_encoder_is_fine_tuned(place: Path, one_device: None) -> None:
    (place / "train.txt").write_text("".join(f"the {('ship', 'cat')[i % 2]} sees {i} -> {i % 2}\n" for i in range(16)))
    keys: dict[str, Any] = {"data.format": place / "arrows.py", "data.dev_fraction": 0.5}
    keys |= {"data.splits.train": place / "train.txt", "phases.train.max_length": 32, "phases.train.num_epochs": 1}
    keys |= {"phases.train.batch_size": 4, "training.loggers": ()}
    changed = [f"--config.{key}={value}" for key, value in keys.items()]
    tuned = place / "tuned"
    tune = ["finetune", "--config=classification", *changed, f"--init={place / 'cut'}", f"--workdir={tuned}"]
    assert run([*tune, "--trust_code"]) == 0
    assert architectures(tuned / "hugging_face") == ["BertForSequenceClassification"]
    assert run(["predict", f"--workdir={tuned / 'hugging_face'}", TEXT]) == 0


def architectures(model: Path) -> Any:
    return json.loads((model / "config.json").read_text())["architectures"]


def own_encoder(code: str, name: str, **sizes: Any) -> tuple[ModelConfig, Any]:
    """Return the config and drawn parameters of an encoder of 32 positions in a file."""
    file = OwnCode(f"{name}.py", code.encode())
    catalogue.trust(file)
    shared = {"num_heads": 2, "mlp_dim": 64, "max_length": 32}
    config = encoder_file(file.name).Config(TOKENIZER.size, 32, **shared, **sizes)
    rng, shapes = np.random.default_rng(0), jax.eval_shape(lambda: fresh_params(config))
    return config, jax.tree.map(lambda w: rng.normal(0.0, 0.2, w.shape).astype(w.dtype), shapes)


def test_a_rotary_encoder_of_the_page_with_blocks_of_its_own() -> None:
    """Three layers in a scan, of which two see one token to each side."""
    config, params = own_encoder(NEAR, "near", num_layers=3, layers="scanned", near=1)
    assert [block.window for block in config.blocks] == [1, 1, None]
    assert "position_embeddings" not in params["encoder"]["embeddings"]
    ids = np.random.default_rng(1).integers(5, TOKENIZER.size, (2, 24), dtype=np.int32)
    ids[1, :20] = ids[0, :20]
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": 0 * ids + 1}
    encoder = encoder_of(config)
    hidden = jax.jit(lambda p: encoder.apply({"params": p}, batch, None, "all").hidden)(
        params["encoder"]
    )  # [4, 2, 24, 32]
    np.testing.assert_allclose(hidden[2, 0, :18], hidden[2, 1, :18], atol=1e-5)  # what is far is not seen
    assert np.abs(hidden[3, 0, 1] - hidden[3, 1, 1]).max() > 1e-4  # but by the last layer


def test_a_class_that_this_package_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is exported, and read where the encoder's file is loaded."""
    config, params = own_encoder(OTHER, "other", num_layers=1)
    params = {name: params[name] for name in ("encoder", "mlm_head")}
    export_model(TrainedModel("", params, config, TOKENIZER), tmp_path / "model", "card")
    assert architectures(tmp_path / "model") == ["OwnForMaskedLM"]
    jax.tree.map(np.testing.assert_array_equal, dict(bert_jax.load(str(tmp_path / "model")).params), params)
    monkeypatch.setattr(catalogue, "_names", {})
    readable = "is a 'own' model; readable model types: albert, bert, distilbert, electra, ernie"
    with pytest.raises(bert_jax.UserError, match=readable):
        bert_jax.load(str(tmp_path / "model"))


def test_adam_of_optax_is_adamw() -> None:
    code = OwnCode("adam.py", ADAM.encode())
    catalogue.trust(code)
    theirs = catalogue.find("training.optimizers", code.name).Optimizer().make()
    ours, rng = adamw.Optimizer(bias_correction="standard").make(), np.random.default_rng(0)
    params = {"kernel": rng.normal(size=(8, 4)).astype(np.float32), "bias": np.ones(4, np.float32)}
    states = [rule.init(params) for rule in (theirs, ours)]
    step = [jax.jit(rule.update) for rule in (theirs, ours)]
    for _ in range(3):
        gradients = jax.tree.map(lambda w: rng.normal(size=w.shape).astype(np.float32), params)
        updates = []
        for number, update_of in enumerate(step):
            update, states[number] = update_of(gradients, states[number], params)
            updates.append(update)
        jax.tree.map(np.testing.assert_array_equal, *updates)


def test_a_strategy_masks_rare_pieces_more_often(place: Path, tmp_path: Path) -> None:
    """The number of masks is the same; the bound on the share of rare pieces is that of binomial draws."""
    changes = {
        "objective": {"name": "mlm", "arrangement": "sentences", "packing": "packed"},
        "phases.phase1.num_steps": 40,
    }
    found = {}
    for strategy in ("token", str(place / "rare_pieces.py")):
        masking = {"objective.masking.strategy": strategy}
        batches = bert_jax.batches(str(place / "recipe.json"), tmp_path / "run", overrides=changes | masking)
        special, whole, labels = [*batches.tokenizer.special_ids], [], []
        for batch in batches:
            row, slot = np.nonzero(batch["masked_weights"])
            ids = batch["input_ids"].copy()  # as before masking
            ids[row, batch["masked_positions"][row, slot]] = batch["masked_labels"][row, slot]
            whole.append(ids[~np.isin(ids, special)])
            labels.append(batch["masked_labels"][row, slot])
        found[Path(strategy).stem] = np.concatenate(whole), np.concatenate(labels)
    text_ids, plain = found["token"]
    np.testing.assert_array_equal(found["rare_pieces"][0], text_ids)  # the same rows, up to their masks
    rare = np.bincount(text_ids) < np.median(np.bincount(text_ids)[text_ids])  # bool [V]
    share = rare[text_ids].mean()
    assert len(found["rare_pieces"][1]) == len(plain) > 1000
    assert 0.2 < share < 0.6
    for name, (_, labels) in found.items():
        z = (rare[labels].sum() - share * len(labels)) / np.sqrt(share * (1 - share) * len(labels))
        assert z > 6 if name == "rare_pieces" else abs(z) < 4, (name, z)


@pytest.mark.heavy
def test_a_teacher_of_an_own_objective_is_moved_and_read_by_two_processes(tmp_path: Path) -> None:
    """Unmarked, ``objectives/test_frozen.py`` moves the teacher, and ``runs/test_teacher.py`` goes on beside one."""
    own, teacher, moved = tmp_path / "teacher.py", tmp_path / "first", tmp_path / "moved"
    own.write_text(TEACHER)
    recipe = gang.make_inputs(tmp_path, 60, training={"log_every_steps": 5, "eval_every_steps": 30, "eval_rows": 20})
    gang.train(recipe, teacher, "--config.phases.phase1.num_steps=10", "--config.model.hidden_size=64")
    flags = [f"--config.objective.name={own}", "--config.objective.temperature=3.0"]
    named = [*flags, f"--config.objective.teacher={teacher}"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    found = gang.train(recipe, whole, *named)
    assert found[-1]["teacher_loss"] < found[0]["teacher_loss"]
    gang.assert_same_losses(gang.finish(recipe, tmp_path / "two", 2, *named), found)
    gang.break_off(recipe, cut, 37, *named)
    teacher.rename(moved)
    assert gang.train(recipe, cut, *flags, f"--config.objective.teacher={moved}") == found
    gang.assert_same_model(cut, whole)
