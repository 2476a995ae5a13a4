"""The table of the family: equal tokens, a grid that goes on after a stop, and the table that given results make."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from bert_jax.experiments.nouns import Cell
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from tests.benchmarks.family import __main__ as family
from tests.benchmarks.family import facts, inputs, processor
from tests.benchmarks.family.rows import BATCH, CONTROL, LENGTH, ROWS, SHAPE, STAGES, STEPS

KNOWN = {"parameters": 934_144, "flops": 3.1e6, "reads": "both sides", "terms": ["mlm"], "fills": True, "writes": False}


@pytest.mark.parametrize("name", ROWS)
def test_every_system_has_the_same_width_layers_and_positions(name: str) -> None:
    settings = PretrainingSettings.of({**ROWS[name].config, "vocab": {"size": 4_096}, "corpus": {"path": "corpus"}})
    model, phases = settings.architecture.config, settings.experiment.phases.phases
    assert (model.hidden_size, model.num_layers) == (SHAPE["hidden_size"], SHAPE["num_layers"])
    assert sum(phase.num_steps * phase.batch_size * phase.max_length for phase in phases) == STEPS * BATCH * LENGTH


def test_no_task_of_ernie2_gets_more_steps_than_another() -> None:
    assert len({sum(steps) for _, steps in STAGES.values()}) == 1


def scored(high: str = "gpt") -> Callable[[Cell, str], Mapping[str, float]]:
    """Return a training that takes no time; the row ``high`` gets the highest scores."""

    def train(cell: Cell, workdir: str) -> Mapping[str, float]:
        origin = cell.overrides.get("origin", cell.overrides)
        noise = origin["seed"] / 100
        if "task" in cell.overrides:
            baselines = {"majority_rate": 0.5}
            (Path(workdir) / "baselines.json").write_text(json.dumps(baselines))
            return dict.fromkeys(("accuracy", "f1"), noise + {CONTROL: 0.5, high: 0.8}.get(origin["row"], 0.502))
        (Path(workdir) / facts.FILE).write_text(json.dumps(KNOWN))
        (Path(workdir) / processor.FILE).write_text("0.128")
        return {"mlm_loss": 5.0 + noise}

    return train


def test_a_stopped_table_goes_on_and_computes_no_cell_twice(tmp_path: Path) -> None:
    cells, ran = family.cells_of([CONTROL, "bert", "gpt"], (0, 1)), Counter[str]()

    def train(cell: Cell, workdir: str) -> Mapping[str, float]:
        if len(ran) == 5 and cell.name not in ran:
            ran[cell.name] = 0
            raise KeyboardInterrupt
        ran[cell.name] += 1
        return scored()(cell, workdir)

    with pytest.raises(KeyboardInterrupt):
        family.run(tmp_path, cells, train)
    assert "GPT" not in (tmp_path / "table.md").read_text()
    family.run(tmp_path, cells, train)
    family.run(tmp_path, cells, train)
    assert ran == dict.fromkeys((cell.name for cell in cells), 1)


def test_each_row_has_a_seed_before_any_row_has_the_next() -> None:
    names = [cell.name for cell in family.cells_of([CONTROL, "bert"], (0, 1))]
    assert names[:5] == [
        "none-sst2-seed0",
        "none-conll2003-seed0",
        "bert-seed0",
        "bert-sst2-seed0",
        "bert-conll2003-seed0",
    ]
    assert all(name.endswith("-seed1") for name in names[5:])


def test_the_table_has_facts_and_says_which_scores_are_above_the_control(tmp_path: Path) -> None:
    family.run(tmp_path, family.cells_of([CONTROL, "bert", "gpt"], (0, 1, 2)), scored())
    text = (tmp_path / "table.md").read_text()
    lines = {line.split(" | ")[0].lstrip("| "): line for line in text.splitlines() if line.startswith("| ")}
    score = "0.512 ± 0.010"
    assert lines["BERT"].endswith(f"mlm 5.010 | {score} | {score} |")
    assert lines["GPT"].endswith("0.810 ± 0.010 + | 0.810 ± 0.010 + |")
    assert "| 0.93 M | 3.1 | 16,000 | fills | fine-tuned |" in lines["BERT"]
    assert "majority rate 0.500" in text
    assert "Left to right" not in (tmp_path / "picture.svg").read_text()
    assert json.loads((tmp_path / "table.json").read_text())["metrics"]["gpt-seed2"] == {"mlm_loss": 5.02}


def test_an_unknown_row_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert family.main([f"--output={tmp_path}", "--only=bert,gtp"]) == 2
    assert capsys.readouterr().err.startswith("error: --only has gtp; there are none, bert, ltr")


def test_phrases_stand_together_and_names_are_not_where_sentences_begin() -> None:
    texts = ["the old house and the cat of course saw the dog of course. The end. Then Mary Smith came, Mary Smith ran"]
    assert inputs.phrases(texts)[0] == "of course"
    assert inputs.names(["When she met Mary Smith. Then he, Paul, saw Mary Smith."]) == ["Mary Smith", "Paul"]


def test_processor_seconds_are_of_steps_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.0, 100.0, 102.0])
    monkeypatch.setattr(processor.time, "process_time", lambda: next(times))
    logger = processor.Logger()
    logger.start(processor.RunFacts("id", "name", str(tmp_path), {}))
    for step, split in ((10, "train"), (20, "train"), (20, "eval"), (30, "train"), (40, "train")):
        logger.log(step, split, 0.0, {})
    assert json.loads((tmp_path / processor.FILE).read_text()) == pytest.approx(0.2)
