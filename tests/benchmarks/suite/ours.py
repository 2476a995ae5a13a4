"""Our side of a figure: the very step of a run, on a batch of random ids that stays on the device."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from bert_jax.text.tokenizer import wordpiece
from tests.benchmarks.suite.figures import VOCABULARY, Figure

# Packages that read corpora and recipes. A step needs none of them, and an image for JAX and PyTorch may lack them.
UNUSED = ("array_record", "grain", "ml_collections", "sentencepiece", "tensorflow_datasets")


class _Absent:
    """Stands for whatever an absent package would hold."""

    def __class_getitem__(cls, _: Any) -> type[_Absent]:
        return cls


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports an empty module for each package of ``UNUSED`` that is not installed."""

    def __init__(self) -> None:
        self._names = {name for name in UNUSED if importlib.util.find_spec(name) is None}

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__["__getattr__"] = lambda name: _absent(spec.name, name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to execute."""


def _absent(module: str, name: str) -> type[_Absent]:
    if name.startswith("__"):
        raise AttributeError(f"{module} is not installed, so it has no {name}")
    return _Absent


def prepare(figure: Figure, dtype: str) -> tuple[Callable[[int], float], dict[str, Any]]:
    """Return (a function: number of steps -> seconds, facts about this side)."""
    from bert_jax.training.malloc import keep_freed_memory

    keep_freed_memory()
    sys.meta_path.append(_StandIns())
    import jax

    from bert_jax.training import mesh as meshes
    from bert_jax.training.mesh import MeshConfig, make_mesh
    from bert_jax.training.optimizers import adamw
    from bert_jax.training.schedules import linear
    from bert_jax.training.state import InitialState
    from bert_jax.training.step import jit_train_step, make_train_step
    from bert_jax.training.stepping import compile_program

    device = jax.devices()[0]
    task, batch = (_pretraining if figure.task == "pretraining" else _finetuning)(figure, dtype)
    mesh, tx = make_mesh(MeshConfig(), [device]), adamw.Optimizer().make()
    state, frozen = InitialState(task, tx, mesh).make(0)
    batch = meshes.to_devices(batch, mesh)
    schedule = linear.Schedule(1e-4, 10).make(100_000)
    with meshes.activations(mesh):
        step = compile_program(jit_train_step(make_train_step(task, tx, schedule, 0), state), state, frozen, batch)

    def run(steps: int) -> float:
        nonlocal state
        start = time.perf_counter()
        for _ in range(steps):
            state = step(state, frozen, batch)
        jax.block_until_ready(state)
        return time.perf_counter() - start

    [kind] = {kind for kind in task.flops_per_row if "/" not in kind}
    facts = {
        "device": f"{device.platform}: {device.device_kind}",
        "version": f"jax {jax.__version__}",
        "flops": task.flops_per_row[kind] * figure.rows,
    }
    return run, facts


def _model(figure: Figure, dtype: str) -> Any:
    from bert_jax.models.encoders import bert, modernbert

    config = {"bert": bert.Config, "modernbert": modernbert.Config}[figure.model]
    sizes = (figure.hidden, figure.layers, figure.heads, figure.mlp_dim)
    return config(VOCABULARY, *sizes, max_length=max(figure.length, 512), dtype=dtype)


def _pretraining(figure: Figure, dtype: str) -> tuple[Any, dict[str, Any]]:
    import numpy as np

    from bert_jax.objectives import mlm, mlm_nsp
    from bert_jax.objectives.base import Setting
    from bert_jax.rows.masking import MaskingConfig

    packed = figure.sequences > 1
    masking, setting = (
        MaskingConfig(max_predictions=figure.masked),
        Setting(_model(figure, dtype), {"step": figure.length}),
    )
    task: Any
    if figure.model == "bert":
        pairs = figure.sequences if packed else None
        task = mlm_nsp.Objective(
            mlm_nsp.Config(masking=masking, packing="packed" if packed else "none", max_pairs_per_row=pairs), setting
        )
    else:
        task = mlm.Objective(mlm.Config(masking=masking, arrangement="sentences"), setting)
    rng, starts = np.random.default_rng(0), np.arange(figure.sequences) * (figure.length // figure.sequences)
    places = np.arange(figure.length)
    sequence = np.searchsorted(starts, places, side="right") - 1
    predicted = np.linspace(1, figure.length - 2, figure.masked).astype(int)
    values: dict[str, Any] = {
        "input_ids": rng.integers(1000, VOCABULARY, (figure.rows, figure.length)),
        "token_type_ids": 0,
        "attention_mask": 1,
        "position_ids": places - starts[sequence],
        "sequence_ids": sequence + 1,
        "masked_positions": predicted,
        "masked_labels": rng.integers(1000, VOCABULARY, (figure.rows, figure.masked)),
        "masked_weights": 1.0,
        "cls_positions": starts,
        "next_sentence_labels": rng.integers(0, 2, (figure.rows, figure.sequences)),
        "next_sentence_weights": 1.0,
        "row_weights": 1.0,
    }
    specs = task.batch_specs["step"]
    return task, {
        name: np.broadcast_to(np.asarray(values[name], of.dtype), (figure.rows, *of.shape)).copy()
        for name, of in specs.items()
    }


def _finetuning(figure: Figure, dtype: str) -> tuple[Any, dict[str, Any]]:
    import numpy as np

    from bert_jax.tasks.base import KIND, Setting
    from bert_jax.tasks.classification import Config, Task

    words = " ".join(["a"] * (figure.length - 2))
    examples = tuple({"id": str(i), "text": words, "label": str(i % 2)} for i in range(figure.rows))
    tokenizer = wordpiece(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"))
    model = _model(figure, dtype)
    task = Task(Config(), Setting({"train": examples}, tokenizer, model, ("0", "1"), figure.length, figure.rows))
    rows = task.source("train", KIND, 0).rows(np.zeros(figure.rows, np.int64), np.arange(figure.rows))
    ids = np.random.default_rng(0).integers(1000, VOCABULARY, (figure.rows, figure.length), np.int32)
    assert rows["attention_mask"].shape == ids.shape
    return task, {**rows, "input_ids": ids}


def matmul_rate(dtype: str) -> float:
    """Return the FLOP/s of a large matrix product on the first device."""
    import jax

    from bert_jax.planning import peak_rates

    return peak_rates.matmul_rate(jax.devices()[0], dtype)
