"""Texts that are written: rows of every way to write, masks, scores, baselines, and a run that learns to reverse."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.architectures import HeadClass, has_class, of_facts
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.interchange.workdir import _not_said
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import bert, gpt2, seq2seq
from bert_jax.models.model import config_facts
from bert_jax.recipes import recipes
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.tasks.base import Setting
from bert_jax.tasks.metrics.generated import generated_metrics, of_each
from bert_jax.tasks.text_generation import Config, Task
from bert_jax.text.tokenizer import load
from tests.tasks import toy_tasks
from tests.text import gpt_files

EXAMPLES = [
    {"id": "a", "text": "the film was seen", "target": "seen by many people in town"},
    {"id": "b", "text": "a town", "target": "town"},
]


def made(**config: Any) -> Any:
    model = {"attention": config.pop("attention", "bidirectional"), "type_vocab_size": config.pop("types", 2)}
    return toy_tasks.make_task("text_generation", {"train": EXAMPLES, "dev": EXAMPLES}, 24, config, **model)


def decoding(**config: Any) -> Any:
    """The task on an encoder with a decoder."""
    task = made(**config)
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "mlp_dim": 64, "max_length": 32}
    model = seq2seq.Config(task.setting.tokenizer.size, **sizes, num_decoder_layers=1)
    return Task(task.config, dataclasses.replace(task.setting, model=model))


def rows_of(task: Any, split: str = "train") -> dict[str, np.ndarray]:
    rows: dict[str, np.ndarray] = task.rows[split].take(np.arange(2), 16)
    return rows


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_each_token_of_a_target_and_its_end_are_predicted(attention: str) -> None:
    """From the token before it, or, by a [MASK], at its place."""
    task = made(attention=attention, max_target_length=4)
    rows, tokenizer = rows_of(task), task.setting.tokenizer
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    for row, example in enumerate(EXAMPLES):
        source, target = (tokenizer.encode_batch([example[role]])[0].tolist() for role in ("text", "target"))
        target = [*target[:4], sep]
        whole = [cls, *source, sep, *target]
        assert rows["input_ids"][row, : len(whole)].tolist() == whole
        assert rows["source_lengths"][row] == len(source) + 2
        real = rows["target_weights"][row] > 0
        assert rows["masked_labels"][row][real].tolist() == target
        first = len(source) + 2 - (attention == "causal")
        assert rows["masked_positions"][row][real].tolist() == [first + i for i in range(len(target))]
    assert [note.split()[1] for note in task.notes] == ["1", "1"]  # target of each split that was cut


def test_token_types_of_a_target_are_unilms_if_the_model_has_them() -> None:
    for types, expected in ((2, (0, 1)), (6, (4, 5))):
        rows = rows_of(made(types=types))
        assert [rows["token_type_ids"][0, 0], rows["token_type_ids"][0, rows["source_lengths"][0]]] == list(expected)


def test_masks_are_a_share_of_the_target_alone_and_are_drawn_anew() -> None:
    """70 % of 7 tokens are 5, of 2 tokens 1; 80 % of them become [MASK], by a z-test."""
    task, rng = made(), RowRng.create(0, 1, np.arange(2000))
    rows = {name: np.repeat(x, 1000, axis=0) for name, x in rows_of(task).items()}
    masked, weights = jax.jit(task._masked)(rows, rows["target_weights"], rng)
    assert np.array_equal(weights.sum(1), np.repeat([5, 1], 1000))
    ids, source = np.asarray(masked["input_ids"]), np.arange(16) < rows["source_lengths"][:, None]
    assert np.array_equal(ids[source], rows["input_ids"][source])
    at = np.take_along_axis(ids, rows["masked_positions"], axis=1)
    share = (at[np.asarray(weights) > 0] == task.setting.tokenizer.mask_id).mean()
    assert abs(share - 0.8) < 4 * np.sqrt(0.8 * 0.2 / 6000)
    kept = (np.asarray(weights) == 0) & (rows["target_weights"] > 0)
    assert np.array_equal(at[kept], rows["masked_labels"][kept])
    chosen = np.asarray(weights[:1000]).mean(0)
    assert np.all(np.abs(chosen[:7] - 5 / 7) < 0.07)  # each token, the last [SEP] too
    order = np.asarray(masked["order_ids"])[0]
    assert np.array_equal(order, np.maximum(np.arange(16) - rows["source_lengths"][0] + 1, 0))


def test_a_decoder_reads_the_target_behind_its_first_token() -> None:
    task = decoding()
    rows, tokenizer = rows_of(task), task.setting.tokenizer
    for row, example in enumerate(EXAMPLES):
        source, target = (tokenizer.encode_batch([example[role]])[0].tolist() for role in ("text", "target"))
        whole = [tokenizer.cls_id, *source, tokenizer.sep_id]
        assert rows["input_ids"][row, : len(whole)].tolist() == whole
        real = rows["decoder_sequence_ids"][row] > 0
        assert rows["decoder_input_ids"][row][real].tolist() == [tokenizer.cls_id, *target]
        assert rows["masked_labels"][row][real].tolist() == [*target, tokenizer.sep_id]
        assert rows["masked_positions"][row][real].tolist() == list(range(len(target) + 1))


def test_a_gpt_goes_on_after_its_end_token(tmp_path: Path) -> None:
    """Its tokenizer has neither [CLS] nor [SEP]; GPT-1's has no token that ends a text, and is refused."""
    config, splits = Config(max_target_length=8), {"train": tuple(EXAMPLES)}
    for name, files in (("GPT2Tokenizer", gpt_files.gpt2_files()), ("OpenAIGPTTokenizer", gpt_files.gpt_files())):
        (tmp_path / name).mkdir()
        tokenizer = load(str(gpt_files.write(tmp_path / name, files, tokenizer_class=name)))
        model = gpt2.Config(tokenizer.size, 32, 1, 2, 64, max_length=64)
        setting = Setting(splits, tokenizer, model, (), 64, 2)
        if name == "OpenAIGPTTokenizer":
            with pytest.raises(UserError, match="the tokenizer has no token that ends a text"):
                Task(config, setting)
            continue
        rows, [end] = Task(config, setting).rows["train"].take(np.arange(2), 64), tokenizer.around[1]
        source, target = (tokenizer.encode_batch([EXAMPLES[1][role]])[0].tolist() for role in ("text", "target"))
        whole = [*source, end, *target[:8], end]
        assert rows["input_ids"][1, : len(whole)].tolist() == whole
        assert rows["masked_positions"][1, 0] == len(source)


