"""An objective whose ``inputs`` adds features: what it reads is in the batch, and whole batches stay whole."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import base
from bert_jax.objectives.base import MLM, Setting, Term
from bert_jax.objectives.reading import of_other_rows, read_by
from bert_jax.parts import catalogue
from bert_jax.recipes.architecture import Architecture
from bert_jax.records import Batch, Feature, Sum
from bert_jax.runs.baselines import write_baselines
from bert_jax.runs.pretraining import Pretraining
from bert_jax.task import Variables
from tests import toy
from tests.objectives.texts import settings_of, write_own

PAGE = Path(base.__file__).with_name("README.md").read_text(encoding="utf-8")
[WEIGHTED] = re.findall(
    r"^```python\n(\"\"\"Masked language modelling in which a word.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)
[LETTERS] = re.findall(
    r"^```python\n(\"\"\"Masked language modelling, and the first letter.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)
SPEC = {"masked_labels": Feature((4,), "int32"), "masked_weights": Feature((4,), "float32")}


def write(folder: Path, code: str) -> list[str]:
    """Write ``rare.py`` and a tiny recipe that names it; return the command that pretrains."""
    return ["pretrain", f"--config={write_own(folder, 'rare', code)}", f"--workdir={folder / 'run'}"]


def test_what_inputs_reads_is_in_the_batch_and_whole_batches_are_not_cut(
    tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    start = write(tmp_path, WEIGHTED)
    task: Any = Pretraining(settings_of(tmp_path / "own.py")).task
    assert all("masked_weights" in spec for spec in task.batch_specs.values())
    labels, weights = jnp.array([[5, 7], [5, 0]]), jnp.array([[1.0, 1.0], [1.0, 0.0]])
    rare = task.inputs({"masked_labels": labels, "masked_weights": weights})["rare_weights"]
    assert rare == pytest.approx(np.array([[2**-0.5, 1.0], [2**-0.5, 0.0]]))
    capsys.readouterr()
    assert run([*start, "--config.training.micro_batches=2"]) == 2
    assert "config.training.micro_batches is 2, and objective 'rare.py@" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1
    (tmp_path / "rare.py").write_text(WEIGHTED.replace('batch["masked_weights"]', 'batch["weights"]'))
    assert run(start) == 2
    assert "needs weights, which the arrangement 'sentences' does not have" in capsys.readouterr().err


def test_the_weighted_objective_of_the_page_is_short_and_trains(
    tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len([line for line in WEIGHTED.splitlines() if line.strip()]) <= 24
    assert run([*write(tmp_path, WEIGHTED), "--config.objective.alpha=1.0"]) == 0
    shown = capsys.readouterr().err
    [beaten] = [line for line in shown.splitlines() if line.startswith("to beat on the held-out rows: ")]
    assert "rare" not in beaten
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, last = (line for line in lines if line["split"] == "eval")
    assert last["rare_loss"] < first["rare_loss"]
    assert last["perplexity"] == pytest.approx(np.exp(last["mlm_loss"]))
    assert last["mlm_loss"] != last["rare_loss"]
    trained = next(line for line in lines if line["split"] == "train")
    assert trained["loss"] == pytest.approx(trained["rare_loss"], rel=1e-3)  # the other has no weight


def test_the_letters_of_the_page_are_learned(
    tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write(tmp_path, LETTERS)) == 0
    assert "letter majority rate" in capsys.readouterr().err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, last = (line for line in lines if line["split"] == "eval")
    assert last["letter_loss"] < first["letter_loss"]
    task: Any = bert_jax.batches(str(tmp_path / "own.py"), str(tmp_path / "run")).task
    pieces = jnp.array([[task.pieces.index(piece) for piece in ("##s", "river", ".")]])
    labels = task.inputs({"masked_labels": pieces})["letter_labels"]
    assert labels.tolist() == [["abcdefghijklmnopqrstuvwxyz".index("s"), "abcdefghijklmnopqrstuvwxyz".index("r"), 26]]


@pytest.mark.parametrize("derives", [False, True])
def test_what_a_forward_of_ones_own_reads_is_in_the_batch(derives: bool) -> None:
    """Even what it could do without, such as the positions that a teacher's pooler reads."""

    class Objective(base.PretrainingObjective):
        parts, derived = (LM_HEAD,), ("own",) if derives else ()

        def terms(self, config: Any) -> dict[str, Term]:
            return {"mlm": MLM}

        def inputs(self, batch: Batch) -> Batch:
            return {**batch, "own": batch["next_sentence_labels"]} if derives else batch

        def forward(self, variables: Variables, batch: Batch, rng: Any) -> dict[str, jax.Array]:
            assert "own" in batch or not derives
            positions = batch.get("cls_positions")
            return {**super().forward(variables, batch, rng), "places": positions}  # type: ignore[dict-item]

    model = Architecture.of(toy.recipe(Path("unread"))["model"], 64).config
    spec = Objective(base.Config(), Setting(model, {"phase1": 32})).batch_specs["phase1"]
    assert "cls_positions" in spec
    assert ("next_sentence_labels" in spec) is derives
    assert "own" not in spec


