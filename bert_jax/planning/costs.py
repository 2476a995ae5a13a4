"""Counts the work of an instruction of an optimized program: FLOPs and bytes. ``prediction`` makes seconds of it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.planning.hlo import Array, Computation, Instruction, whole_numbers

_FREE = """parameter constant get-tuple-element tuple bitcast after-all partition-id replica-id domain opt-barrier
copy-done slice-done async-done iota"""
_TRANSCENDENTAL = """exponential exponential-minus-one log log-plus-one cbrt tanh erf logistic sine cosine tan atan2"""
_ELEMENTWISE = """add subtract multiply divide power maximum minimum and or xor not negate abs sign floor ceil
round-nearest-even round-nearest-afz sqrt rsqrt compare select clamp convert shift-left shift-right-logical
shift-right-arithmetic remainder popcnt is-finite"""
_FREE_OPCODES = frozenset(_FREE.split())  # they compute nothing and move no data
_TRANSCENDENTAL_OPCODES = frozenset(_TRANSCENDENTAL.split())
# They compute one operation for each element of the output. All other opcodes only move data.
_ELEMENTWISE_OPCODES = frozenset(_ELEMENTWISE.split()) | _TRANSCENDENTAL_OPCODES
# The author of a Pallas kernel states its work. In our kernels, "flops" are the matrix products and
# "transcendentals" all other operations on single elements. JAX drops this statement of a kernel that Triton compiles,
# so our kernels repeat it in attributes of the call.
_ESTIMATE = re.compile(
    r'"cost_estimate":\{"flops":"?(\d+)"?,"transcendentals":"?(\d+)"?'
    r'|kernel_elementwise="(?P<elementwise>\d+)",kernel_flops="(?P<flops>\d+)"'
)
# Libraries of a GPU: cuBLAS multiplies matrices; cuDNN computes attention, with 2 products forward, 5 backward.
_LIBRARY = re.compile(r'custom_call_target="__cu(?:blas|dnn)\$')
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions": ?\[([^\]]*)\]')
_SCORES = re.compile(r'"intermediate_tensor_shape": ?\{[^}]*"dimensions": ?\[([^\]]*)\]')
# JAX's splash kernels state nothing. Name -> its (matrix products, other operations) for each pair of query and key.
_SPLASH = {"splash_mha_fwd": (2, 8), "splash_mha_dkv": (5, 12)}
_LANES = 128  # of a TPU's registers, to which heads are padded
_SLICES = ("dynamic-slice", "slice", "gather")
ASYNC_COPIES = ("copy-start", "slice-start")


class Cost(NamedTuple):
    """The cost of running an instruction once on one device.

    Attributes:
      bf16, f32: FLOPs of matrix products, by the dtype of the operands.
      elementwise: the number of operations on single elements.
      transcendentals: the number of elementwise operations that are exponentials and the like.
      bytes: bytes read from and written to the main memory.
    """

    bf16: float = 0.0
    f32: float = 0.0
    elementwise: float = 0.0
    transcendentals: float = 0.0
    bytes: float = 0.0

    @property
    def products(self) -> float:
        return self.bf16 + self.f32

    def plus(self, other: Cost, times: float = 1.0) -> Cost:
        """Return the cost of this instruction and of ``other``, which runs ``times`` times."""
        return Cost(*(mine + times * others for mine, others in zip(self, other, strict=True)))


def cost_of(instruction: Instruction) -> Cost:
    """Return the cost of an instruction that is neither a loop nor a collective.

    For a fusion, all work inside it counts, but only the memory traffic of its inputs and outputs.
    """
    if instruction.opcode in _FREE_OPCODES:
        return Cost()
    return _work(instruction)._replace(bytes=float(_traffic(instruction)))


# ---- Work ---------------------------------------------------------------------------------------------------------


def _work(instruction: Instruction) -> Cost:
    opcode, called = instruction.opcode, instruction.called
    if opcode in ("fusion", "call", "async-start") and called is not None:
        return functools.reduce(Cost.plus, map(_work, called.instructions), Cost())
    if opcode in ("dot", "convolution"):
        return _products(instruction.operands[0], _dot(instruction) if opcode == "dot" else _convolution(instruction))
    if opcode == "custom-call":
        return _kernel(instruction)
    if opcode in _ELEMENTWISE_OPCODES:
        count = float(sum(array.size for array in instruction.arrays))
        return Cost(elementwise=count, transcendentals=count if opcode in _TRANSCENDENTAL_OPCODES else 0.0)
    if opcode in ("reduce", "reduce-window"):
        return Cost(elementwise=float(instruction.operands[0].arrays[0].size))
    return Cost()


def _products(of: Instruction, flops: float, elementwise: float = 0.0) -> Cost:
    """Return the cost of matrix products whose operands have the dtype of ``of``."""
    narrow = of.arrays[0].dtype in ("bf16", "f16")
    return Cost(bf16=flops if narrow else 0.0, f32=0.0 if narrow else flops, elementwise=elementwise)


def _kernel(instruction: Instruction) -> Cost:
    """Return the work of a kernel whose author states it, of a product of cuBLAS, or of attention of cuDNN or JAX."""
    text = instruction.attributes
    if estimate := _ESTIMATE.search(text):
        flops, others = estimate["flops"] or estimate[1], estimate["elementwise"] or estimate[2]
        return _products(instruction, float(flops), float(others))
    if instruction.name.startswith(tuple(_SPLASH)):
        return _splash(instruction)
    if not _LIBRARY.search(text):
        return Cost()
    first = instruction.operands[0]
    if contracted := _CONTRACTED.search(text):
        depth = math.prod(first.arrays[0].dims[d] for d in whole_numbers(contracted[1]))
        return _products(first, 2.0 * instruction.arrays[0].size * depth)
    if shape := _SCORES.search(text):
        scores, products = float(math.prod(whole_numbers(shape[1]))), 5 if "Backward" in text else 2
        return _products(first, 2.0 * products * scores * first.arrays[0].dims[-1], scores)
    return Cost()


def _splash(instruction: Instruction) -> Cost:
    """Return the work of a splash kernel, which reads a whole row or has a causal mask."""
    query = next(operand for operand in instruction.operands if operand.arrays[0].dtype in ("bf16", "f32"))
    head_dim, length = query.arrays[0].dims[-2:]
    # It reads the ids of queries and of keys; with a causal mask, which leaves out half of the pairs, positions too.
    whole = [array for operand in instruction.operands for array in operand.arrays if array.dtype == "s32"]
    masked = sum(length in array.dims for array in whole) > 2
    pairs = query.arrays[0].size / head_dim * length / (2 if masked else 1)
    products, operations = _SPLASH[instruction.name.partition("_segmented")[0]]
    return _products(query, 2 * products * pairs * (-(-head_dim // _LANES) * _LANES), operations * pairs)


def _dot(instruction: Instruction) -> float:
    contracted = whole_numbers(instruction.attribute("lhs_contracting_dims"))
    left = instruction.operands[0].arrays[0]
    return 2.0 * instruction.arrays[0].size * math.prod(left.dims[d] for d in contracted)


def _convolution(instruction: Instruction) -> float:
    """Return the FLOPs of a convolution. A TPU program expresses every matrix product as a convolution.

    As in XLA's own analysis, window positions on padding or between dilated elements do not count.
    """
    labels = re.split(r"_|->", instruction.attribute("dim_labels"))
    left, right, out = (i.arrays[0] for i in (*instruction.operands[:2], instruction))
    window = instruction.attribute("window")
    flops = 2.0 * out.size * right.dims[labels[1].index("i")]
    for axis in range(sum(c.isdigit() for c in labels[0])):
        length, kernel, output = (
            array.dims[of.index(str(axis))] for array, of in zip((left, right, out), labels, strict=True)
        )
        settings = (("stride", 1), ("pad", 0), ("lhs_dilate", 1), ("rhs_dilate", 1))
        flops *= _valid(length, kernel, output, *(_setting(window, *of, axis) for of in settings)) / output
    return flops


def _setting(window: str, name: str, default: int, axis: int) -> int:
    """Return a setting of one axis of a convolution's window. For padding, it is the number before the input."""
    match = re.search(rf"\b{name}=([\dx_\-]+)", window)
    return int(match[1].split("x")[axis].split("_")[0]) if match else default


