"""What an evaluation reports is known before a model is compiled, and the page of the tasks lists it."""

import re

import pytest

from bert_jax.parts import catalogue
from bert_jax.rows.phases import Phase
from bert_jax.tasks.base import KIND
from bert_jax.tasks.metrics import regression
from bert_jax.tasks.metrics.classification import AVERAGED, BINARY
from bert_jax.training import mesh as meshes
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.mesh import MeshConfig
from tests.docs import pages
from tests.tasks import questions, toy_tasks


def names_of(task):
    phase = Phase(1, 16, task.lengths[KIND], KIND)
    return Evaluation(task, meshes.make_mesh(MeshConfig()), phase, 2**31).metric_names()


def toy(name, **config):
    splits = {"train": toy_tasks.examples(name, 16, 1), "dev": toy_tasks.examples(name, 20, 2)}
    return toy_tasks.make_task(name, splits, config=config)


def span_qa(**config):
    asked = [questions.question(f"it was {'ann' * i}", text) for i in (1, 2) for text in ("ann", None)]
    asked = asked if config.get("version_2") else [example for example in asked if example["answers"]]
    return questions.make_task({"train": asked, "dev": asked}, max_length=64, max_query_length=4, **config)


def embeddings():
    pairs = [{"id": str(i), "text": f"the film {i}", "positive": "great", "similarity": i / 4} for i in range(4)]
    return toy_tasks.make_task("sentence_embeddings", {"train": pairs, "dev": pairs})


def listed():
    """The page's table of metrics: task -> (the main one, all)."""
    page = (pages.ROOT / "bert_jax" / "tasks" / "README.md").read_text(encoding="utf-8")
    table = page.partition("| task | chosen by | others |")[2].partition("\n\n")[0]
    cells = [[re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:4]] for line in table.splitlines()[2:]]
    return {task: (main, {main, *others}) for tasks, [main], others in cells for task in tasks}


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("classification", lambda: [toy("classification", metrics=(*AVERAGED, *BINARY))]),
        ("san_classification", lambda: [toy("san_classification", metrics=(*AVERAGED, *BINARY))]),
        ("relation_classification", lambda: [toy("relation_classification", metrics=(*AVERAGED, *BINARY))]),
        ("entity_typing", lambda: [toy("entity_typing")]),
        ("regression", lambda: [toy("regression", metrics=tuple(regression.TITLES))]),
        ("tagging", lambda: [toy("tagging")]),
        ("multiple_choice", lambda: [toy("multiple_choice")]),
        ("ranking", lambda: [toy("ranking")]),
        ("span_qa", lambda: [span_qa(language="zh"), span_qa(version_2=True)]),
        ("sentence_embeddings", lambda: [embeddings()]),
    ],
)
def test_the_page_lists_the_metrics_of_every_task(name, make):
    tasks = make()
    found = {re.sub("^(PER|LOC)_", "TYPE_", metric) for task in tasks for metric in names_of(task)}
    assert listed()[name] == (tasks[0].main_metric, found)


def test_every_task_is_in_the_list():
    assert set(listed()) == set(catalogue.parts("tasks", having="Task"))