@pytest.mark.parametrize("way", [pytest.param("causal", marks=pytest.mark.heavy), "bidirectional", "decoder"])
def test_a_target_does_not_change_what_is_written(way: str) -> None:
    """Only the source is read: other targets, and none, give the same text."""
    task = decoding() if way == "decoder" else made(attention=way)
    variables = jax.jit(task.init)(jax.random.key(3))
    rows = rows_of(task)
    others = task.encode("dev", [{"id": e["id"], "text": e["text"]} for e in EXAMPLES]).take(np.arange(2), 16)
    outputs = jax.jit(task.outputs)
    written = [np.asarray(outputs(variables, batch)["written"]) for batch in (rows, others)]
    assert np.array_equal(*written)
    assert (written[0] >= 0).any()


def test_a_target_may_repeat_its_source() -> None:
    """What no_repeat_ngram forbids within a target is allowed between source and target."""
    task = made(attention="causal", no_repeat_ngram=1)
    ids, length = task.stepper.history({"input_ids": jnp.ones((2, 5), jnp.int32), "attention_mask": jnp.ones((2, 5))})
    assert ids.shape == (2, 0)
    assert not length.any()


def test_scores_are_those_of_the_libraries() -> None:
    references = ["the cat sat on the mat today", "今天天气很好"]
    texts = ["the cat sat on a mat", "今天天气不好"]
    found = generated_metrics(["rouge_l", "rouge_2", "bleu", "exact_match"], references[:1], texts[:1])
    assert found["rouge_l"] == pytest.approx(100 * 2 * 5 / 13)
    assert found["rouge_2"] == pytest.approx(100 * 2 * 3 / 11)
    assert found["exact_match"] == 0
    assert 0 < found["bleu"] < 60
    assert of_each("rouge_l", references[1:], texts[1:])[0] == pytest.approx(100 * 5 / 6)
    assert generated_metrics(["bleu"], references[1:], texts[1:])["bleu"] > 30  # by ideographs
    assert generated_metrics(["bleu", "chrf"], references, references)["chrf"] == pytest.approx(100)