@functools.cache
def _valid(length: int, kernel: int, output: int, *window: int) -> int:
    """Return the number of pairs (output position, kernel position) that fall on an input element, along one axis."""
    stride, pad, dilate, kernel_dilate = window
    where = np.arange(output)[:, None] * stride - pad + np.arange(kernel)[None, :] * kernel_dilate
    return int(((where >= 0) & (where <= (length - 1) * dilate) & (where % dilate == 0)).sum())


# ---- Traffic ------------------------------------------------------------------------------------------------------


def _traffic(instruction: Instruction) -> int:
    """Return the bytes of main memory that an instruction reads and writes.

    A slice reads only the part that it cuts out; an update in place writes only the part that it updates.
    """
    opcode, operands, called = instruction.opcode, instruction.operands, instruction.called
    out = _main_memory(_results(instruction))
    if opcode in ("broadcast", "rng-bit-generator"):
        return out
    if opcode in _SLICES:
        return 2 * out
    if opcode in ("dynamic-update-slice", "scatter"):
        return 2 * _main_memory(operands[-1 if opcode == "scatter" else 1].arrays)
    if opcode in ASYNC_COPIES:
        return _copied_bytes(instruction)
    if opcode == "custom-call" and "Allocate" in instruction.attribute("custom_call_target"):
        return 0
    if opcode != "fusion" or called is None:
        return out + sum(_main_memory(operand.arrays) for operand in operands)
    pairs = zip(called.parameters, operands, strict=False)
    read = sum(_read_bytes(parameter, _main_memory(operand.arrays)) for parameter, operand in pairs)
    return _written_bytes(called, out) + read


