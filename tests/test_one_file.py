"""A part of one's own is one short file that a recipe names by its path: it is trained, cut and resumed like others.

The examples are those of the page. ``test_every_kind.py`` adds files to the package itself.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.cli.main import run
from bert_jax.parts import catalogue
from tests import toy
from tests.training import gang

PAGE = (Path(bert_jax.__file__).parent / "objectives" / "README.md").read_text(encoding="utf-8")
CODES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def of_page(pattern: str, most_lines: int) -> str:
    """Return the code of the page that follows the pattern, which is short."""
    [code] = re.findall(rf"{pattern}[^`]*\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len([line for line in code.splitlines() if line.strip()]) <= most_lines
    return str(code)


RULES = {"optimizers": of_page("`two_rules.py`", 25), "schedules": of_page("`root.py`", 25)}
RARE_PIECES = of_page("`rare_pieces.py`[^`]*`token`", 25)
# AdamW as it is put together from optax, to be compared with the one of the package.
ADAM = """
import dataclasses
import optax
from bert_jax.training.optimizers import base

@dataclasses.dataclass(frozen=True)
class Optimizer(base.Rule):
    def make(self):
        decay = optax.add_decayed_weights(0.01, mask=base.decay_mask)
        return optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(eps=1e-6), decay)
"""
AHEAD = '''
"""Left to right, and each position says the token after the next one too."""

import jax.numpy as jnp

from bert_jax.models.heads import LmHead
from bert_jax.models.model import LM_HEAD, Part
from bert_jax.objectives import base, ltr
from bert_jax.objectives.base import Config  # no keys of its own


class AheadHead(LmHead):
    logits: str = "ahead_logits"


class Objective(ltr.Objective):
    parts = (LM_HEAD, Part.of("ahead_head", AheadHead))
    derived = (*ltr.Objective.derived, "ahead_labels", "ahead_weights")

    def terms(self, config):
        return {**super().terms(config), "ahead": base.prediction("ahead_logits", "ahead_labels", "ahead_weights")}

    def inputs(self, batch):
        batch = super().inputs(batch)
        labels, weights = (
            jnp.pad(batch[f"next_token_{name}"][:, 1:], ((0, 0), (0, 1))) for name in ("labels", "weights")
        )
        return {**batch, "ahead_labels": labels, "ahead_weights": weights * batch["next_token_weights"]}
'''


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of a user is loaded, as in a new process."""
    for name in ("_trusted", "_names"):
        monkeypatch.setattr(catalogue, name, {})


