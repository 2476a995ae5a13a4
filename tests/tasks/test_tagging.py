"""Token tagging: which piece carries which tag, sentences longer than a row, and a run from end to end."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from bert_jax.checkpoints.restoring import read_params
from bert_jax.cluster.exit_codes import INTERRUPTED
from bert_jax.errors import UserError
from bert_jax.reporting.observer import Observer
from bert_jax.tasks.tagging import Config, Task, windows
from bert_jax.text.tokenizer import of_json
from tests.tasks import toy_tasks
from tests.text.byte_level_files import BYTE_LEVEL, roberta

SENTENCE = {"id": "s", "words": ["the", "smith", "was", "\u200b", "jones"], "tags": ["O", "B-PER", "O", "O", "I-PER"]}


def perfect(task, split):
    """Outputs that are right on every scored position and wrong on all others."""
    rows = task.rows[split]
    batch = rows.take(np.arange(len(rows)), task.lengths["train"])
    wrong = (batch["labels"] + 1) % len(task.setting.labels)
    predicted = np.where(batch["word_ids"] > 0, batch["labels"], wrong)
    return {"predicted": predicted, "confidence": np.full(predicted.shape, 0.5)}


def test_the_first_piece_carries_the_tag():
    task = toy_tasks.make_task("tagging", {"train": [SENTENCE]})
    assert task.setting.labels == ("O", "B-PER", "I-PER")
    batch = task.rows["train"].take(np.array([0]), 32)
    tokenizer = task.setting.tokenizer
    pieces = [tokenizer.encode_batch([word])[0].tolist() or [tokenizer.unk_id] for word in SENTENCE["words"]]
    assert len(pieces[1]) > 1, "a word of several pieces is needed"
    expected = [tokenizer.cls_id, *(piece for word in pieces for piece in word), tokenizer.sep_id]
    assert batch["input_ids"][0, : len(expected)].tolist() == expected
    labels = [0]
    weights = [0]
    for word, tag in zip(pieces, SENTENCE["tags"], strict=True):
        labels += [task.setting.labels.index(tag)] + [0] * (len(word) - 1)
        weights += [1] + [0] * (len(word) - 1)
    assert batch["labels"][0, : len(labels)].tolist() == labels
    assert batch["label_weights"][0].tolist() == weights + [0] * (32 - len(weights))


def test_words_of_a_byte_level_tokenizer_have_spaces_before_them():
    """RoBERTa's tokenizer puts no space before a text; ``tokenizers`` reads words with add_prefix_space=True."""
    spaced = roberta() | {"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}, "truncation": None}
    library = tokenizers.Tokenizer.from_str(json.dumps(spaced))
    setting = toy_tasks.make_task("tagging", {"train": [SENTENCE]}).setting
    for content in (roberta(), spaced):
        task = Task(Config(), dataclasses.replace(setting, tokenizer=of_json(content), max_length=40))
        ids, word_ids = (task.rows["train"].sequences[name] for name in ("input_ids", "word_ids"))
        expected = library.encode(SENTENCE["words"], is_pretokenized=True)
        assert ids.tolist() == expected.ids
        assert "Ġthe" in expected.tokens
        firsts = [expected.word_ids.index(number) for number in range(len(SENTENCE["words"]))]
        assert np.flatnonzero(word_ids).tolist() == firsts


@pytest.mark.parametrize("seed", range(20))
def test_windows_against_their_definition(seed):
    rng = np.random.default_rng(seed)
    capacity, overlap = int(rng.integers(2, 12)), int(rng.integers(0, 9))
    sizes = rng.integers(1, 4, rng.integers(1, 30))
    firsts, length = np.cumsum(sizes) - sizes, int(sizes.sum())
    found = windows(length, firsts, capacity, overlap)
    assert sorted(word for _, words in found for word in words) == list(range(len(sizes)))
    assert found[-1][0] + capacity >= length
    for number, (begin, words) in enumerate(found):
        for word in words:
            first = firsts[word]
            assert begin <= first < begin + capacity
            context = {n: min(first - b, b + capacity - 1 - first) for n, (b, _) in enumerate(found)}
            # The ends of a sentence are no lack of context, but a middle of equal ones may go either way.
            if 0 < number < len(found) - 1:
                assert context[number] >= max(context.values()) - 1


@pytest.mark.parametrize("overlap", [0, 4, 8])
def test_every_word_of_a_long_sentence_is_tagged_in_windows(overlap):
    examples = toy_tasks.examples("tagging", 12)
    task = toy_tasks.make_task("tagging", {"train": examples, "dev": examples}, 10, {"overlap": overlap})
    assert len(task.rows["dev"]) > len(examples)
    assert any("longer than 10 tokens, read in windows" in note for note in task.notes)
    assert task.rows["dev"].sequences["label_weights"].sum() == sum(len(e["words"]) for e in examples)
    outputs = perfect(task, "dev")
    assert task.finish("dev", outputs)["f1"] == 1.0
    records = task.predictions("dev", outputs)
    assert [record["prediction"] for record in records] == [example["tags"] for example in examples]
    assert [record["id"] for record in records] == [example["id"] for example in examples]


def test_words_that_are_cut_count_as_outside():
    words, tags = ["the"] * 12 + ["anna"], ["O"] * 12 + ["B-PER"]
    example = {"id": "long", "words": words, "tags": tags}
    short = {"id": "short", "words": ["anna"], "tags": ["B-PER"]}
    task = toy_tasks.make_task("tagging", {"train": [short], "dev": [example, short]}, 10, {"overflow": "cut"})
    assert task.notes == [
        "dev: 1 of 2 sentences are longer than 10 tokens, cut: 5 words are not trained on and count as O"
    ]
    metrics = task.finish("dev", perfect(task, "dev"))
    assert metrics["recall"] == 0.5
    assert metrics["precision"] == 1.0
    assert metrics["accuracy"] == 13 / 14


def test_sentences_without_tags_weigh_nothing():
    untagged = {"id": "u", "words": ["the", "film"]}
    task = toy_tasks.make_task("tagging", {"train": [SENTENCE], "test": [untagged]})
    assert not task.rows["test"].sequences["label_weights"].any()
    assert not task.has_answers("test")
    [record] = task.predictions("test", perfect(task, "test"))
    assert "label" not in record
    assert len(record["prediction"]) == 2


def test_tags_that_training_has_not():
    other = {"id": "d-7", "words": ["oslo", "rome"], "tags": ["B-LOC", "B-LOC"]}
    with pytest.raises(UserError, match=r"dev has tags that training lacks: 'B-LOC' \(2 times, as in d-7\); training"):
        toy_tasks.make_task("tagging", {"train": [SENTENCE], "dev": [other]})
    listed = ("B-PER", "I-PER", "B-LOC", "O")
    task = toy_tasks.make_task("tagging", {"train": [SENTENCE], "dev": [other]}, config={"labels": listed})
    assert task.setting.labels == ("O", "B-LOC", "B-PER", "I-PER")


def test_tags_that_are_no_entities():
    speech = {"id": "s", "words": ["the", "film"], "tags": ["DT", "NN"]}
    with pytest.raises(UserError, match="'DT'"):
        toy_tasks.make_task("tagging", {"train": [speech]})
    task = toy_tasks.make_task("tagging", {"train": [speech], "dev": [speech]}, config={"metrics": "accuracy"})
    assert task.main_metric == "accuracy"
    assert task.finish("dev", perfect(task, "dev")) == {"accuracy": 1.0}


@pytest.mark.usefixtures("one_device")
def test_a_run_that_was_cut_goes_on_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1}
    phase, schedule = {"num_epochs": 6, "batch_size": 8}, {"peak_learning_rate": 6e-3}
    toy_tasks.write_toy(tmp_path, "tagging", train=96, dev=16, model=model, phase=phase, schedule=schedule)
    evaluation = Observer.evaluation

    def cut(self: Observer, step: int, metrics: Any) -> None:
        evaluation(self, step, metrics)
        if step == 36:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Observer, "evaluation", cut)
        assert toy_tasks.finetune(tmp_path) == INTERRUPTED
    capsys.readouterr()
    assert toy_tasks.finetune(tmp_path) == 0
    said = capsys.readouterr().err

    _, facts, step = read_params(str(tmp_path / "run"))
    assert step == 72
    [restart] = facts["run"]["restarts"]
    assert 0 < restart["step"] <= 36
    scores = {record["step"]: record["f1"] for record in toy_tasks.evaluations(tmp_path)}
    del scores[0]
    results = toy_tasks.results(tmp_path)
    assert results["metrics"]["dev"]["f1"] == max(scores.values()) > 0.9
    assert results["best_step"] == max(step for step, score in scores.items() if score == max(scores.values()))
    error = results["standard_errors"]["dev"]["f1"]
    shown = f"{results['metrics']['dev']['f1']:.3f} ± {error:.3f}"
    assert re.search(rf"^held-out f1 {shown} .*\nheld-out accuracy [01]\.\d{{3}} ± 0\.\d{{3}} ", said, re.MULTILINE)
    assert f"done, best by f1 at step {results['best_step']} ({shown}): report " in said
    held = [line.partition("held-out: ")[2] for line in said.splitlines() if " held-out: " in line]
    assert held
    assert all(line.startswith("f1 ") for line in held)


def test_raw_text_gets_its_entities_with_their_places():
    text = "Rome's old Ada Byron"
    raw = {"id": "0", "words": ["Rome", "'s", "old", "Ada", "Byron"], "text": text, "starts": [0, 4, 7, 11, 15]}
    known = [{"id": "1", "words": ["Ada", "Byron", "Rome"], "tags": ["B-PER", "I-PER", "B-LOC"]}]
    task = toy_tasks.make_task("tagging", {"train": known, "dev": [raw]})
    number = {name: i for i, name in enumerate(task.setting.labels)}
    tags = ["B-LOC", "O", "O", "B-PER", "I-PER"]
    words = task.rows["dev"].sequences["word_ids"]
    predicted = np.zeros((1, 32), int)
    for position, word in enumerate(words):
        predicted[0, position] = number[tags[word - 1]] if word else 0
    [record] = task.predictions("dev", {"predicted": predicted, "confidence": np.ones((1, 32))})
    assert record["prediction"] == tags
    assert record["entities"] == [
        {"text": "Rome", "type": "LOC", "start": 0, "end": 4},
        {"text": "Ada Byron", "type": "PER", "start": 11, "end": 20},
    ]
