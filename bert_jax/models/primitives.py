"""Dense layers, layer norm and activations: float32 parameters, their initial values and their logical axis names."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.config import ModelConfig
from bert_jax.models.gradients import Activation, normalised, normalised_on_gpu, spread
from bert_jax.models.placement import platform
from bert_jax.models.products import rounded_product


def normal(config: ModelConfig, scale: float = 1.0) -> nn.initializers.Initializer:
    """Return a normal initializer with standard deviation ``scale * initializer_range``, cut at two deviations.

    This is as in google-research/bert. What is left by the cut has 0.8796 of that deviation.
    """
    return nn.initializers.truncated_normal(scale * config.initializer_range)


def uniform(bound: float) -> nn.initializers.Initializer:
    """Return an initializer that draws uniformly from [-bound, bound), as recurrent layers of torch are initialised."""

    def initialise(key: Any, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initialise


def with_axes(initializer: Callable[..., Any], *axes: str | None) -> Callable[..., Any]:
    """Return ``initializer`` for a parameter whose axes have these logical names."""
    if again := [axis for axis in axes if axis and axes.count(axis) > 1]:
        raise ValueError(f"two axes of a parameter have the name {again[0]!r}; let None stand for one of them")
    return nn.with_logical_partitioning(initializer, axes)


class Dense(nn.Module):
    """Maps x [..., *inputs] to x @ kernel + bias [..., *outputs]. Inputs and outputs are one or more named axes each.

    The factors have the compute dtype. The product is accumulated and returned in ``dtype`` (default: the compute
    dtype).

    Attributes:
      bias: whether there is a bias.
      scale: the initial standard deviation of the kernel, in ``initializer_range``.
    """

    config: ModelConfig
    inputs: tuple[tuple[str | None, int], ...]  # (logical name, size)
    outputs: tuple[tuple[str | None, int], ...]
    dtype: Any = None
    bias: bool = True
    scale: float = 1.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, axes = self.config, (*self.inputs, *self.outputs)
        names, shape = [name for name, _ in axes], [size for _, size in axes]
        kernel = self.param("kernel", with_axes(normal(config, self.scale), *names), shape, config.param_dtype)
        names, sizes = names[len(self.inputs) :], shape[len(self.inputs) :]
        rows = x.shape[: x.ndim - len(self.inputs)]
        # Reshaped to one product of two matrices: with more axes, XLA on CPU computes the gradient with a transposed
        # copy and a product that is three times slower.
        width = math.prod(size for _, size in self.inputs)
        x, kernel = x.reshape(-1, width), kernel.reshape(width, -1)
        if activation_dtype(config) != config.compute_dtype:
            y = rounded_product(x, kernel, config.compute_dtype)
        else:
            x, kernel = (factor.astype(config.compute_dtype) for factor in (x, kernel))
            y = jnp.matmul(x, kernel, preferred_element_type=self.dtype or config.compute_dtype)
        if self.bias:
            bias = self.param("bias", with_axes(nn.initializers.zeros, *names), sizes, config.param_dtype)
            y = y + spread(bias.reshape(-1), y.shape, y.dtype)  # before the next line, XLA adds it within the product
        return y.reshape(*rows, *sizes)


class LayerNorm(nn.Module):
    """Normalises x [..., D] over D, using the biased variance (Ba et al. 2016); statistics are computed in float32.

    There is a bias if ``config.biases``.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, size = self.config, x.shape[-1:]
        scale = self.param("scale", with_axes(nn.initializers.ones, "embed"), size, config.param_dtype)
        bias = None
        if config.biases:
            bias = self.param("bias", with_axes(nn.initializers.zeros, "embed"), size, config.param_dtype)
        normalise = normalised_on_gpu if platform() == "gpu" else normalised
        return normalise(x, scale, bias, config.layer_norm_eps, (config.param_dtype, activation_dtype(config)))


def _in_float32(activation: Activation) -> Activation:
    """Return ``activation`` computed in float32 or wider; its result has the dtype of its argument.

    In bfloat16 the term 1 + erf of a GELU loses its digits by cancellation: for x between -4 and -1 the result is wrong
    by 36 % on average, and often 0.
    """

    @functools.wraps(activation)
    def wide(x: jax.Array) -> jax.Array:
        return activation(x.astype(jnp.promote_types(x.dtype, jnp.float32))).astype(x.dtype)

    return wide


@_in_float32
def _gelu(x: jax.Array) -> jax.Array:
    """Return x * Phi(x), computed with erf.

    XLA's erfc, which ``jax.nn.gelu`` uses, is several times slower on CPU.
    """
    return 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


@_in_float32
def _gelu_tanh(x: jax.Array) -> jax.Array:
    """Return the tanh approximation of GELU (Hendrycks and Gimpel 2016, section 2)."""
    return 0.5 * x * (1.0 + jnp.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


ACTIVATIONS: dict[str, Activation] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": jax.nn.relu,
}


def activation_dtype(config: ModelConfig) -> Any:
    """Return the dtype of the model's activations: the compute dtype, but float32 or wider on CPUs.

    A CPU rounds to bfloat16 slowly, element by element, and is fast only at products with bfloat16 factors.
    """
    return config.param_dtype if platform() == "cpu" else config.compute_dtype
