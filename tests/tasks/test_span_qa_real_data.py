"""Span question answering: the answers of real data are found in their contexts, and given back."""

import functools

import numpy as np
import pytest

from bert_jax.examples.load import DataConfig, load
from bert_jax.tasks.answers import locate
from bert_jax.tasks.span_qa import Task
from bert_jax.text import tokenizer as tokenizers
from tests.tasks.questions import knowing, make_task

WRONG = [  # file, answers that are not at their answer_start, all answers
    ("zh_squad_format/cmrc2018_trial", 5, 1000),  # and two without a question
    ("squad_format_en/covidqa_200423", 234, 1380),
]
heavy = functools.partial(pytest.param, marks=pytest.mark.heavy)
FOUND = [  # file, vocabulary, lower case, answers of the first 1,200 questions that knowing scores do not give
    ("squad_format_en/xquad.en", "uncased", True, 1),
    heavy("squad_format_en/xquad.de", "multilingual-cased", False, 0),
    heavy("squad_format_en/xquad.ar", "multilingual-cased", False, 3),
    ("squad_format_en/xquad.ar", "multilingual-cased", True, 6),  # the accents that it strips are in the text
    ("squad_format_en/xquad.th", "multilingual-cased", True, 4),
    heavy("squad_format_en/xquad.zh", "chinese", True, 0),
    ("zh_squad_format/cmrc2018_trial", "chinese", True, 7),
    heavy("zh_squad_format/cmrc2018_dev", "chinese", True, 0),
    heavy("zh_squad_format/DRCD_dev", "chinese", True, 2),
]


def read(shared_data, file: str):
    folder, name = file.split("/")
    data = DataConfig("squad_json", {"dev": f"{name}.json"}, bad_examples="skip")
    return load(data, shared_data(folder), Task.roles, lambda line: None)["dev"]


@pytest.mark.parametrize(("file", "wrong", "total"), WRONG)
def test_wrong_places_of_real_data_are_all_found(shared_data, file, wrong, total):
    located = [
        locate(example["context"], answer["text"], answer["answer_start"])
        for example in read(shared_data, file)
        for answer in example["answers"]
    ]
    assert len(located) == total
    assert sum(answer.state != "right" for answer in located) == wrong


@pytest.mark.parametrize(("file", "vocabulary", "lowercase", "missed"), FOUND)
def test_answers_of_real_data_are_given_back(shared_data, file, vocabulary, lowercase, missed):
    """All but those that begin or end inside a token, or reach over the window in which their start is read."""
    using = tokenizers.load(shared_data("vocab") / f"bert-base-{vocabulary}-vocab.txt", lowercase)
    task = make_task({"dev": read(shared_data, file)[:1200]}, using, max_answer_length=384)
    records = task.predictions("dev", knowing(task, "dev"))
    lost = {r["id"] for r in records if r["prediction"] not in [text.strip() for text in r["answers"]]}
    assert len(lost) == missed
    gold = zip(task.setting.splits["dev"], task.gold["dev"], strict=True)
    excused = {e["id"] for i, (e, one) in enumerate(gold) if one.within_a_token or reaches_over(task, i)}
    assert lost <= excused


def reaches_over(task: Task, number: int) -> bool:
    """Whether the window with the most context of an answer's first token ends before its last."""
    (_, layout), tokens = task.layouts["dev"], task.gold["dev"][number].tokens
    mine = np.flatnonzero(task.rows["dev"].arrays["example_ids"] == number)
    [home] = [i for i in mine if layout.best_starts[i] <= tokens[0] < layout.best_ends[i]]
    return bool(tokens[1] >= layout.starts[home] + layout.sizes[home])
