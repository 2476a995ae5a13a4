"""Muon: which parameters it takes, and its steps against a computation of its own."""

import collections
import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from optax.contrib import scale_by_muon

from bert_jax.errors import UserError
from bert_jax.models.encoders import albert
from bert_jax.models.model import fresh_params
from bert_jax.models.transformer import stack_layers, unstack_layers
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import ROWS, MeshConfig, make_mesh
from bert_jax.training.optimizers import muon
from tests.training.test_updates import leaves, random_like, run, tiny_params

OF_LAYER = ("attention.key", "attention.output", "attention.query", "attention.value", "mlp.input", "mlp.output")
RATE, DECAY, WIDTH = 0.01, 0.1, 8


def taken(params: dict[str, object]) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters that Muon takes, by path, from what it keeps of them."""
    state = jax.eval_shape(muon.Optimizer().make().init, params)
    [of_muon, _] = state[1].inner_states["muon"].inner_state
    found = jax.tree_util.tree_leaves_with_path(of_muon.mu)
    assert all(path[-1].key == "kernel" for path, _ in found)
    return {".".join(str(key.key) for key in path[:-1]): leaf.shape for path, leaf in found}


def test_what_it_takes() -> None:
    """Neither embeddings nor heads: the output of the masked LM is the table of the words."""
    unrolled, scanned = taken(tiny_params()), taken(stack_layers(tiny_params()))
    assert list(unrolled) == [f"encoder.layer_{i}.{name}" for i in range(2) for name in OF_LAYER]
    assert list(scanned) == [f"encoder.layers.{name}" for name in OF_LAYER]
    assert unrolled["encoder.layer_1.attention.query"] == (8, 2, 4)
    assert scanned["encoder.layers.attention.output"] == (2, 2, 4, 8)
    shared = jax.eval_shape(lambda: fresh_params(albert.Config(50, 8, 2, 2, 16, max_length=8)))
    assert list(taken(shared)) == ["encoder.embedding_projection", *(f"encoder.layer.{name}" for name in OF_LAYER)]


def test_the_matrices_of_one_kernel_are_made_orthogonal_each() -> None:
    """Queries, keys and values of ModernBERT, and the halves of its MLPs: as if each had a kernel of its own."""
    draw = np.random.default_rng(0).normal
    kernels = {"qkv": draw(size=(8, 3, 2, 4)), "input": draw(size=(8, 2, 6)), "output": draw(size=(2, 4, 8))}
    tx = muon.Optimizer(weight_decay=0.0).make()
    update = jax.jit(lambda params: tx.update(params, tx.init(params), params)[0])

    def steps(kernels: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = update({"encoder": {"layer_0": {name: {"kernel": x} for name, x in kernels.items()}}})
        return {name: np.asarray(tree["kernel"]) for name, tree in found["encoder"]["layer_0"].items()}

    together = steps(kernels)
    for name in ("qkv", "input"):
        for i in range(kernels[name].shape[1]):
            alone = steps({"query": kernels[name][:, i]})["query"]
            np.testing.assert_allclose(together[name][:, i], alone, atol=1e-5)


def kernels(layers: int, width: int, scanned: bool = False) -> dict[str, Any]:
    """Return gradients of a ModernBERT's kernels: seven matrices a layer, of two shapes."""
    shapes = {
        "attention": {"qkv": (width, 3, 2, width // 2), "output": (2, width // 2, width)},
        "mlp": {"input": (width, 2, 2 * width), "output": (2 * width, width)},
    }
    rng = np.random.default_rng(0)

    def drawn(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        return {"kernel": rng.normal(size=shape).astype(np.float32)}

    found = {
        f"layer_{i}": {part: {name: drawn(shape) for name, shape in of.items()} for part, of in shapes.items()}
        for i in range(layers)
    }
    tree = {"encoder": found}
    return stack_layers(tree) if scanned else tree


def direction(gradient: Any) -> tuple[Any, Any]:
    """Return the second step along ``gradient``, without decay, and the state after it."""
    tx = muon.Optimizer(weight_decay=0.0).make()
    _, state = tx.update(gradient, tx.init(gradient), gradient)
    return tx.update(gradient, state, gradient)


@pytest.mark.parametrize("scanned", [False, True])
def test_matrices_of_one_shape_are_turned_together(scanned: bool) -> None:
    """As by optax, which takes kernel by kernel; in three products a step of the iteration and shape."""
    gradient = kernels(3, 32, scanned)
    one_by_one = scale_by_muon(weight_dimension_numbers=muon.dimension_numbers)
    update = jax.jit(one_by_one.update)
    _, state = update(gradient, jax.jit(one_by_one.init)(gradient))
    expected, _ = update(gradient, state)

    def assert_near(path: tuple[Any, ...], found: jax.Array, expected: jax.Array) -> None:
        wide = 64 if "mlp" in jax.tree_util.keystr(path) else 32
        np.testing.assert_allclose(found, 0.2 * np.sqrt(wide) * expected, rtol=0, atol=3e-6)

    jax.tree_util.tree_map_with_path(assert_near, jax.jit(direction)(gradient)[0], expected)
    tx = muon.Optimizer().make()
    traced = jax.make_jaxpr(tx.update)(gradient, jax.eval_shape(tx.init, gradient), gradient)
    assert len(re.findall(r"dot_general\[", str(traced))) == 2 * 5 * 3


def test_in_bfloat16_on_gpus_and_tpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The momentum keeps its bits; a step is nearly the same."""
    gradient = kernels(1, 128)
    expected, kept = jax.jit(lambda gradient: direction(gradient))(gradient)
    monkeypatch.setattr(muon, "platform", lambda: "gpu")
    found, state = jax.jit(lambda gradient: direction(gradient))(gradient)
    jax.tree.map(np.testing.assert_array_equal, state, kept)
    for name, step in leaves(found).items():
        wanted = leaves(expected)[name]
        assert 0.999 < np.vdot(step, wanted) / np.linalg.norm(step) / np.linalg.norm(wanted) < 0.99999, name


@pytest.mark.parametrize(
    ("mesh", "split"),
    [
        (MeshConfig(), ROWS),
        (MeshConfig(2, 4, weight_update="replicated"), "fsdp"),
        (MeshConfig(2, 2, 2), "tensor"),
        (MeshConfig(weight_update="replicated"), None),
    ],
)
def test_each_device_turns_its_share(mesh: MeshConfig, split: Any) -> None:
    """One of eight matrices [64, 64] and at most one of six [64, 128], which no product gathers."""
    made, gradient = make_mesh(mesh), kernels(2, 64)

    def place(kernel: jax.Array) -> NamedSharding:
        axis = next(i for i, size in enumerate(kernel.shape) if size >= 64)
        return NamedSharding(made, PartitionSpec(*(split if i == axis else None for i in range(kernel.ndim))))

    shardings = jax.tree.map(place, gradient)
    with meshes.activations(made):
        step = jax.jit(lambda gradient: direction(gradient)[0], in_shardings=(shardings,), out_shardings=shardings)
        program = step.lower(gradient).compile()
    products = re.findall(r" = f32(\[[\d,]+\])\S* (?:dot|custom-call)\(", program.as_text())
    assert collections.Counter(products) == {"[64,64]": 5 * 5, "[64,128]": 5}
    expected = leaves(jax.jit(direction)(gradient)[0])
    for name, found in leaves(program(jax.device_put(gradient, shardings))).items():
        np.testing.assert_allclose(found, expected[name], rtol=0, atol=3e-6, err_msg=name)


def orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Five Newton-Schulz steps (Jordan et al. 2024) on the singular values alone."""
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.sqrt(np.sum(values**2))
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return u * values @ v


def matrix_of(path: str, kernel: np.ndarray) -> np.ndarray:
    if "['attention']['output']" in path:
        return kernel.reshape(WIDTH, WIDTH)  # from two heads of four
    return kernel.reshape(WIDTH, -1) if "attention" in path else kernel


def test_three_updates() -> None:
    with jax.enable_x64(True):
        params = jax.tree.map(np.float64, tiny_params())
        gradients = [jax.tree.map(np.float64, random_like(params, s)) for s in range(3)]
        found = leaves(run(muon.Optimizer(), params, gradients, RATE))
        weights, m, v = leaves(params), leaves(params), leaves(params)
    m, v = ({name: 0.0 * value for name, value in tree.items()} for tree in (m, v))
    for t, gradient in enumerate(map(leaves, gradients), start=1):
        for name, g in gradient.items():
            w, b1 = weights[name], 0.95 if "layer_" in name and "kernel" in name else 0.9
            m[name], v[name] = b1 * m[name] + (1 - b1) * g, 0.95 * v[name] + 0.05 * g**2
            if b1 == 0.95:
                ahead = b1 * m[name] / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)  # Nesterov's
                matrix = matrix_of(name, ahead)
                step = (0.2 * np.sqrt(max(matrix.shape)) * orthogonal(matrix)).reshape(w.shape)
            else:
                step = m[name] / (1 - b1**t) / (np.sqrt(v[name] / (1 - 0.95**t)) + 1e-8)
            decayed = 0.0 if name.endswith(("bias']", "scale']")) else DECAY * w
            weights[name] = w - RATE * (step + decayed)
    for name, value in weights.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-7, err_msg=name)  # its coefficients are float32


def test_stacked_layers_are_matrices_one_by_one_and_their_steps_as_large_as_those_of_adam() -> None:
    """The RMS of every step of a matrix is near 0.2, as that of AdamW's steps is (Liu et al. 2025)."""
    params, rule = tiny_params(), muon.Optimizer(weight_decay=0.0)
    gradient = random_like(params, 0)
    unrolled = jax.device_get(run(rule, params, [gradient], rate=1.0))
    stacked = unstack_layers(jax.device_get(run(rule, stack_layers(params), [stack_layers(gradient)], rate=1.0)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), unrolled, stacked)
    steps = jax.tree.map(lambda a, b: np.sqrt(np.mean((a - b) ** 2)), params, unrolled)
    sizes = [leaf for path, leaf in leaves(steps).items() if "layer_" in path and "kernel" in path]
    assert len(sizes) == 12
    assert 0.13 < min(sizes) <= max(sizes) < 0.25


def test_a_momentum_of_one_is_refused() -> None:
    with pytest.raises(UserError, match="config.optimizer.momentum is 1.0; from 0 to below 1 is allowed"):
        muon.Optimizer(momentum=1.0)