def test_baselines_copy_the_source_and_its_first_sentence() -> None:
    examples = [{"id": "a", "text": "A film was seen. It was dull.", "target": "A film was seen."}]
    task = toy_tasks.make_task("text_generation", {"train": examples, "dev": examples})
    found = task.guess()
    assert found["rouge_l_of_first_sentences"] == pytest.approx(100)
    assert found["rouge_l_of_copies"] == pytest.approx(100 * 2 * 4 / 11)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_target_length": 21}, "max_length is 24 and config.task.max_target_length 21; at least 5 tokens more"),
        ({"max_target_length": 0}, "config.task.max_target_length is 0; at least 1 is needed"),
        ({"masked_share": 0.0}, "config.task.masked_share is 0.0; more than 0 and at most 1"),
        ({"metrics": ("meteor",)}, "unknown metric in config.task.metrics: 'meteor'"),
        (
            {"num_beams": 5000},
            "config.task.num_beams is 5,000, and the vocabulary has 118 pieces; give",
        ),
        ({"metrics": ()}, "config.task.metrics is empty; name at least one of rouge_l"),
    ],
)
def test_bad_keys(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        made(**config)


@pytest.mark.parametrize("target", [" ", "\u200b\ufeff", "\u3164\t"])
def test_an_empty_target(target: str) -> None:
    """A text that shows nothing is empty."""
    splits = {"train": [EXAMPLES[0], {**EXAMPLES[1], "target": target}]}
    with pytest.raises(UserError, match=r"1 targets are empty \(b\); write them, or leave the examples out"):
        toy_tasks.make_task("text_generation", splits)


def test_the_class_of_a_model_that_learned_to_write() -> None:
    """A GPT is its family's LMHeadModel; a BERT that writes by masks has no class. A GPT that is read has no task."""
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "mlp_dim": 32}
    for config, name in ((gpt2.Config(40, **sizes), "GPT2LMHeadModel"), (bert.Config(40, **sizes), "BertModel")):
        facts = {"model": config_facts(config), "task": {"name": "text_generation"}}
        assert of_facts(facts).architecture == name
        assert has_class(config, "LMHeadModel") == (name != "BertModel")
    assert HeadClass("GPT2LMHeadModel").task is None


def test_the_export_of_a_model_says_if_its_files_do_not_say_how_it_writes() -> None:
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "mlp_dim": 32}
    both, gpt = bert.Config(40, **sizes), gpt2.Config(40, **sizes)
    by_masks, task = {"writes": ["mask at the end"]}, {"task": {"name": "text_generation"}}
    for config, head, facts, said in (
        (both, "BertForMaskedLM", by_masks, True),
        (both, "BertModel", by_masks, False),
        (both, "BertForMaskedLM", {}, False),
        (gpt, "GPT2LMHeadModel", {"writes": ["left to right"]}, False),
        (gpt, "GPT2LMHeadModel", by_masks | task, True),
    ):
        model = TrainedModel("W", {}, config, None, HeadClass(head), facts)  # type: ignore[arg-type]
        assert bool(_not_said(model, "W")) == said


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("learns", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_a_run_learns_to_reverse(learns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From zero, with UniLM's masks: far above a copy of the source; predicted and scored by the commands."""
    config = toy_tasks.recipe("text_generation")
    config["task"] |= {"max_target_length": 5, "metrics": ("exact_match", "rouge_l")}
    config["model"] |= {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "mlp_dim": 128, "type_vocab_size": 6}
    config["phases"]["train"] |= {"num_epochs": 4 if learns else 1, "batch_size": 32, "max_length": 16}
    config["training"]["evaluations_per_epoch"] = 1
    (tmp_path / "recipe.json").write_text(json.dumps(config))
    for name, number in (("train", 1500 if learns else 32), ("dev", 48)):
        examples = toy_tasks.examples("text_generation", number, len(name))
        toy_tasks.write_examples(tmp_path / f"{name}.jsonl", examples)
    assert toy_tasks.finetune(tmp_path) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    found = results["metrics"]["dev"]
    assert {"exact_match", "rouge_l", "loss"} <= found.keys()
    assert found["exact_match"] > 60 if learns else 0 <= found["rouge_l"] <= 100
    assert "Texts unlike their targets" in (tmp_path / "run" / "report.html").read_text()
    capsys.readouterr()
    assert run(["predict", f"--workdir={tmp_path / 'run'}", "the film was seen"]) == 0
    [record] = map(json.loads, capsys.readouterr().out.splitlines())
    assert record["prediction"] == "seen was film the" if learns else isinstance(record["prediction"], str)


@pytest.mark.parametrize("recipe", ["summarization", "summarization:titles", "translation"])
def test_recipes_load(recipe: str) -> None:
    settings = FinetuningSettings.of(recipes.load(recipe).to_dict())
    assert settings.each[""].data.columns == {"text": "text", "target": "target"}


def test_the_first_line_of_a_file_is_its_target(tmp_path: Path) -> None:
    from tests.examples.test_readers import records

    (tmp_path / "news").mkdir()
    (tmp_path / "news" / "1.txt").write_text("A title\n\nThe text.\nMore.\n")
    [record] = records(tmp_path, "text_folders", first_line="target")
    assert (record["target"], record["text"]) == ("A title", "The text.\nMore.")
