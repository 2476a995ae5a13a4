"""A task of two kinds of batches, whose features, heads, terms and metrics differ; run as a module, it trains."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cli import flags
from bert_jax.cli import main as commands
from bert_jax.cluster import distributed
from bert_jax.losses.cross_entropy import Accuracy, CrossEntropy
from bert_jax.models.dropout import dropout
from bert_jax.records import Batch, BatchSpec, Feature, Sum
from bert_jax.reporting.observer import Observer
from bert_jax.rows.phases import Phase
from bert_jax.task import Bucket, Losses, RowSource, SingleTask, Term, Variables, measure_terms
from bert_jax.training.experiment import Experiment
from bert_jax.training.loop import Run, train_and_evaluate
from bert_jax.training.mesh import MeshConfig
from bert_jax.workdir import run_record
from tests.training import line

WIDTH, IDS, BATCH = 128, 12, 16
PHASES = (Phase(40, BATCH, WIDTH, "phase1"), Phase(16, BATCH, WIDTH, "phase2"))
SIZES = {"train": {"curve": 160, "class": 80}, "eval": {"curve": 40, "class": 24}}


def body(params: Any, x: jax.Array, rng: Any) -> jax.Array:
    """Two layers, scanned, and dropout; [B, WIDTH] -> [B, WIDTH]."""

    def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        return x + jnp.tanh(x @ weights["kernel"] + weights["bias"][None]), None

    return dropout(jax.lax.scan(layer, x, params["body"]["layers"])[0], 0.1, rng, "body")


class Curve(SingleTask):
    """A number from a vector. It trains the body and its own head."""

    name, dtype, trains = "curve", "float32", frozenset({"body", "number"})
    heldout_parts: tuple[str, ...] = ("curve", "class")
    gathered_outputs: tuple[str, ...] = ()
    whole_batches = False
    spec: BatchSpec = {
        "inputs": Feature((WIDTH,), "float32"),
        "targets": Feature((), "float32"),
        "row_weights": Feature((), "float32"),
    }

    def __init__(self) -> None:
        self.terms = self.make_terms()
        self.loss_weights = {name: term.weight for name, term in self.terms.items()}

    def make_terms(self) -> dict[str, Term]:
        def squared(outputs: Mapping[str, Any], batch: Batch) -> Sum:
            errors, weights = outputs["numbers"] - batch["targets"], batch["row_weights"]
            return Sum(jnp.sum(errors**2 * weights), jnp.sum(weights))

        def near(outputs: Mapping[str, Any], batch: Batch) -> Sum:
            hits, weights = jnp.abs(outputs["numbers"] - batch["targets"]) < 0.5, batch["row_weights"]
            return Sum(jnp.sum(hits * weights), jnp.sum(weights))

        return {"curve": Term(squared, 2.0, {"near": near})}

    def forward(self, params: Any, batch: Batch, rng: Any) -> dict[str, jax.Array]:
        return {"numbers": (body(params, batch["inputs"], rng) @ params["number"]["kernel"])[:, 0]}

    def loss(self, variables: Variables, batch: Batch, rng: Any) -> Losses:
        losses, metrics, _ = measure_terms(self.terms, self.forward(variables.params, batch, rng), batch)
        return Losses(losses, metrics | {"tokens": Sum(jnp.sum(batch["row_weights"]), jnp.ones([]))})

    def outputs(self, variables: Variables, batch: Batch) -> dict[str, jax.Array]:
        return self.forward(variables.params, batch, None)

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        return {name: float(one.value) / max(float(one.count), 1e-9) for name, one in sums.items()}

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        assert part == self.name
        return {}

    @staticmethod
    def rows(draw: np.random.Generator) -> dict[str, Any]:
        x = draw.normal(size=WIDTH)
        return {"inputs": x, "targets": x[:8].sum() / 3, "row_weights": draw.integers(0, 2)}


class Class(Curve):
    """One of three classes from ids. It reads the body, and trains its own table and head alone."""

    name, trains, gathered_outputs = "class", frozenset({"class"}), ("class_logits",)
    spec: BatchSpec = {
        "ids": Feature((IDS,), "int32"),
        "labels": Feature((), "int32"),
        "label_weights": Feature((), "float32"),
        "row_weights": Feature((), "float32"),
    }

    def make_terms(self) -> dict[str, Term]:
        names = ("class_logits", "labels", "label_weights")
        return {"class": Term(CrossEntropy(*names), 1.0, {"accuracy": Accuracy(*names)})}

    def forward(self, params: Any, batch: Batch, rng: Any) -> dict[str, jax.Array]:
        x = jnp.take(params["class"]["table"], batch["ids"], axis=0).sum(axis=1)
        return {"class_logits": body(params, x, rng) @ params["class"]["kernel"]}

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        super().finish(part, outputs)
        return {"of_first_class": float(np.mean(outputs["class_logits"].argmax(axis=-1) == 0))}

    @staticmethod
    def rows(draw: np.random.Generator) -> dict[str, Any]:
        ids = draw.integers(0, 16, IDS)
        return {"ids": ids, "labels": ids[0] % 3, "label_weights": draw.integers(1, 3), "row_weights": 1}


@dataclasses.dataclass(frozen=True)
class Rows(RowSource):
    """Rows of several tasks, one after another, each a pure function of (epoch, index)."""

    split: str
    sizes: Mapping[str, int]  # by the name of the task
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by name; {}: one kind

    @property
    def rows_per_epoch(self) -> int:
        return sum(self.sizes.values())

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        return tuple(Bucket(kind, self.sizes[name], 1) for name, kind in self.kinds.items())

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        names = [name for name, size in self.sizes.items() for _ in range(size)]
        [name] = {names[index] for index in indices}
        of, first = (Curve, 0) if name == "curve" else (Class, 7)
        seeds = zip(epochs.tolist(), indices.tolist(), strict=True)
        rows = [of.rows(np.random.default_rng([first, self.split == "train", *seed])) for seed in seeds]
        return {key: np.array([row[key] for row in rows], feature.dtype) for key, feature in of.spec.items()}


class Kinds(Curve):
    """The whole task: phase1 mixes both kinds, phase2 has classes alone."""

    tasks: Mapping[str, Curve] = {"curve": Curve(), "class": Class()}
    kinds = {"phase1": "curve", "phase1/class": "class", "phase2": "class"}
    batch_specs = {kind: (Curve if name == "curve" else Class).spec for kind, name in kinds.items()}
    flops_per_row = dict.fromkeys(kinds, 6.0 * WIDTH * WIDTH)

    def of(self, kind: str) -> Any:
        return self.tasks[self.kinds[kind]]

    def heldout(self, phase: str) -> dict[str, str]:
        del phase
        return {"curve": "phase1", "class": "phase1/class"}

    def loss(self, *_: Any) -> Any:
        raise AssertionError("a step reads the task of its kind")

    outputs = summary = finish = loss

    def source(self, split: str, kind: str, phase: int, part: str | None = None) -> RowSource:
        sizes, name = SIZES[split], self.kinds[kind]
        if split == "train" and phase == 0:
            return Rows(split, sizes, {"curve": "phase1", "class": "phase1/class"})
        assert split == "train" or part == name
        return Rows(split, {name: sizes[name]})

    def init(self, rng: Any) -> Variables:
        def draw(number: int, shape: tuple[int, ...], *axes: str | None) -> Any:
            values = 0.1 * jax.random.normal(jax.random.fold_in(rng, number), shape)
            return nn.LogicallyPartitioned(values, axes)

        layers = {
            "kernel": draw(0, (2, WIDTH, WIDTH), "layers", "embed", "mlp"),
            "bias": draw(1, (2, WIDTH), "layers", "mlp"),
        }
        table = draw(2, (16, WIDTH), "vocab", "embed")
        classes = {"table": table, "kernel": draw(3, (WIDTH, 3), "embed", None)}
        number = {"kernel": draw(4, (WIDTH, 1), "embed", None)}
        return Variables({"body": {"layers": layers}, "class": classes, "number": number}, {})


def experiment(mesh: MeshConfig | None = None, **training: Any) -> Experiment:
    """A log line every step, an evaluation every 14."""
    cadence = {"log_every_steps": 1, "eval_every_steps": 14, "eval_phase": "phase1", **training}
    return line.experiment(phases=PHASES, save_every=4, peak=0.0005, warmup=0, mesh=mesh, **cadence)


def train(workdir: str, **changes: Any) -> dict[str, float]:
    """Start a run or go on with one; return the last evaluation."""
    of = experiment(**changes)
    run = run_record.content(workdir, {}, {"seed": 0}, "train", bound=bool(saved_steps(workdir)))
    if distributed.is_first():
        run_record.write_run(workdir, run)
    observer = Observer(workdir, run, of.phases.num_steps, of.training.loggers)
    with observer.to_the_end():
        return train_and_evaluate(Run(Kinds(), of, observer, {"corpus_fingerprint": "none", "run": run}, 1e12))


def main(argv: Sequence[str]) -> int:
    """Run as one process of a ``gang.Gang``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb")
    parser.add_argument("--config")
    parser.add_argument("--workdir")
    parser.add_argument("--micro_batches", type=int, default=1)
    flags.add_processes(parser)
    arguments = parser.parse_args(argv)
    Path(arguments.workdir).mkdir(parents=True, exist_ok=True)
    arguments.config = types.SimpleNamespace(to_json_best_effort=lambda: "{}")
    changes = {"micro_batches": arguments.micro_batches}
    return commands.in_processes(arguments, lambda: train(arguments.workdir, **changes))


def run() -> int:
    """Run ``main`` as a command is run: errors and signals end it as they end a command; return the exit code."""
    commands._dispatch = main
    return commands.run()


if __name__ == "__main__":
    sys.exit(run())
