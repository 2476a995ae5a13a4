"""Compiles a kernel alone, before a model is traced with it: some GPUs and drivers cannot run every kernel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp

from bert_jax.models.kernels.base import Case, Factors, Kernel
from bert_jax.parts import catalogue
from bert_jax.program import warn

_LENGTH, _HEADS = 256, 2  # of the row that is tried; whether a kernel compiles follows from the size of heads
_tried: dict[tuple[str, int, str], bool] = {}


def compiles(name: str, case: Case, kernel: Kernel) -> bool:
    """Return whether a kernel compiles for the GPU of this process, forward and backward; warn if it does not.

    It is tried once for each size of heads. Kernels for other devices, and for a GPU that is not here, are not tried.
    """
    if case.platform != "gpu" or jax.default_backend() != "gpu":
        return True
    key = (name, case.head_dim, case.dtype)
    if key not in _tried:
        with ThreadPoolExecutor(1) as outside:  # outside of the trace that is under way, and of its mesh
            fault = outside.submit(_compile, kernel, case).exception()
        _tried[key] = fault is None
        if fault and jax.process_index() == 0:
            device, said = jax.local_devices()[0].device_kind, (str(fault).splitlines() or [type(fault).__name__])[0]
            warn(
                f"the attention kernel {catalogue.display_name(name)} does not compile for {device} with heads of "
                f"{case.head_dim} entries ({said[:200]}): plain attention takes its place"
            )
    return _tried[key]


def _compile(kernel: Kernel, case: Case) -> None:
    def loss(factors: Factors, ids: jax.Array, row_keys: jax.Array, head: jax.Array) -> jax.Array:
        return jnp.sum(kernel.attend(factors, (ids, ids), (row_keys, head), case).astype(jnp.float32))

    factor = jax.ShapeDtypeStruct((1, _LENGTH, _HEADS, case.head_dim), case.dtype)
    others = [((1, _LENGTH), "int32"), ((1,), "uint32"), ((1,), "int32")]
    jax.jit(jax.grad(loss)).lower((factor, factor, factor), *(jax.ShapeDtypeStruct(*one) for one in others)).compile()
