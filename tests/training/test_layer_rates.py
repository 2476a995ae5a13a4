"""Factors of learning rates by name of a parameter, and updates with them against a plain recomputation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.models.encoders import albert, bert, distilbert, ernie, modernbert, roberta
from bert_jax.models.model import IDS, LM_HEAD, POOLER, Model, fresh_params
from bert_jax.models.transformer import scanned_from, stack_layers, unstack_layers
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.runs.finetuning import Finetuning
from bert_jax.training import mesh as meshes
from bert_jax.training.layer_rates import check, factors, scaled
from bert_jax.training.mesh import unbox
from bert_jax.training.optimizers import adamax, adamw, lamb
from bert_jax.training.optimizers.base import Rule
from bert_jax.training.trained import part_of, transformation
from tests.tasks import toy_tasks
from tests.training.test_updates import by_hand, leaves, random_like, run, tiny_params

DECAY, N = 0.8, 2


def by_name(params: Any) -> dict[str, float]:
    """Return the factors by the names of the trees that share one."""
    found: dict[str, set[float]] = {}
    for path, factor in jax.tree_util.tree_leaves_with_path(factors(params, DECAY)):
        names = [key.key for key in path]
        found.setdefault("/".join(names[:2] if names[0] == "encoder" else names[:1]), set()).add(float(factor))
    assert all(len(values) == 1 for values in found.values())
    return {name: values.pop() for name, values in found.items()}


ENCODERS = {"bert": bert, "roberta": roberta, "distilbert": distilbert, "ernie": ernie, "albert": albert}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_factors_by_name(encoder: str) -> None:
    module: Any = ENCODERS[encoder]
    config = module.Config(50, hidden_size=8, num_layers=N, num_heads=2, mlp_dim=16, max_length=8)
    batch = {name: np.zeros((1, 1), np.int32) for name in (*IDS, *module.Encoder.reads, "masked_positions")}
    params = unbox(jax.eval_shape(Model(config, (POOLER, LM_HEAD)).init, jax.random.key(0), batch)["params"])
    of_encoder = {"embeddings": 0.8**4, "layer_0": 0.8**3, "layer_1": 0.8**2}
    if encoder == "albert":  # one layer
        of_encoder = {"embeddings": 0.8**3, "embedding_projection": 0.8**3, "layer": 0.8**2}
    expected = {f"encoder/{name}": value for name, value in of_encoder.items()}
    assert by_name(params) == pytest.approx({"pooler": 1.0, "mlm_head": 1.0} | expected)


def test_layers_of_a_period_have_the_factors_that_they_have_alone() -> None:
    """ModernBERT's: the first layer is not stacked, then three at a time."""
    config = modernbert.Config(50, hidden_size=8, num_layers=7, num_heads=2, mlp_dim=16, max_length=8)
    shapes, groups = jax.eval_shape(lambda: fresh_params(config)), scanned_from(config.blocks)
    of_stacked = jax.eval_shape(lambda params: stack_layers(params, groups), shapes)
    found, stacked = factors(shapes, DECAY), factors(of_stacked, DECAY)
    assert groups == (1, 3)
    spread = jax.tree.map(lambda factor, leaf: np.broadcast_to(factor, leaf.shape), stacked, of_stacked)
    for i in range(7):
        [factor] = {float(one) for one in jax.tree.leaves(found["encoder"][f"layer_{i}"])}
        assert factor == pytest.approx(DECAY ** (8 - i))
        for leaf in jax.tree.leaves(unstack_layers(spread, groups)["encoder"][f"layer_{i}"]):
            np.testing.assert_allclose(leaf, factor, rtol=1e-6)
    assert set(jax.tree.leaves(found["encoder"]["layer_norm"])) == {DECAY}


def test_twelve_layers_have_the_rates_of_electra() -> None:
    """google-research/electra, model/optimization.py: 0.8 ** (12 + 2 - depth)."""
    weight = np.zeros(2, np.float32)
    encoder = {"embeddings": weight, "final_norm": weight, **{f"layer_{i}": weight for i in range(12)}}
    found = factors({"encoder": encoder, "classifier": weight}, 0.8)
    assert found["encoder"]["embeddings"] == pytest.approx(0.0440, abs=5e-5)
    assert found["encoder"]["layer_0"] == pytest.approx(0.0550, abs=5e-5)
    assert found["encoder"]["layer_11"] == pytest.approx(0.64)
    assert (found["encoder"]["final_norm"], found["classifier"]) == (pytest.approx(0.8), 1.0)


def share(name: str) -> float:
    """Return the factor of a leaf of ``tiny_params``, by its name alone."""
    for part, depth in (("embeddings", 0), ("layer_0", 1), ("layer_1", 2)):
        if f"['encoder']['{part}']" in name:
            return float(DECAY ** (N + 2 - depth))
    return 1.0


class Decayed:
    """An optimizer with layer-wise decay, as ``run`` takes one."""

    def __init__(self, optimizer: Rule):
        self.make = lambda: scaled(optimizer.make(), DECAY)


