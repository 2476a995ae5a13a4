"""The train step that is compiled for a GPU, on a machine without a GPU; needs jax's CUDA plugin and ptxas."""

from __future__ import annotations

import dataclasses
import functools
import math
import re

import jax
import numpy as np
import pytest

from bert_jax.cli import main
from bert_jax.models import gradients
from bert_jax.planning import hlo, topologies
from bert_jax.planning.chips import CHIPS
from bert_jax.planning.collectives import Fabric
from bert_jax.planning.gpu_targets import TARGETS
from bert_jax.planning.prediction import predict
from bert_jax.program import INSTALL
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizers import adamw, muon
from bert_jax.training.optimizers.base import Rule
from bert_jax.training.schedules import linear
from bert_jax.training.state import InitialState
from bert_jax.training.step import jit_train_step, make_train_step
from tests.benchmarks.suite import ours
from tests.benchmarks.suite.figures import BASE_128, MODERN_1024, VOCABULARY, Figure

NARROW = {"layers": 2, "hidden": 256, "heads": 4}
ADAMW = adamw.Optimizer()
SHAPES = {
    "rows of 128": (dataclasses.replace(BASE_128, **NARROW), 64),
    "ModernBERT": (dataclasses.replace(MODERN_1024, **NARROW), 8),
}


@functools.cache
def program(figure: Figure, rows: int, name: str, optimizer: Rule = ADAMW) -> tuple[str, float]:
    """Return the optimized program of the train step in bfloat16, and the FLOPs of a device by the model's shape."""
    task, batch = ours._pretraining(dataclasses.replace(figure, rows=8), "bfloat16")
    devices = topologies.devices(topologies.parse(name))
    mesh, tx = make_mesh(MeshConfig(), devices), optimizer.make()
    state, frozen = InitialState(task, tx, mesh).shapes
    sharding = meshes.batch_sharding(mesh)
    batch = {
        feature: jax.ShapeDtypeStruct((rows, *values.shape[1:]), values.dtype, sharding=sharding)
        for feature, values in batch.items()
    }
    step = jit_train_step(make_train_step(task, tx, linear.Schedule(1e-4, 10).make(1000), 0), state)
    with meshes.activations(mesh), jax.default_device(devices[0]):
        text = step.lower(state, frozen, batch).compile().as_text()
    [flops] = task.flops_per_row.values()
    return text, flops * rows / len(devices)


