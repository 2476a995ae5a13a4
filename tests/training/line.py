"""A task that compiles in a blink: a line through points. Whole runs of it show what the loop does, and no more."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.records import Batch, Feature, Sum
from bert_jax.reporting.observer import Observer
from bert_jax.reporting.profiled_steps import ProfiledSteps
from bert_jax.rows.loader import LoaderConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.task import Losses, RowSource, SingleTask, Variables
from bert_jax.training.experiment import Experiment, TrainingConfig
from bert_jax.training.loop import Run, train_and_evaluate
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import adamw
from bert_jax.training.schedules import linear
from bert_jax.workdir import run_record

WIDTH, ROWS_PER_EPOCH, BATCH = 8, 4000, 8
TARGET = np.linspace(-1, 1, WIDTH, dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class Points(RowSource):
    """Rows of [x, y = target x + noise], each a pure function of (epoch, index); ``spoilt`` ones hold ``value``."""

    spoilt: frozenset[int] = frozenset()  # rows, by their place in the endless sequence of epochs
    value: float = math.nan
    rows_per_epoch: int = ROWS_PER_EPOCH

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        places = epochs * self.rows_per_epoch + indices
        x = np.stack([np.random.default_rng(int(place)).normal(size=WIDTH) for place in places])
        y = x @ TARGET + 0.1 * x[:, 0] ** 2
        y[np.isin(places, list(self.spoilt))] += self.value
        return {"inputs": x.astype(np.float32), "labels": y.astype(np.float32)}


class Line(SingleTask):
    """Mean squared error of a linear map, kept as a kernel that ``fsdp`` shards."""

    loss_weights = {"loss": 1.0}
    dtype: str = "float32"
    whole_batches: bool = False
    heldout_parts: tuple[str, ...] = ("",)
    gathered_outputs: tuple[str, ...] = ()

    def __init__(self, points: Points = Points(), kinds: tuple[str, ...] = ("phase1",)):
        self._points = points
        self.batch_specs = {
            kind: {"inputs": Feature((WIDTH,), "float32"), "labels": Feature((), "float32")} for kind in kinds
        }
        self.flops_per_row = dict.fromkeys(kinds, 6.0 * WIDTH)

    def source(self, split: str, kind: str, phase: int, part: str | None = None) -> RowSource:
        return self._points if split == "train" else Points(rows_per_epoch=64)

    def init(self, rng: Any) -> Variables:
        kernel = 0.1 * jax.random.normal(rng, (WIDTH, 1))
        return Variables({"dense": {"kernel": nn.LogicallyPartitioned(kernel, ("embed", None))}}, {})

    def loss(self, variables: Variables, batch: Batch, rng: Any) -> Losses:
        found = (batch["inputs"] @ variables.params["dense"]["kernel"])[:, 0]
        squares = jnp.square(found - batch["labels"])
        errors = Sum(squares.sum(), jnp.asarray(squares.shape[0], jnp.float32))
        return Losses({"loss": errors}, {"squared_error": errors, "tokens": errors._replace(value=errors.count)})

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        return {name: float(s.value) / max(float(s.count), 1e-9) for name, s in sums.items()}

    def baselines(self, kind: str, num_rows: int) -> dict[str, float]:
        return {}

    def outputs(self, variables: Variables, batch: Batch) -> dict[str, Any]:
        return {}

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        return {}


def experiment(
    num_steps: int = 40,
    save_every: int = 10,
    peak: float = 0.05,
    warmup: int = 5,
    mesh: MeshConfig | None = None,
    profiled: ProfiledSteps | None = None,
    phases: tuple[Phase, ...] = (),
    **training: Any,
) -> Experiment:
    """A log line every 2, an evaluation every 10."""
    cadence = {"log_every_steps": 2, "eval_every_steps": 10, "eval_rows": 64, "loggers": ()}
    return Experiment(
        seed=0,
        phases=Phases(phases or (Phase(num_steps, BATCH, WIDTH, "phase1"),)),
        optimizer=adamw.Optimizer(),
        schedule=linear.Schedule(peak, warmup),
        mesh=mesh or MeshConfig(),
        training=TrainingConfig(**{**cadence, **training}),
        checkpoints=CheckpointConfig(every_steps=save_every),
        loader=LoaderConfig(),
        profiled=profiled,
    )


def train(workdir: Path, points: Points = Points(), task: type[Line] = Line, **changes: Any) -> dict[str, float]:
    """Start or go on with a run, as the commands do; the last evaluation."""
    of, folder = experiment(**changes), str(workdir)
    run = run_record.content(folder, {}, {"seed": 0}, "bert-jax pretrain", bound=bool(saved_steps(folder)))
    run_record.write_run(folder, run)
    observer = Observer(folder, run, of.phases.num_steps, of.training.loggers)
    with observer.to_the_end():
        return train_and_evaluate(Run(task(points), of, observer, {"corpus_fingerprint": "points", "run": run}, 1e12))


def rows_of(*steps: int) -> frozenset[int]:
    """The first row of each step, by its place in the sequence of epochs."""
    return frozenset(step * BATCH for step in steps)