def test_an_evaluation_of_ones_own_beside_a_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The evaluation of the page: cut, resumed, and what selects the best step. The file is part of the run."""
    [code] = [code for code in CODES if "class Evaluator" in code]
    assert len(code.splitlines()) <= 40
    own, pairs, tables = tmp_path / "pairs.py", tmp_path / "pairs.tsv", {"train": 40, "dev": 20}
    own.write_text(code)
    pairs.write_text("the cat sees the river.\triver the sees cat the.\na dog finds a letter.\tdog letter a a finds.\n")
    for name, count in tables.items():
        lines = [f"the {('cat', 'ship')[i % 2]} sees {i}\t{i % 2}" for i in range(count)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    data = {"format": "delimited", "splits": {name: f"{name}.tsv" for name in tables}}
    probe = {"name": "probe", "every": 2, "task": "classification", "folder": str(tmp_path), "data": data}
    training = {"log_every_steps": 5, "eval_every_steps": 10, "eval_rows": 20, "evaluations": {"probe": probe}}
    recipe = gang.make_inputs(tmp_path, 40, training=training, selection={"metric": "pairs/accuracy"})
    named = "--config.training.evaluations.pairs"
    flags = [f"{named}.name={own}", f"{named}.pairs={pairs}"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    found = {record["step"]: record for record in gang.train(recipe, whole, *flags) if record["split"] == "eval"}
    assert [step for step, record in found.items() if "pairs/accuracy" in record] == [*range(0, 41, 10)]
    assert [step for step, record in found.items() if "probe/accuracy" in record] == [*range(0, 41, 20)]
    scores = [found[step]["pairs/accuracy"] for step in range(10, 41, 10)]
    assert max(saved_steps(str(whole / "best"))) == 10 * (1 + scores.index(max(scores)))

    gang.break_off(recipe, cut, 37, *flags)
    assert gang.train(recipe, cut, *flags) == gang.records(whole)
    gang.assert_same_model(cut, whole)

    recorded = json.loads((cut / "run.json").read_text())
    name = recorded["config"]["training"]["evaluations"]["pairs"]["name"]
    assert name.startswith("pairs.py@")
    assert (cut / "code" / name.partition("@")[2] / "pairs.py").read_text() == code
    for file, changed in ((own, f"evaluations.pairs.name: '{name}' -> 'pairs.py@"), (pairs, "pairs: 'pairs.tsv@")):
        before = file.read_text()
        file.write_text(before + "\n")
        assert run(["pretrain", f"--config={recipe}", f"--workdir={cut}", *flags]) == 2
        assert changed in capsys.readouterr().err
        file.write_text(before)


@pytest.fixture
def taught(tmp_path: Path) -> tuple[Path, Path, list[str]]:
    """Return a recipe, the workdir of a teacher, and the flags of the page's objective, but for its teacher."""
    [code] = [code for code in CODES if "a teacher says" in code.partition("\n")[0]]
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    own, teacher = tmp_path / "teacher.py", tmp_path / "first"
    own.write_text(code)
    training = {"log_every_steps": 5, "eval_every_steps": 30, "eval_rows": 20}
    recipe = gang.make_inputs(tmp_path, 60, training=training)
    gang.train(recipe, teacher, "--config.phases.phase1.num_steps=10", "--config.model.hidden_size=64")
    return recipe, teacher, [f"--config.objective.name={own}", "--config.objective.temperature=3.0"]