def test_perplexity_is_that_of_a_term_over_the_vocabulary(tmp_path: Path, one_device: None) -> None:
    alone = LETTERS.replace('{"mlm": base.MLM, "letter": ', '{"letter": ').replace(
        '"masked_weights", 0.5)', '"masked_weights")'
    )
    for code, has_perplexity in ((alone, False), (LETTERS, True)):
        write(tmp_path, code)
        task: Any = Pretraining(settings_of(tmp_path / "own.py")).task
        sums = {name: Sum(1.0, 1.0) for name in ("letter_loss", "mlm_loss")}
        assert ("perplexity" in task.summary(sums)) is has_perplexity


@pytest.mark.parametrize(
    ("baseline", "beaten"), [("none", False), ("majority", True)], ids=["nothing to beat", "weighted labels"]
)
def test_baselines_of_derived_weights(baseline: str, beaten: bool, tmp_path: Path, one_device: None) -> None:
    code = WEIGHTED.replace('"none"', repr(baseline)).replace('{"mlm": base.MLM._replace(weight=0.0), "rare"', '{"mlm"')
    write(tmp_path, code)
    batches = bert_jax.batches(str(tmp_path / "own.py"), str(tmp_path / "run"))
    task: Any = batches.task
    batch = next(iter(batches))
    weights = np.asarray(jax.jit(task.inputs)(batch)["rare_weights"])
    labels, masked = batch["masked_labels"], batch["masked_weights"]
    counts = np.bincount(labels.ravel(), masked.ravel(), task.vocab_size)
    np.testing.assert_allclose(weights, masked * np.maximum(counts[labels], 1) ** -0.5, rtol=1e-6)
    if beaten:
        np.testing.assert_allclose(task.label_counts(batch)["mlm"], np.sqrt(counts), rtol=1e-5)
    settings = settings_of(tmp_path / "own.py")
    notes: list[str] = []
    write_baselines(task, settings.experiment, str(tmp_path / "run"), "", "corpus", notes.append)
    assert [note.partition(" 0.")[0] for note in notes] == ["to beat on the held-out rows: mlm majority rate"] * beaten


@pytest.mark.parametrize("copied", [True, False])
def test_reads_are_found_through_copies_and_not_of_what_is_added(copied: bool) -> None:
    def inputs(batch: Batch) -> Batch:
        rows: Any = dict(batch) if copied else batch
        rows["twice"] = 2 * rows["masked_weights"]
        rows["four"] = 2 * rows["twice"]
        return rows

    assert read_by(inputs, SPEC) == {"masked_weights"}


def test_a_missing_name_of_another_mapping_ends_the_search() -> None:
    assert read_by(lambda batch: {**batch, "x": {}["masked_weights"]}, SPEC) == {"masked_weights"}
    assert read_by(lambda batch: {**batch, "x": {}["y"]}, SPEC) == set()


def test_features_that_depend_on_other_rows_are_found() -> None:
    def inputs(batch: Batch) -> Batch:
        labels, weights = batch["masked_labels"], batch["masked_weights"]
        share = weights / jnp.sum(weights)
        return {**batch, "own": weights * (labels > 1), "share": share, "count": jnp.zeros(9).at[labels].add(1)[labels]}

    assert sorted(of_other_rows(inputs, SPEC, ("own", "share", "count"))) == ["count", "share"]
    module = catalogue.find("objectives", "span_boundary", having="Objective")
    model = Architecture.of(toy.recipe(Path("unread"))["model"], 64).config
    task = module.Objective(module.Config(), Setting(model, {"phase1": 32}))
    assert of_other_rows(task.inputs, task.batch_specs["phase1"], task.derived) == []


def test_rows_that_depend_on_others_need_whole_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On eight devices, and in parts on one."""
    start = write(tmp_path, WEIGHTED.replace('("rare_weights",), True', '("rare_weights",), False'))
    settings = settings_of(tmp_path / "own.py")
    one = jax.devices()[:1]
    Pretraining(settings, devices=one)
    parts = dataclasses.replace(settings.training, micro_batches=2)
    with pytest.raises(UserError, match="computes rare_weights of a row from other rows.* set whole_batches = True"):
        Pretraining(dataclasses.replace(settings, training=parts), devices=one)
    assert run(start) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "run" / "corpus").exists()
    of_phase = [*write(tmp_path, WEIGHTED), "--config.phases.phase1.micro_batches=8"]
    assert run(["plan", of_phase[1], "--topology=cpu:1", of_phase[3]]) == 2
    assert "config.phases.phase1.micro_batches is 8, and objective" in capsys.readouterr().err