def test_updates_are_those_of_the_published_optimizer_with_a_rate_for_each_layer() -> None:
    params, gradients = tiny_params(), [random_like(tiny_params(), seed) for seed in range(5)]
    found = leaves(run(Decayed(adamw.Optimizer()), params, gradients))  # type: ignore[arg-type]
    for name, expected in by_hand(params, gradients, share=share).items():
        np.testing.assert_allclose(found[name], expected, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("optimizer", [lamb.Optimizer(), adamax.Optimizer()])
def test_every_optimizer_has_its_steps_scaled(optimizer: Rule) -> None:
    params, gradient = tiny_params(), random_like(tiny_params(), 8)
    plain, decayed = (leaves(run(one, params, [gradient])) for one in (optimizer, Decayed(optimizer)))  # type: ignore[arg-type]
    for name, start in leaves(params).items():
        np.testing.assert_allclose(decayed[name] - start, share(name) * (plain[name] - start), atol=3e-7, err_msg=name)


def test_stacked_layers_move_as_unrolled_ones() -> None:
    params, gradient, optimizer = tiny_params(), random_like(tiny_params(), 8), Decayed(adamw.Optimizer())
    unrolled = run(optimizer, params, [gradient])  # type: ignore[arg-type]
    stacked = jax.device_get(run(optimizer, stack_layers(params), [stack_layers(gradient)]))  # type: ignore[arg-type]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), unrolled, unstack_layers(stacked))


def test_without_decay_the_optimizer_is_the_same_object() -> None:
    tx = adamw.Optimizer().make()
    assert scaled(tx, None) is tx
    assert scaled(tx, 1.0) is tx


class Kinds:
    """Has what an optimizer reads of a task of one kind."""

    batch_specs = ("train",)

    def __init__(self, trains: frozenset[str]):
        self.trains = trains

    def of(self, kind: str) -> Any:
        del kind
        return self


@pytest.mark.parametrize("trains", [{"pooler"}, {"encoder", "nsp_head"}])
def test_a_step_that_trains_some_parts(trains: set[str]) -> None:
    params, parts = tiny_params(), frozenset(trains)
    gradient, tx = part_of(random_like(params, 8), parts), transformation(Kinds(parts), adamw.Optimizer())
    plain, decayed = (
        jax.jit(lambda g, p, tx=tx: tx.update(g, tx.init(p), p)[0])(gradient, params) for tx in (tx, scaled(tx, DECAY))
    )
    for (name, one), other in zip(leaves(plain).items(), leaves(decayed).values(), strict=True):
        np.testing.assert_allclose(other, share(name) * one, rtol=1e-6, err_msg=name)


def test_a_run_with_scanned_layers_and_a_sharded_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of Adam is the rate, whatever the gradient, but for what has none."""
    monkeypatch.setattr(meshes, "SPLIT", 16)
    toy_tasks.write_toy(tmp_path, "classification", 16, 8)
    config = toy_tasks.recipe(
        "classification",
        model={"layers": "scanned", "num_layers": N},
        schedule={"layer_decay": DECAY, "warmup_fraction": 0.0, "peak_learning_rate": 0.5},
        optimizer={"clip_norm": None, "weight_decay": 0.0, "eps": 1e-12},
    )
    checked = Finetuning(FinetuningSettings.of(config), None)
    task, experiment = checked.with_examples(checked.load(str(tmp_path), lambda line: None))
    mesh, phase, source = experiment.check(), experiment.phases.phases[0], task.source("train", "train", 0)
    with meshes.activations(mesh):
        state, frozen = experiment.initial_state(task, mesh).make(0)
        assert meshes.is_split(state.params)
        before = leaves(jax.device_get(state.params))
        batch = meshes.to_devices(source.rows(np.zeros(16, np.int64), np.arange(16)), mesh)
        after = leaves(experiment.jitted_step(task, "train", phase, state)(state, frozen, batch).params)
    for name, weight in before.items():
        if "['key']['bias']" in name:
            continue
        sizes = np.abs(after[name] - weight)
        if "['layers']" in name:
            expected = [DECAY**3, DECAY**2]
            sizes = sizes.reshape(N, -1).max(axis=1)
        else:
            expected, sizes = [share(name)], sizes.max()
        np.testing.assert_allclose(sizes, 0.5 * np.array(expected), rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.1, "0.9"])
def test_a_decay_that_is_none(decay: Any) -> None:
    with pytest.raises(UserError, match="config.schedule.layer_decay"):
        FinetuningSettings.of(toy_tasks.recipe("classification", schedule={"layer_decay": decay}))


def test_an_encoder_without_such_layers_is_refused() -> None:
    with pytest.raises(UserError, match="layer_decay needs layers called layer_0.*this encoder has blocks; leave"):
        factors({"encoder": {"blocks": np.zeros(2)}}, DECAY)


def test_a_frozen_encoder_has_no_rates() -> None:
    task = toy_tasks.make_task("tagging", {"train": toy_tasks.examples("tagging", 8)}, frozen=("encoder",))
    check(task, None)
    with pytest.raises(UserError, match="layer_decay is for the layers of an encoder, and it is frozen; leave it out"):
        check(task, DECAY)