def _results(instruction: Instruction) -> tuple[Array, ...]:
    """Return the arrays that an instruction writes, without the workspace of a library's product or attention."""
    library = instruction.opcode == "custom-call" and _LIBRARY.search(instruction.attributes)
    return tuple(array for array in instruction.arrays if not (library and array.dtype in ("s8", "u8")))


def _copied_bytes(instruction: Instruction) -> int:
    """Return the bytes of main memory that an asynchronous copy reads or writes."""
    buffers = [array for array in instruction.arrays if array.size > 1]
    smallest = min((array.bytes for array in buffers), default=0)
    return smallest * sum(array.space == 0 for array in buffers[:2])


def _read_bytes(parameter: Instruction, whole: int) -> int:
    """Return the bytes that a fusion reads of a parameter with ``whole`` bytes.

    If the fusion, or a fusion within it, only cuts parts out of the parameter, only these parts count.
    """
    read, uses = 0, _uses(parameter)
    for user, source in uses:
        if user.opcode == "fusion" and user.called is not None:
            pairs = zip(user.called.parameters, user.operands, strict=False)
            read += sum(_read_bytes(inner, whole) for inner, operand in pairs if operand is source)
        elif user.opcode not in (*_SLICES, "dynamic-update-slice") or user.operands[0] is not source:
            return whole
        elif user.opcode != "dynamic-update-slice":
            read += user.arrays[0].bytes
    return min(whole, read) if uses else whole


def _uses(instruction: Instruction) -> list[tuple[Instruction, Instruction]]:
    """Return (user, operand of the user) for each instruction that reads this one, directly or through bitcasts."""
    uses = []
    for user in instruction.users:
        uses += _uses(user) if user.opcode == "bitcast" else [(user, instruction)]
    return uses


def _written_bytes(called: Computation, out: int) -> int:
    """Return the bytes of all results of a fusion. A result that updates an operand in place counts only the update."""
    root = called.root
    return min(out, sum(map(_result, root.operands if root.opcode == "tuple" else (root,))))


def _result(instruction: Instruction) -> int:
    size = _main_memory(instruction.arrays)
    while instruction.opcode in ("bitcast", "copy"):
        instruction = instruction.operands[0]
    if instruction.opcode == "dynamic-update-slice":
        return min(size, sum(array.bytes for array in instruction.operands[1].arrays))
    if instruction.opcode == "fusion" and instruction.called and instruction.called.root.opcode != "tuple":
        return min(size, _result(instruction.called.root))
    return size


def _main_memory(among: Sequence[Array]) -> int:
    """Return the total bytes of the arrays that are in the device's main memory."""
    return sum(array.bytes for array in among if array.space == 0)
