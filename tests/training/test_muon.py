"""Muon: which parameters it takes, and its steps against a computation of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.models.encoders import albert
from bert_jax.models.model import fresh_params
from bert_jax.models.transformer import stack_layers, unstack_layers
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

    def steps(kernels: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        params = {"encoder": {"layer_0": {name: {"kernel": jnp.asarray(x)} for name, x in kernels.items()}}}
        tx = muon.Optimizer(weight_decay=0.0).make()
        found, _ = tx.update(params, tx.init(params), params)
        return {name: np.asarray(tree["kernel"]) for name, tree in found["encoder"]["layer_0"].items()}

    together = steps(kernels)
    for name in ("qkv", "input"):
        for i in range(kernels[name].shape[1]):
            alone = steps({"query": kernels[name][:, i]})["query"]
            np.testing.assert_allclose(together[name][:, i], alone, atol=1e-5)


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
        params = jax.tree.map(lambda w: jnp.asarray(w, jnp.float64), tiny_params())
        gradients = [jax.tree.map(lambda g: jnp.asarray(g, jnp.float64), random_like(params, s)) for s in range(3)]
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


def test_steps_are_as_large_as_those_of_adam() -> None:
    """The RMS of a step, over a step of the words: all near 0.2, as AdamW's are (Liu et al. 2025)."""
    params = tiny_params()
    found = run(muon.Optimizer(weight_decay=0.0), params, [random_like(params, 0)], rate=1.0)
    steps = jax.tree.map(lambda a, b: np.sqrt(np.mean((a - b) ** 2)), params, found)
    sizes = [leaf for path, leaf in leaves(steps).items() if "layer_" in path and "kernel" in path]
    assert len(sizes) == 12
    assert 0.13 < min(sizes) <= max(sizes) < 0.25


def test_stacked_layers_are_matrices_one_by_one() -> None:
    params = tiny_params()
    gradients = [random_like(params, seed) for seed in range(3)]
    unrolled = run(muon.Optimizer(), params, gradients)
    stacked = unstack_layers(run(muon.Optimizer(), stack_layers(params), [stack_layers(one) for one in gradients]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), unrolled, stacked)


def test_a_momentum_of_one_is_refused() -> None:
    with pytest.raises(UserError, match="config.optimizer.momentum is 1.0; from 0 to below 1 is allowed"):
        muon.Optimizer(momentum=1.0)
