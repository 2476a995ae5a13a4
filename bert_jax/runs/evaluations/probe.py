"""Scores an encoder while it is being pretrained, by learning a linear head for a small labelled task on its vectors.

A probe only reads the parameters and never changes the run. Its score depends on nothing but the parameters, its keys
and the examples.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.examples.load import DataConfig, load, to_train_on
from bert_jax.examples.splits import at_most, train_split
from bert_jax.metric_names import STANDARD_ERROR, titles_of
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import pool
from bert_jax.models.model import POOLER, Model
from bert_jax.parts import catalogue
from bert_jax.records import Batch
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.runs.evaluations import base
from bert_jax.tasks.base import KIND, ExampleTask, Setting
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training import mesh as meshes
from bert_jax.training.forward import Forward

_BODY = ("encoder", POOLER.name)  # the parts that make the vectors of a text
PENALTY = 1e-3  # L2 penalty on the head: PENALTY / 2 * sum of squared weights


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """The keys of a probe. None of them changes what the run learns.

    Attributes:
      task: the name of a file of ``bert_jax.tasks`` that reads one vector of a text.
      folder: the folder to which the paths of ``data.splits`` are relative.
      data, options: the keys that ``config.data`` and ``config.task`` have in a fine-tuning recipe.
      features: the vector of a text that is read. "mean": the mean of the last layer's vectors; "cls": the
        last layer's vector at [CLS]; "pooled": the pooler's output.
      num_steps: the number of updates, each of which reads all examples.
      max_examples: the most examples of each split.
    """

    where: dataclasses.InitVar[str]
    task: str
    folder: str = ""
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    features: Literal["mean", "cls", "pooled"] = "mean"
    num_steps: int = 200
    max_examples: int = 1000
    max_length: int = 128  # tokens of a row
    batch_size: int = 32  # rows of a forward pass
    learning_rate: float = 0.02  # of Adam
    seed: int = 0  # by which examples are chosen where there are more than max_examples

    def __post_init__(self, where: str) -> None:
        whole = ("num_steps", "max_examples", "max_length", "batch_size")
        configuration.check_fields(self, where, "at least 1 is needed", *whole, sound=lambda v: v >= 1)
        configuration.check_fields(self, where, "at least 0 is needed", "seed", sound=lambda v: v >= 0)
        configuration.check_fields(self, where, "more than 0 is needed", "learning_rate", sound=lambda v: v > 0)


class Evaluator(base.TrainingEvaluator):
    """A probe of a run. Its task gives its metrics."""

    config: Config
    task: ExampleTask  # from ``begin`` on

    def __init__(self, config: Config, where: str, note: Callable[[str], None]):
        """Read the examples and check the settings.

        Raises:
          UserError: the task is unknown, a probe cannot learn it, or the examples cannot be read.
        """
        super().__init__(config, where, note)
        self._class = catalogue.find("tasks", config.task, having="Task").Task
        if not self._class.reads_one_vector:
            raise UserError(
                f"{where}.task is {config.task!r}; a probe takes tasks that read one vector of a text, such as "
                "classification and regression"
            )
        self.titles = titles_of(self._class)
        task_config = catalogue.find("tasks", config.task, having="Task").Config
        self._task_config = configuration.build(task_config, config.options, f"{where}.options")
        data = configuration.build(DataConfig, config.data, f"{where}.data")
        every_split = to_train_on(data, load(data, config.folder, self._class.roles, note))
        train = train_split(every_split, f"{where}.data")
        self.splits = {
            name: at_most(examples, config.max_examples, config.seed)
            for name, examples in every_split.items()
            if not name.startswith("test")
        }
        self._labels = self._class.labels(self._task_config, every_split[train])
        sizes = ", ".join(f"{name} {len(examples):,}" for name, examples in self.splits.items())
        note(f"{where.rpartition('.')[2]}: {config.task}; {sizes} examples")

    def begin(self, model: base.CurrentModel, tokenizer: Tokenizer, note: Callable[[str], None]) -> None:
        """Encode the examples. Raises ``UserError`` if the task cannot encode them."""
        config = self.config
        length = min(config.max_length, model.config.max_length)
        self.task = self._class(
            self._task_config,
            Setting(self.splits, tokenizer, model.config, self._labels, length, config.batch_size, config.seed, "none"),
        )
        function = functools.partial(_text_vectors, model.config, config.features)
        self._forward = Forward(function, model.mesh, config.batch_size)
        task, shapes = self.task, meshes.unbox(jax.eval_shape(self.task.init, jax.random.key(0)).params)
        empty = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes[task.model.parts[-1].name]["dense"])
        self._learn = jax.jit(lambda vectors, batch: _learn_head(task, empty, vectors, batch, config))
        self._judge = jax.jit(lambda head, vectors, batch: task.score({"logits": _logits(head, vectors)}, batch))
        for line in self.task.notes:
            note(line)
        if floors := self.task.baselines(KIND, 0):
            shown = {name: value for name, value in floors.items() if not name.endswith(STANDARD_ERROR)}
            to_beat = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in shown.items())
            note(f"{self.where.rpartition('.')[2]}: to beat: {to_beat}")

    def score(self, model: base.CurrentModel, params: Any, tokenizer: Tokenizer) -> dict[str, float]:
        task, config = self.task, self.config
        read = {name: params[name] for name in _BODY if name in params}
        if config.features == "pooled" and "pooler" not in read:
            raise UserError(f"{self.where}.features is 'pooled' and the model has no pooler; 'mean' and 'cls' go")
        with meshes.activations(model.mesh):
            vectors = {name: self._vectors_of(rows, read, model.between) for name, rows in task.rows.items()}
            [train] = task.setting.names("train")
            mean, spread = vectors[train].mean(axis=0), vectors[train].std(axis=0)
            spread = np.maximum(spread, 0.1 * spread.mean() + 1e-6)  # do not magnify features that hardly vary
            vectors = {name: ((found - mean) / spread).astype(np.float32) for name, found in vectors.items()}
            head = self._learn(vectors[train], dict(task.rows[train].arrays))
            parts = {}
            for part in task.heldout_parts:
                sums = jax.device_get(self._judge(head, vectors[part], dict(task.rows[part].arrays)))
                logits = np.asarray(_logits(head, vectors[part]))
                parts[part] = task.summary(sums) | task.finish(part, {"logits": logits})
        return _of_splits(parts)

    def _vectors_of(self, rows: EncodedRows, params: Any, between: Callable[[], None]) -> np.ndarray:
        """Return the vectors of a split's rows, [N, D] float32."""
        vectors = np.empty((len(rows), self.task.setting.model.hidden_size), np.float32)
        for chosen, found in self._forward.rows(rows, self.task.lengths[KIND], params):
            vectors[chosen] = found["vectors"]
            between()
        return vectors


