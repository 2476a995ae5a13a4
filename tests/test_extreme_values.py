"""Numbers that float32, or whole batches and rows, would turn into nothing or infinity are refused in one line."""

import pytest

from bert_jax.configuration import build
from bert_jax.corpora.mixture import check_shares, check_weights
from bert_jax.errors import UserError
from bert_jax.losses.teacher import TeacherConfig
from bert_jax.objectives import mlm_nsp
from bert_jax.recipes import recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.recipes.task_settings import TaskSettings
from bert_jax.tasks import regression, sentence_embeddings
from bert_jax.tasks.mixing import Mixing


def teacher(**soft):
    build(TeacherConfig, {"init": "x", "soft": soft}, "config.teacher")


def pairs(**keys):
    build(mlm_nsp.Config, keys, "config.objective")


def members(share):
    tree = recipes.load("quickstart").to_dict()
    tree["objective"] = {"members": {"a": {"name": "mlm"}, "b": {"name": "ltr", "share": share}}}
    PretrainingSettings.of(tree)


def labels(value):
    regression.Task.check(None, {"train": [{"id": "train-0", "label": "1"}, {"id": "train-1", "label": value}]})


DATA = {"format": "table", "splits": {"train": "x"}}
MIX = "the weight of config.corpus.parts.b is {}, less than half of one in 1,024 rows"
SHARE = "config.objective.members.b.share is {}, less than a millionth of the sum of all"
SOUND = {
    "temperature": (lambda value: teacher(temperature=value), (0.001, 1.0, 1000.0)),
    "weight": (lambda value: teacher(weight=value), (1e-6, 1.0, 1e6)),
    "cosines": (lambda value: sentence_embeddings.Config(temperature=value), (0.01, 1.0)),
    "objective": (lambda value: pairs(next_sentence_weight=value), (0.0, 1e-6, 1e6)),
    "task": (lambda value: build(TaskSettings, {"task": {}, "data": DATA, "weight": value}, "t"), (1e-6, 1e6)),
    "members": (members, (1e-5, 1, 1e5)),
    "mixing": (lambda value: Mixing(shares={"a": 1.0, "b": value}), (1e-5, 1e5)),
    "parts": (lambda value: check_weights({"a": 1.0, "b": value}, 1.0), (0, 0.0005, 2000)),
    "phase": (lambda value: check_shares({"a": 1.0, "b": value}, "ab", "config.phases.x.shares"), (0, 0.0005)),
    "corpus": (lambda value: check_weights({}, value), (0.1, 100.0)),
    "labels": (labels, (0, "-1e15", 1e15)),
}


@pytest.mark.parametrize("kind", SOUND)
def test_what_is_sound(kind):
    make, values = SOUND[kind]
    for value in values:
        make(value)


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("temperature", 1e-300, r"config.teacher.soft.temperature is 1e-300; 0.001 to 1,000 is allowed"),
        ("temperature", 1e30, r"config.teacher.soft.temperature is 1e\+30; 0.001 to 1,000 is allowed"),
        ("weight", 1e-300, "config.teacher.soft.weight is 1e-300; at least 0 is needed, and 1e-6 to 1e6 where it"),
        ("cosines", 1e-300, "config.task.temperature is 1e-300; 0.001 to 1,000 is allowed"),
        ("objective", 3e38, r"config.objective.next_sentence_weight is 3e\+38; at least 0 is needed, and 1e-6 to 1e6"),
        ("task", 1e-300, "t.weight is 1e-300; a number above 0 is needed, 1e-6 to 1e6"),
        ("members", 1e-12, SHARE.format("1e-12")),
        ("members", 1e30, "config.objective.members.a.share is 1.0, less than a millionth"),
        ("mixing", 1e-12, "config.mixing.shares.b is 1e-12, less than a millionth of the sum of all; give more"),
        ("mixing", True, "config.mixing.shares.b is True; a number above 0 is needed"),
        ("parts", 1e-12, MIX.format("1e-12")),
        ("parts", 1e300, "the weight of config.corpus.parts.a is 1, less than half of one"),
        ("phase", 1e-12, "config.phases.x.shares.b is 1e-12, less than half of one in 1,024 rows, in which"),
        ("corpus", 1e-300, "config.corpus.temperature is 1e-300; 0.1 or more is needed"),
        ("labels", 3e38, r"1 labels are beyond 1e\+15: train-1 of train has 3e\+38; their squares are infinite"),
        ("labels", "-1e16", "1 labels are beyond"),
    ],
)
def test_what_is_refused(kind, value, said):
    with pytest.raises(UserError, match=said):
        SOUND[kind][0](value)
