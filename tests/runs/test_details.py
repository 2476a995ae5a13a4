"""Details of models that know nothing, written for every task."""

import json

import jax
import numpy as np
import pytest

from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.encoders import bert
from bert_jax.parts import catalogue
from bert_jax.reporting.report import DETAILS
from bert_jax.runs.finetuning_end import details_of
from bert_jax.runs.prediction import make_task, predict_split
from bert_jax.tasks.base import Setting
from bert_jax.text.learn import learn_wordpiece
from bert_jax.text.tokenizer import wordpiece
from tests.tasks import toy_tasks

LABELS = {
    "classification": ("neg", "pos"),
    "san_classification": ("neg", "pos"),
    "ranking": ("no", "yes"),
    "relation_classification": ("neg", "pos"),
    "entity_typing": ("neg", "person", "place", "pos"),
    "tagging": ("O", "B-LOC", "B-PER", "I-PER"),
}


def untrained(name, examples):
    """A model of the task ``name`` with fresh parameters."""
    module = catalogue.find("tasks", name, having="Task")
    texts = [str(value) for example in examples for value in example.values()]
    tokenizer = wordpiece(learn_wordpiece(texts, 200, True, 1, 1.0), True)
    model = bert.Config(vocab_size=tokenizer.size, hidden_size=16, num_layers=1, num_heads=2, mlp_dim=32, max_length=64)
    labels = LABELS.get(name, ())
    setting = Setting({"dev": tuple(examples)}, tokenizer, model, labels, 64, 8, packing="none")
    keys = toy_tasks.KEYS.get(name, {})
    params = jax.jit(module.Task(module.Config(**keys), setting).init)(jax.random.key(0)).params
    params = jax.tree.map(
        np.asarray, jax.tree.map(lambda leaf: leaf.unbox(), params, is_leaf=lambda x: hasattr(x, "unbox"))
    )
    facts = {"task": {"name": name, **keys}, "labels": list(labels), "max_length": 64}
    return TrainedModel("", params, model, tokenizer, facts=facts, step=7)


def details(folder, name, examples):
    model = untrained(name, examples)
    task = make_task(model, examples, "dev")
    metrics, records, _ = predict_split(model, task, "dev")
    splits = details_of(task, {"dev": records})
    splits["dev"] |= {"metrics": metrics}
    (folder / DETAILS).write_text(json.dumps({"best_step": 7, "metric": "loss", "splits": splits}))
    return json.loads((folder / DETAILS).read_text())


@pytest.mark.parametrize("name", toy_tasks.MAKERS)
def test_every_task_has_its_errors(tmp_path, name):
    examples = toy_tasks.examples(name, 12)
    found = details(tmp_path, name, examples)
    assert found["splits"]["dev"]["num_examples"] == found["splits"]["dev"]["num_answered"] == len(examples)
    assert found["splits"]["dev"]["wrong"]
