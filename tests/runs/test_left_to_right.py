"""A run that reads from left to right stays so: in its export, in what is made of that, and in fine-tuning."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.cli.main import run
from bert_jax.models.model import Model, config_of
from tests import toy
from tests.tasks import toy_tasks


def tune(folder: Path, task: str, init: Path, code: int = 0) -> Path:
    """Fine-tune ``init`` on a toy task; return the workdir."""
    data, workdir = folder / f"{task}_data", folder / task
    data.mkdir()
    toy_tasks.write_toy(data, task, train=16, dev=8)
    recipe = toy_tasks.recipe(task)
    recipe |= {"vocab": {}, "model": {}, "export": True}
    path = toy.write_recipe(folder / f"{task}.json", recipe)
    assert run(["finetune", f"--config={path}", f"--data={data}", f"--init={init}", f"--workdir={workdir}"]) == code
    return workdir


def test_left_to_right_stays_but_for_an_objective_that_reads_both_sides(
    tmp_path: Path, one_device: None, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = toy.recipe(
        toy.write_text(tmp_path / "text.txt"),
        objective={"name": "ltr"},
        phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": 32}},
        schedule={"warmup_steps": 1},
        training={"log_every_steps": 2, "eval_every_steps": 4, "eval_rows": 8, "loggers": ()},
    )
    first, path = tmp_path / "run", toy.write_recipe(tmp_path / "recipe.json", recipe)
    assert run(["pretrain", f"--config={path}", f"--workdir={first}"]) == 0
    described = json.loads((first / "hugging_face" / "config.json").read_text())
    assert (described["architectures"], described["is_decoder"]) == (["BertLMHeadModel"], True)

    examples = json.loads((first / "examples.json").read_text())
    assert examples
    for example in examples:  # a held-out sentence in two halves, and what the model writes after the first
        assert [*example] == ["text", "continuation", "answer"]
        assert f"{example['text']} {example['answer']}" in (tmp_path / "text.txt").read_text()
    said = capsys.readouterr().err
    assert "the model goes on with held-out text:" in said
    assert f"generate --workdir={first} '{examples[0]['text']}'" in said
    assert "Going on with a text" in (first / "report.html").read_text()

    assert bert_jax.load(str(first)).facts["writes"] == ["left to right"]
    models = [bert_jax.load(str(folder)) for folder in (first, first / "hugging_face")]
    written, exported = (model.generate(["the cat sees"], max_new_tokens=3) for model in models)
    assert written == exported
    for model in models:
        rows = [model.tokenizer.encode(f"the cat sees {word}").input_ids[:5] for word in ("the", "a")]
        ids = np.array(rows, np.int32)
        batch = {"input_ids": ids, "attention_mask": 0 * ids + 1, "token_type_ids": 0 * ids}
        variables = {"params": {"encoder": model.params["encoder"]}}
        vectors = jax.jit(Model(model.config, ()).apply)(variables, batch)["sequence"]
        np.testing.assert_array_equal(vectors[0, :4], vectors[1, :4])  # [CLS] the cat sees
        assert np.abs(vectors[0, 4] - vectors[1, 4]).max() > 1e-3

    capsys.readouterr()
    sorted_texts = tune(tmp_path, "classification", first)
    assert "not exported: in a left-to-right model we pool the last token" in capsys.readouterr().err
    assert bert_jax.load(str(sorted_texts)).config.causal

    assert run(["fill-mask", f"--workdir={first}", "a [MASK]."]) == 2
    assert "a left-to-right model predicts what follows" in capsys.readouterr().err
    reached = request.getfixturevalue("reached")
    tune(tmp_path, "tagging", first / "hugging_face", code=130)
    path = toy.write_recipe(tmp_path / "back.json", recipe | {"objective": {"name": "mlm"}})
    assert run(["pretrain", f"--config={path}", f"--workdir={tmp_path / 'back'}", f"--init={first}"]) == 130
    assert "from what came before; the objective does from both sides, and so will" in capsys.readouterr().err
    assert [config_of(run.facts["model"]).causal for run in reached] == [True, False]
