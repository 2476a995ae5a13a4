"""``bert-jax prune``: importance is the slope at a gate, and a model without units is the model with silent ones."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.architectures import HeadClass
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.resizing.pruning import cut_model, importance, pruned_config
from bert_jax.runs.prediction import load_tuned, make_task
from bert_jax.task import Variables
from bert_jax.tasks.base import KIND
from bert_jax.training.mesh import unbox
from tests.tasks import toy_tasks

LAYERS, UNITS = 3, 64
EXAMPLES = toy_tasks.examples("classification", 21, seed=1)  # no multiple of a batch


def silence(params, layer: int, factor: float, units=slice(None), also_attention: bool = False):
    """The parameters in which some MLP units of a layer, or all that the layer adds, are multiplied by ``factor``."""
    params = jax.tree.map(np.copy, dict(params))
    one = params["encoder"][f"layer_{layer}"]
    one["mlp"]["output"]["kernel"][units] *= factor
    if also_attention:
        one["mlp"]["output"]["bias"] *= factor
        for leaf in one["attention"]["output"].values():
            leaf *= factor
    return params


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    task = toy_tasks.make_task("classification", {"train": EXAMPLES})
    model = dataclasses.replace(task.setting.model, num_layers=LAYERS, mlp_dim=UNITS)
    rng, variables = np.random.default_rng(0), jax.eval_shape(task.with_model(model).init, jax.random.key(0))
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: np.float32(rng.normal(0, 0.2, x.shape) + (path[-1].key == "scale")), unbox(variables.params)
    )
    head = HeadClass("BertForSequenceClassification", task.setting.labels, "single_label_classification")
    folder = tmp_path_factory.mktemp("classifier") / "model"
    export_model(TrainedModel("", params, model, task.setting.tokenizer, head), folder, "the card")
    return str(folder)


@pytest.fixture(scope="module")
def model(folder) -> TrainedModel:
    return load_tuned(folder)


@pytest.fixture(scope="module")
def scores(model):
    return importance(model, EXAMPLES)


@pytest.fixture
def dev(tmp_path) -> str:
    path = tmp_path / "dev.tsv"
    path.write_text("\n".join(["text\tlabel", *(f"{one['text']}\t{one['label']}" for one in EXAMPLES)]) + "\n")
    return str(path)


def losses(model: TrainedModel, *trees) -> np.ndarray:
    """The loss of each example with each tree of parameters, [trees, examples], one by one."""
    task = make_task(model, EXAMPLES, "dev")
    source = task.source("eval", KIND, 0, "dev")
    rows = [source.rows(np.zeros(1, int), np.array([i])) for i in range(source.rows_per_epoch)]
    loss = jax.jit(lambda params, row: task.loss(Variables(params, {}), row, None).terms[""].value)
    return np.array([[float(loss(params, row)) for row in rows] for params in trees])


def test_importance_is_the_slope_at_a_gate(model, scores):
    units, layers = scores
    assert units.shape == (LAYERS, UNITS)
    step, places = 0.02, [(0, 3), (1, 40), (2, 63)]
    trees = [silence(model.params, layer, 1 + s, unit) for layer, unit in places for s in (step, -step)]
    trees += [silence(model.params, layer, 1 + s, also_attention=True) for layer, _ in places for s in (step, -step)]
    above, below = losses(model, *trees).reshape(6, 2, -1).swapaxes(0, 1)
    slopes = np.abs((above - below) / (2 * step)).sum(axis=1)
    np.testing.assert_allclose(slopes, [*(units[place] for place in places), *layers], rtol=0.02)


def test_silent_units_are_as_good_as_none(model, scores):
    units, layers = scores
    silent = model.params
    for layer in range(LAYERS):
        silent = silence(silent, layer, 0.0, np.argsort(units[layer])[: UNITS - 20])
    pruned = cut_model(model, dataclasses.replace(model.config, mlp_dim=20), units, layers)
    before, without = losses(model, model.params, silent)
    np.testing.assert_allclose(losses(pruned, pruned.params)[0], without, rtol=1e-5)
    assert np.abs(without - before).max() > 1e-3


def test_the_layers_that_matter_most_stay_in_order(model, scores):
    units, _ = scores
    pruned = cut_model(model, dataclasses.replace(model.config, num_layers=2), units, np.array([5.0, 1.0, 3.0]))
    old, new = model.params["encoder"], pruned.params["encoder"]
    for was, now in (("layer_0", "layer_0"), ("layer_2", "layer_1")):
        jax.tree.map(np.testing.assert_array_equal, new[now], old[was])
    assert "layer_2" not in new


def test_the_command(folder, model, dev, tmp_path, capsys):
    output = tmp_path / "smaller"
    flags = [f"--workdir={folder}", f"--input={dev}", "--mlp=0.25", "--layers=2", f"--output={output}"]
    assert run(["prune", *flags]) == 0
    *_, head, before, after = capsys.readouterr().out.splitlines()
    small = load(str(output))
    assert (small.config.num_layers, small.config.mlp_dim) == (2, 16)
    assert after.split()[1] == f"{sum(x.size for x in jax.tree.leaves(small.params)):,}"
    assert head.endswith(" accuracy")
    assert run(["evaluate", f"--workdir={output}", f"--input={dev}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(float(after.split()[-1]), abs=1e-4)
    assert run(["evaluate", f"--workdir={folder}", f"--input={dev}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(float(before.split()[-1]), abs=1e-4)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "all units and layers would stay"),
        (["--mlp=0"], "--mlp above 0 and at most 1, and --layers from 1 to 3"),
        (["--mlp=nan"], "--mlp above 0 and at most 1, and --layers from 1 to 3"),
        (["--layers=4"], "--mlp above 0 and at most 1, and --layers from 1 to 3"),
        (["--layers=0"], "--layers: found '0'"),
        (["--layers=2", "--input=no.tsv"], "no.tsv"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(flags, said, folder, dev, tmp_path, capsys):
    output = tmp_path / "out"
    assert run(["prune", f"--workdir={folder}", f"--input={dev}", *flags, f"--output={output}"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert [Path(dev)] == list(tmp_path.iterdir())


def test_what_cannot_be_written_is_refused_first(model):
    bare = dataclasses.replace(model, facts={"task": {"name": "ranking"}}, head=HeadClass("BertModel"))
    with pytest.raises(UserError, match="no class with the head of ranking"):
        pruned_config(bare, 0.5, None)