@functools.partial(jax.jit, static_argnums=(0, 1))
def _text_vectors(
    config: ModelConfig, features: Literal["mean", "cls", "pooled"], params: Any, batch: Batch
) -> dict[str, jax.Array]:
    """Return ``vectors`` [B, D] float32, one for each row of a batch."""
    outputs: Any = Model(config, (POOLER,) if features == "pooled" else ()).apply({"params": params}, batch)
    if features == "pooled":
        return {"vectors": outputs["pooled"].astype(jnp.float32)}
    return {"vectors": pool(outputs["sequence"], batch["attention_mask"], features)}


def _logits(head: Any, vectors: Any) -> jax.Array:
    """Return the logits [N, K] of a linear ``head`` for vectors [N, D]."""
    return vectors @ head["kernel"] + head["bias"][None]


def _learn_head(task: ExampleTask, empty: Any, vectors: jax.Array, batch: Batch, config: Config) -> Any:
    """Return a linear head trained on the task's loss: ``num_steps`` Adam updates from zero, each on all examples."""
    tx = optax.adam(config.learning_rate)

    def loss(head: Any) -> jax.Array:
        value, count = task.score({"logits": _logits(head, vectors)}, batch)["loss"]
        return value / count + PENALTY / 2 * jnp.sum(jnp.square(head["kernel"]))

    def update(_: int, carry: Any) -> Any:
        head, moments = carry
        direction, moments = tx.update(jax.grad(loss)(head), moments)
        return optax.apply_updates(head, direction), moments

    head = jax.tree.map(jnp.asarray, empty)
    return jax.lax.fori_loop(0, config.num_steps, update, (head, tx.init(head)))[0]


def _of_splits(parts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of all held-out splits in one dict; if there are several, a metric is named "metric/split"."""
    if len(parts) == 1:
        return dict(next(iter(parts.values())))
    return {f"{name}/{part}": value for part, metrics in parts.items() for name, value in metrics.items()}
