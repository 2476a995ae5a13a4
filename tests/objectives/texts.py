"""A toy corpus with its tokenizer, and objectives on it."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import jax
import numpy as np

from bert_jax.corpora.build import BuildConfig, build
from bert_jax.corpora.columns import find
from bert_jax.corpora.source import documents
from bert_jax.corpora.store import Corpus
from bert_jax.corpora.text_files import Source
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.losses.teacher import Teacher, TeacherConfig
from bert_jax.models.config import ModelConfig
from bert_jax.models.encoders import bert
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.objectives.base import Setting
from bert_jax.recipes import recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.task import Task, Variables
from bert_jax.text.learn import learn_wordpiece
from bert_jax.text.tokenizer import Tokenizer, wordpiece
from bert_jax.training.mesh import unbox
from bert_jax.training.step import count_targets
from tests import toy

LENGTH = 64
Text = tuple[Corpus, Tokenizer]
RECIPE = "from ml_collections import ConfigDict\n\n\ndef get_config():\n    return ConfigDict({})\n"
NEXT_SENTENCE = ("cls_positions", "next_sentence_labels", "next_sentence_weights")
MASKED = ("masked_positions", "masked_labels", "masked_weights")


def make_text(folder: Path, objective: str = "", labelled: bool = False) -> Text:
    """Return the toy corpus.

    Args:
      objective: the name of an objective whose columns the corpus has; the text then has capitals.
      labelled: whether the corpus also has ``toy.label``.
    """
    columns = toy.COLUMNS.get(objective, {})
    path = toy.write_text(folder / "text.txt", case=str.title if columns else str)
    columns = columns | (toy.label(path) if labelled else {})
    source = Source(paths=(str(path),), format="sentences", document_boundary="blank_line")
    sentences = (sentence for document in documents(source) for sentence in document.sentences)
    tokenizer = wordpiece(learn_wordpiece(sentences, 120, min_frequency=1))
    build(source, tokenizer, folder / "store", BuildConfig(0.2), columns=find(columns))
    return Corpus(folder / "store"), tokenizer


def write_own(folder: Path, name: str, code: str, batch_size: int = 8, **training: Any) -> str:
    """Write an objective of a user's own and a tiny recipe that names it; return the recipe's path."""
    (folder / f"{name}.py").write_text(code)
    recipe = toy.recipe(
        toy.write_text(folder / "text.txt"),
        objective={"name": f"./{name}.py"},
        phases={"phase1": {"num_steps": 4, "batch_size": batch_size, "max_length": 32}},
        schedule={"warmup_steps": 1},
        training={"log_every_steps": 4, "eval_every_steps": 4, "loggers": (), **training},
        examples=(),
        export=False,
    )
    (folder / "own.py").write_text(RECIPE.replace("{}", repr(recipe)))
    return str(folder / "own.py")


def settings_of(recipe: Path | str, *flags: str) -> PretrainingSettings:
    return PretrainingSettings.of(recipes.load(str(recipe), flags).to_dict())


def objective(
    module: ModuleType,
    text: Text,
    attention: Any = "bidirectional",
    changes: Any = MappingProxyType({}),
    dtype: Any = "float32",
    **config: Any,
) -> Any:
    """``module.Objective`` on rows of 64, with a 1 x 32 model."""
    corpus, tokenizer = text
    model = bert.Config(
        tokenizer.size,
        32,
        1,
        2,
        64,
        max_length=LENGTH,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        attention=attention,
        dtype=dtype,
    )
    setting = Setting(model, {"phase1": LENGTH}, changes=changes)
    return module.Objective(module.Config(**config), setting).with_text(corpus, tokenizer)


def teacher_of(model: ModelConfig) -> Teacher:
    """A teacher of this shape with fresh parameters and the head for masked tokens."""
    shapes = {"input_ids": np.zeros((1, 8), np.int32), "attention_mask": np.ones((1, 8), np.int32)}
    batch = {**shapes, "token_type_ids": shapes["input_ids"], "masked_positions": np.zeros((1, 2), np.int32)}
    params = unbox(Model(model, (LM_HEAD,)).init(jax.random.key(0), batch)["params"])
    return Teacher(TeacherConfig("T"), TrainedModel("T", params, model, wordpiece(SPECIAL_TOKENS)))


def rows_of(task: Task, count: int = 12, split: Any = "train") -> dict[str, np.ndarray]:
    """The first rows of epoch 0."""
    indices = np.arange(count)
    return task.source(split, "phase1", 0).rows(np.zeros_like(indices), indices)


def counts_of(task: Task, rows: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """The number of targets of each term, by which a step divides."""
    return count_targets(task, jax.eval_shape(lambda: unbox(task.init(jax.random.key(0)))), rows, None)


def fresh(task: Task) -> Variables:
    return jax.device_get(unbox(jax.jit(task.init)(jax.random.key(0))))