def written(text: str, dtype: str) -> list[tuple[str, list[int]]]:
    """Return the names of the kernels of the program, each with the sizes of an array that it writes."""
    entry = text[text.index("\nENTRY") :]
    kernels = re.findall(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\([^=]*?\)|\S+) (?:fusion|custom-call|copy)\(", entry, re.M)
    return [
        (name, [int(size) for size in shape.split(",")])
        for name, types in kernels
        for shape in re.findall(rf"\b{dtype}\[([\d,]+)\]", types)
    ]


def activations(text: str, dtype: str, rows: int, length: int) -> list[str]:
    """Return the names of the kernels that write an array of all positions."""
    return [
        name
        for name, sizes in written(text, dtype)
        if (rows * length in sizes or {rows, length} <= {*sizes}) and math.prod(sizes) > 64 * rows * length
    ]


needs_plugin = pytest.mark.skipif(
    not topologies.has_gpu_compiler(), reason=f"needs jax's CUDA plugin: {INSTALL['plan-gpu']}"
)


@needs_plugin
@pytest.mark.parametrize("name", ["h100:1", "h100:8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_has_no_activations_in_float32_transposes_none_and_adds_in_a_fixed_order(shape, name):
    figure, rows = SHAPES[shape]
    devices = int(name.partition(":")[2])
    text, flops = program(figure, rows * devices, name)
    found = activations(text, "bf16", rows, figure.length)
    assert found  # the pattern finds what is there
    assert not [name for name in found if "transpose" in name]
    # ModernBERT's queries and keys are cut out as they are rotated, its values before attention reads them.
    assert len([name for name in found if "slice" in name]) <= (figure.layers if figure.model == "modernbert" else 0)
    # Dropout reads no array of zeros: a scatter would have XLA write such an array, and all others share it.
    assert not [name for name in found if "broadcast" in name or name.startswith("copy") and figure.model == "bert"]
    # The gradients of the word embeddings, added up in blocks.
    assert len(activations(text, "f32", rows, figure.length)) <= 1
    # A scatter that may add twice to one place does so by atomics, in no fixed order.
    scatters = [line for line in text.splitlines() if re.search(r" scatter\(", line)]
    assert scatters
    assert all("unique_indices=true" in line for line in scatters)
    wide = [name for name, sizes in written(text, "f32") if math.prod(sizes) >= rows * figure.masked * VOCABULARY]
    assert len(wide) == 1, wide  # the logits, which a product writes
    fabric = Fabric(("data",), (devices,), CHIPS["h100"], per_host=8)
    predicted = predict(hlo.parse(text), fabric)
    # Attention's kernels compute 9 products where the model counts 6; in a window, they read more keys than it has.
    kernels = sum(map(float, re.findall(r' custom-call\(.*kernel_flops="(\d+)"', text)))
    assert kernels > 0
    assert predicted.products - kernels / 3 == pytest.approx(flops, rel=0.005 if shape == "rows of 128" else 0.1)
    assert {"all-reduce"} <= {row.kind for row in predicted.collectives} or devices == 1


@needs_plugin
@pytest.mark.parametrize("shape", SHAPES)
def test_an_update_reads_and_writes_a_matrix_and_its_moments_once(shape):
    """One kernel takes the step, or skips it, and writes the matrix and both moments in their places."""
    text, _ = program(*SHAPES[shape], "h100:1")
    entry = re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", text[text.index("\nENTRY") :])
    matrix = r"f32\[\d{3,}[\d,]*,\d+\]"
    kept = re.findall(rf"^ +%?state_params\S* = ({matrix}) parameter\(", entry, re.M)
    assert len(kept) > 6
    assert sorted(re.findall(rf" = \(({matrix}), \1, \1\) fusion\(", entry)) == sorted(kept)
    assert not re.findall(rf" = {matrix} copy\(", entry)


@needs_plugin
def test_muon_turns_all_matrices_of_one_shape_in_one_product_in_bfloat16():
    text, _ = program(*SHAPES["ModernBERT"], "h100:1", muon.Optimizer())
    products = re.findall(r" = (\S+)\{\S* dot\((?!.*jvp\()", text)
    assert sorted(products) == ["bf16[6,256,256]"] * 10 + ["bf16[6,256,384]"] * 5 + ["bf16[8,256,256]"] * 15


@needs_plugin
@pytest.mark.filterwarnings("ignore:Error reading persistent")  # it is found, and no GPU is here to load it
def test_a_kept_program_is_that_of_one_card_and_one_driver(tmp_path, monkeypatch):
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [jax.config.values[name] for name in names]
    for name, value in zip(names, (str(tmp_path), 0.0), strict=True):
        jax.config.update(name, value)
    try:
        kept = []
        for card, driver in (("h200", "13.0.0"), ("h200", "13.0.0"), ("h200", "12.8.0"), ("h100", "13.0.0")):
            target = TARGETS[card].replace('driver_version: "13.0.0"', f'driver_version: "{driver}"')
            monkeypatch.setitem(topologies.TARGETS, card, target)
            [device] = topologies.devices(topologies.parse(f"{card}:1"))
            here = jax.sharding.SingleDeviceSharding(device)
            x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=here)
            jax.clear_caches()
            jax.jit(jax.numpy.sin).lower(x).compile()
            kept.append(len(list(tmp_path.glob("jit*"))))
        assert kept == [1, 1, 2, 3]
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_layer_norm_of_gpus_is_the_layer_norm(dtype, biases):
    random = np.random.default_rng(0)
    x, gradient = (jax.numpy.asarray(random.normal(size=(3, 5, 64)), dtype) for _ in range(2))
    scale, bias = (jax.numpy.asarray(random.normal(size=64), "float32") for _ in range(2))
    parameters = (scale, bias if biases else None)
    plain, fused = (
        jax.vjp(lambda x, scale, bias, f=f: f(x, scale, bias, 1e-12, ("float32", dtype)), x, *parameters)
        for f in (gradients.normalised, gradients.normalised_on_gpu)
    )
    tolerance = 1e-5 if dtype == "float32" else 0.02
    np.testing.assert_allclose(np.float32(plain[0]), np.float32(fused[0]), rtol=tolerance, atol=tolerance)
    for expected, found in zip(plain[1](gradient), fused[1](gradient), strict=True):
        if expected is not None:
            assert expected.dtype == found.dtype
            error = np.abs(np.float64(expected) - np.float64(found)).max() / np.abs(np.float64(expected)).max()
            assert error < (1e-6 if dtype == "float32" else 1e-2)


@needs_plugin
def test_a_plan_of_many_positions_asks_no_card(capsys):
    """From 16,384 ids on, XLA would ask a card how much memory its sort takes."""
    tiny = [f"--config.model.{key}" for key in ("hidden_size=32", "num_layers=1", "num_heads=2", "mlp_dim=64")]
    assert main.run(["plan", "--config=modernbert_gpu", "--topology=h100:1", *tiny]) == 0
    assert "verdict: fits" in capsys.readouterr().out