def test_a_teacher_is_learned_from_and_moved(taught: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    recipe, teacher, flags = taught
    named, moved = [*flags, f"--config.objective.teacher={teacher}"], tmp_path / "moved"
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    found = gang.train(recipe, whole, *named)
    assert found[-1]["teacher_loss"] < found[0]["teacher_loss"]
    gang.break_off(recipe, cut, 37, *named)
    teacher.rename(moved)
    assert gang.train(recipe, cut, *flags, f"--config.objective.teacher={moved}") == found
    gang.assert_same_model(cut, whole)


@pytest.mark.heavy
def test_a_teacher_is_read_by_two_processes(taught: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    recipe, teacher, flags = taught
    named = [*flags, f"--config.objective.teacher={teacher}"]
    found = gang.train(recipe, tmp_path / "one", *named)
    gang.assert_same_losses(gang.finish(recipe, tmp_path / "two", 2, *named), found)


def test_a_strategy_by_path_masks_rare_pieces_more_often(tmp_path: Path) -> None:
    """The number of masks is the same; the bound on the share of rare pieces is that of binomial draws."""
    text, file = toy.write_text(tmp_path / "text.txt", documents=120), tmp_path / "rare_pieces.py"
    file.write_text(RARE_PIECES)
    recipe = toy.recipe(
        text,
        objective={"name": "mlm", "arrangement": "sentences", "packing": "packed"},
        phases={"phase1": {"num_steps": 40, "batch_size": 8, "max_length": 32}},
        training={"log_every_steps": 20, "eval_every_steps": 40, "eval_rows": 8, "loggers": ()},
        examples=(),
        export=False,
    )
    path, found = toy.write_recipe(tmp_path / "recipe.json", recipe), {}
    for strategy in ("token", str(file)):
        workdir, key = tmp_path / Path(strategy).stem, "objective.masking.strategy"
        with toy.one_device():
            assert run(["pretrain", f"--config={path}", f"--workdir={workdir}", f"--config.{key}={strategy}"]) == 0
        batches = bert_jax.batches(str(path), workdir, overrides={key: strategy})
        special = [*batches.tokenizer.special_ids]
        whole, labels = [], []
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


# ---- Optimizers and schedules by path --------------------------------------------------------------------------------


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Return a recipe of 6 steps, whose matrices 8 devices divide."""
    config = toy.recipe(
        toy.write_text(tmp_path / "text.txt", documents=40),
        objective={"name": "mlm", "arrangement": "sentences", "packing": "packed"},
        model={"hidden_size": 32, "num_layers": 1, "num_heads": 2, "mlp_dim": 128, "max_length": 32},
        optimizer={"name": "adamw", "bias_correction": "standard"},
        phases={"phase1": {"num_steps": 6, "batch_size": 8, "max_length": 32}},
        schedule={"name": "linear", "warmup_steps": 2},
        training={"log_every_steps": 1, "eval_every_steps": 6, "eval_rows": 8, "loggers": ()},
        checkpoints={"every_steps": 3},
        examples=(),
        export=False,
    )
    return toy.write_recipe(tmp_path / "recipe.json", config)


def write(folder: Path, name: str, code: str) -> Path:
    (folder / name).write_text(code)
    return folder / name


def curves(recipe: Path, workdir: Path, *flags: str) -> dict[str, np.ndarray]:
    """Run the command; return the curves of the run."""
    assert run(["pretrain", f"--config={recipe}", f"--workdir={workdir}", *flags]) == 0
    lines = [line for line in gang.records(workdir) if line["split"] == "train"]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    return {name: np.array([line[name] for line in lines]) for name in ("loss", "gradient_norm", "learning_rate")}


def test_adam_of_optax_in_a_file_of_ones_own_has_the_curve_of_adamw(recipe: Path, tmp_path: Path) -> None:
    with toy.one_device():
        theirs = curves(recipe, tmp_path / "adamw")
        ours = curves(recipe, tmp_path / "own", f"--config.optimizer.name={write(tmp_path, 'adam.py', ADAM)}")
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)


def test_two_rules_by_path_on_every_layout_and_resumed(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules, root = write(tmp_path, "two_rules.py", RULES["optimizers"]), write(tmp_path, "root.py", RULES["schedules"])
    flags = [f"--config.optimizer.name={rules}", f"--config.schedule.name={root}"]
    with toy.one_device():
        one = curves(recipe, tmp_path / "one", *flags)
    np.testing.assert_allclose(one["learning_rate"], 1e-3 * np.sqrt(2) / np.sqrt([np.inf, 8, 2, 3, 4, 5]), rtol=1e-6)
    for update in ("replicated", "sharded"):
        found = curves(recipe, tmp_path / update, *flags, f"--config.mesh.weight_update={update}")
        for name, values in one.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, err_msg=f"{update}: {name}")
    assert "divide no axis" not in capsys.readouterr().err
    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "sharded", cut)
    shutil.rmtree(cut / "checkpoints" / "6")
    curves(recipe, cut, *flags)
    params = [jax.tree.leaves(read_params(str(workdir))[0]) for workdir in (tmp_path / "sharded", cut)]
    for unbroken, resumed in zip(*params, strict=True):
        np.testing.assert_array_equal(unbroken, resumed)
    rules.write_text(RULES["optimizers"] + "# another\n")
    assert run(["pretrain", f"--config={recipe}", f"--workdir={cut}", *flags]) == 2
    assert "config.optimizer.name: 'two_rules.py@" in capsys.readouterr().err


# ---- A phase with another objective, by path -------------------------------------------------------------------------


def test_a_phase_with_another_objective(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The objective is cut in its phase and in the next phase. What is left is the model of the last phase."""
    assert len(AHEAD.strip().splitlines()) <= 40
    own = tmp_path / "ahead.py"
    own.write_text(AHEAD)
    recipe = gang.make_inputs(tmp_path, 40, checkpoints={"every_steps": 10, "keep": 100}, export=True)
    phase = {"num_steps": 40, "batch_size": 8, "max_length": 32}
    flags = [
        f"--config.phases={ {'phase1': phase, 'phase2': phase} }",
        f"--config.phases.phase1.objective.name={own}",
        "--config.objective.name=mlm",
        "--config.examples=('the [MASK] sees the river.',)",
    ]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gang.train(recipe, whole, *flags)
    for step in (17, 57):
        gang.break_off(recipe, cut, step, *flags)
    assert gang.train(recipe, cut, *flags) == gang.records(whole)
    gang.assert_same_model(cut, whole)

    found = {split: [r for r in gang.records(cut) if r["split"] == split] for split in ("train", "eval")}
    for record in found["train"]:
        assert ("ahead_loss" in record, "mlm_loss" in record) == (
            (True, False) if record["step"] <= 40 else (False, True)
        )
    assert all("mlm_loss" in record and "lm_loss" not in record for record in found["eval"])
    at_change, at_end = (read_params(str(cut), step)[0] for step in (40, 80))
    assert at_change.keys() == {"encoder", "mlm_head", "ahead_head"}
    jax.tree.map(np.testing.assert_array_equal, at_end["ahead_head"], at_change["ahead_head"])

    trained = bert_jax.load(str(cut))
    assert trained.params.keys() == {"encoder", "mlm_head"}
    assert not trained.config.causal
    capsys.readouterr()
    for model in (f"--workdir={cut}", f"--workdir={cut / 'hugging_face'}"):
        assert run(["fill-mask", model, "the [MASK] sees the river."]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :], "what a run fills is what its export fills"
    assert json.loads((cut / "hugging_face" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    own.write_text(AHEAD + "\n# another\n")
    assert run(["pretrain", f"--config={recipe}", f"--workdir={cut}", *flags]) == 2
    assert "config.phases.phase1.objective.name: 'ahead.py@" in capsys.readouterr().err


def test_two_tasks_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An objective beside masked language modelling, cut: each has its batches, metrics and held-out rows."""
    own = tmp_path / "ahead.py"
    own.write_text(AHEAD)
    recipe = gang.make_inputs(tmp_path, 60, checkpoints={"every_steps": 10})
    members = {"masked": {"name": "mlm"}, "ours": {"name": str(own), "share": 0.5}}
    flags = [f"--config.objective={{'packing': 'packed', 'arrangement': 'sentences', 'members': {members}}}"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gang.train(recipe, whole, *flags)
    gang.break_off(recipe, cut, 37, *flags)
    assert gang.train(recipe, cut, *flags) == gang.records(whole)
    gang.assert_same_model(cut, whole)

    train = [record for record in gang.records(cut) if record["split"] == "train"]
    ahead = [record for record in train if "ahead_loss" in record]
    assert all(("mlm_loss" in record) != ("ahead_loss" in record) for record in train)
    assert 10 <= len(ahead) <= 30, "a third of the batches"
    first, *_, last = (record for record in gang.records(cut) if record["split"] == "eval")
    for name in ("mlm_loss/masked", "lm_loss/ours", "ahead_loss/ours", "mlm_loss", "ahead_loss"):
        assert last[name] < first[name], name
    assert "mlm_loss/ours" not in last
    assert bert_jax.load(str(cut)).params.keys() == {"encoder", "mlm_head", "ahead_head"}
    recorded = json.loads((cut / "run.json").read_text())["config"]["objective"]["members"]["ours"]["name"]
    assert recorded.startswith("ahead.py@")
    assert run(["fill-mask", f"--workdir={cut}", "the [MASK] sees the river."]) == 0
