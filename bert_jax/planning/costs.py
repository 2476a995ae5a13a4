"""Counts the work of an instruction of an optimized program: FLOPs and bytes. ``timeline`` makes seconds of it."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.planning.hlo import Array, Computation, Instruction, Module

_FREE = """parameter constant get-tuple-element tuple bitcast after-all partition-id replica-id domain opt-barrier
copy-done slice-done async-done iota"""
_TRANSCENDENTAL = """exponential exponential-minus-one log log-plus-one cbrt tanh erf logistic sine cosine tan atan2"""
_ELEMENTWISE = """add subtract multiply divide power maximum minimum and or xor not negate abs sign floor ceil
round-nearest-even round-nearest-afz sqrt rsqrt compare select clamp convert shift-left shift-right-logical
shift-right-arithmetic remainder popcnt is-finite"""
_FREE_OPCODES = frozenset(_FREE.split())  # they compute nothing and move no data
_TRANSCENDENTAL_OPCODES = frozenset(_TRANSCENDENTAL.split())
# One operation per output element. All others only move data.
_ELEMENTWISE_OPCODES = frozenset(_ELEMENTWISE.split()) | _TRANSCENDENTAL_OPCODES
# The author of a Pallas kernel states its work. Of our kernels, "flops" are the matrix products and
# "transcendentals" all other operations on single elements. JAX drops what is stated of a kernel that Triton compiles,
# so ours repeat it in attributes of the call.
_ESTIMATE = re.compile(
    r'"cost_estimate":\{"flops":"?(\d+)"?,"transcendentals":"?(\d+)"?'
    r'|kernel_elementwise="(?P<elementwise>\d+)",kernel_flops="(?P<flops>\d+)"'
)
# Libraries of a GPU: cuBLAS multiplies matrices; cuDNN computes attention, with 2 products forward, 5 backward.
_CUBLAS = re.compile(r'custom_call_target="__cublas\$')
_CUDNN_ATTENTION = re.compile(r'custom_call_target="__cudnn\$fmha(\w+)')
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions": ?\[([^\]]*)\]')
_SCORES = re.compile(r'"intermediate_tensor_shape": ?\{[^}]*"dimensions": ?\[([^\]]*)\]')
# JAX's splash kernels state nothing. They have so many matrix products, and other operations, for each query and key.
_SPLASH = {"splash_mha_fwd": (2, 8), "splash_mha_dkv": (5, 12)}
_LANES = 128  # of a TPU's registers, to which heads are padded
_SLICES = ("dynamic-slice", "slice", "gather")
ASYNC_COPIES = ("copy-start", "slice-start")


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of running an instruction once on one device.

    Attributes:
      products: FLOPs of matrix products, by the dtype of the operands ("bf16", "f32").
      elementwise: the number of operations on single elements.
      transcendentals: how many of them are exponentials and the like.
      bytes: bytes read from and written to the main memory.
    """

    products: dict[str, float] = dataclasses.field(default_factory=dict)
    elementwise: float = 0.0
    bytes: float = 0.0
    transcendentals: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        names = self.products.keys() | other.products.keys()
        products = {name: self.products.get(name, 0.0) + other.products.get(name, 0.0) for name in names}
        transcendentals = self.transcendentals + other.transcendentals
        return Cost(products, self.elementwise + other.elementwise, self.bytes + other.bytes, transcendentals)

    def __mul__(self, times: float) -> Cost:
        products = {name: times * flops for name, flops in self.products.items()}
        return Cost(products, times * self.elementwise, times * self.bytes, times * self.transcendentals)


def cost(module: Module, computation: Computation, instruction: Instruction) -> Cost:
    """Return the cost of an instruction that is neither a loop nor a collective.

    For a fusion, all work inside it counts, but only the memory traffic of its inputs and outputs.
    """
    if instruction.opcode in _FREE_OPCODES:
        return Cost()
    work = _work(module, computation, instruction)
    return dataclasses.replace(work, bytes=float(_traffic(module, computation, instruction)))


# ---- Work ---------------------------------------------------------------------------------------------------------


def _work(module: Module, computation: Computation, instruction: Instruction) -> Cost:
    callee = module.callee(instruction)
    if instruction.opcode in ("fusion", "call", "async-start") and callee is not None:
        inside = (_work(module, callee, i) for i in callee.instructions)
        return functools.reduce(Cost.__add__, inside, Cost())
    if instruction.opcode in ("dot", "convolution"):
        left, right = (_array(computation, name) for name in instruction.operands[:2])
        flops = _dot(instruction, left) if instruction.opcode == "dot" else _convolution(instruction, left, right)
        return Cost({_precision(left): flops})
    if instruction.opcode == "custom-call":
        return _library_or_kernel(computation, instruction)
    if instruction.opcode in _ELEMENTWISE_OPCODES:
        count = float(sum(array.size for array in instruction.arrays))
        return Cost(elementwise=count, transcendentals=count if instruction.opcode in _TRANSCENDENTAL_OPCODES else 0.0)
    if instruction.opcode in ("reduce", "reduce-window"):
        return Cost(elementwise=float(_array(computation, instruction.operands[0]).size))
    return Cost()


def _library_or_kernel(computation: Computation, instruction: Instruction) -> Cost:
    """Return the work of a kernel whose author states it, of a product of cuBLAS or of attention of cuDNN."""
    text = instruction.attributes
    if estimate := _ESTIMATE.search(text):
        flops, others = estimate["flops"] or estimate[1], estimate["elementwise"] or estimate[2]
        return Cost({_precision(instruction.arrays[0]): float(flops)}, elementwise=float(others))
    if _CUBLAS.search(text) and (contracted := _CONTRACTED.search(text)):
        left = _array(computation, instruction.operands[0])
        depth = math.prod(left.dims[d] for d in _numbers(contracted[1]))
        return Cost({_precision(left): 2.0 * instruction.arrays[0].size * depth})
    if (attention := _CUDNN_ATTENTION.search(text)) and (shape := _SCORES.search(text)):
        query, scores = _array(computation, instruction.operands[0]), float(math.prod(_numbers(shape[1])))
        products = 5 if "Backward" in attention[1] else 2
        return Cost({_precision(query): 2.0 * products * scores * query.dims[-1]}, elementwise=scores)
    return _splash(computation, instruction) if instruction.name.startswith(tuple(_SPLASH)) else Cost()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _splash(computation: Computation, instruction: Instruction) -> Cost:
    """Return the work of a splash kernel, which sees all of a row or has a causal mask."""
    operands = [array for name in instruction.operands for array in computation.arrays_of(name)]
    query = next(array for array in operands if array.dtype in ("bf16", "f32"))
    head_dim, length = query.dims[-2:]
    # They read the ids of queries and of keys, and with a mask the positions too; it leaves out half of the pairs.
    masked = sum(array.dtype == "s32" and length in array.dims for array in operands) > 2
    pairs = query.size / head_dim * length / (2 if masked else 1)
    products, operations = _SPLASH[instruction.name.partition("_segmented")[0]]
    flops = 2 * products * pairs * (-(-head_dim // _LANES) * _LANES)
    return Cost({_precision(query): flops}, elementwise=operations * pairs)


def _precision(array: Array) -> str:
    return "bf16" if array.dtype in ("bf16", "f16") else "f32"


def _dot(instruction: Instruction, left: Array) -> float:
    contracted = _numbers(instruction.attribute("lhs_contracting_dims"))
    return 2.0 * instruction.arrays[0].size * math.prod(left.dims[d] for d in contracted)


def _convolution(instruction: Instruction, left: Array, right: Array) -> float:
    """Return the FLOPs of a convolution. A TPU program expresses every matrix product as a convolution.

    As in XLA's own analysis, window positions on padding or between dilated elements do not count.
    """
    inputs, kernel, outputs = re.split(r"_|->", instruction.attribute("dim_labels"))
    window = _window(instruction.attribute("window"), sum(c.isdigit() for c in inputs))
    flops = 2.0 * instruction.arrays[0].size * right.dims[kernel.index("i")]
    for axis, side in enumerate(window):
        label = str(axis)
        length = instruction.arrays[0].dims[outputs.index(label)]
        flops *= _valid(left.dims[inputs.index(label)], right.dims[kernel.index(label)], length, side) / length
    return flops


class _Axis(NamedTuple):
    """One axis of a convolution's window."""

    stride: int
    pad: int  # before the input
    dilate: int  # of the input
    kernel_dilate: int


def _window(text: str, axes: int) -> list[_Axis]:
    """Return the window's axes."""

    def read(name: str, default: int) -> list[int]:
        match = re.search(rf"\b{name}=([\dx_\-]+)", text)
        if not match:
            return [default] * axes
        return [int(part.split("_")[0]) for part in match[1].split("x")]

    fields = (read("stride", 1), read("pad", 0), read("lhs_dilate", 1), read("rhs_dilate", 1))
    return [_Axis(*axis) for axis in zip(*fields, strict=True)]


@functools.cache
def _valid(length: int, kernel: int, output: int, axis: _Axis) -> int:
    """Return the number of pairs (output position, kernel position) that fall on an input element, along one axis."""
    where = np.arange(output)[:, None] * axis.stride - axis.pad + np.arange(kernel)[None, :] * axis.kernel_dilate
    return int(((where >= 0) & (where <= (length - 1) * axis.dilate) & (where % axis.dilate == 0)).sum())


# ---- Traffic ------------------------------------------------------------------------------------------------------


def _traffic(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Return the bytes of main memory that an instruction reads and writes.

    A slice reads only the part that it cuts out; an update in place writes only the part that it updates.
    """
    out = _main_memory(_results(instruction))
    if instruction.opcode in ("broadcast", "rng-bit-generator"):
        return out
    if instruction.opcode in _SLICES:
        return 2 * out
    if instruction.opcode in ("dynamic-update-slice", "scatter"):
        return 2 * _main_memory(
            [_array(computation, instruction.operands[-1 if instruction.opcode == "scatter" else 1])]
        )
    if instruction.opcode in ASYNC_COPIES:
        return _copied_bytes(instruction)
    if instruction.opcode == "custom-call" and "Allocate" in instruction.attribute("custom_call_target"):
        return 0
    callee = module.callee(instruction) if instruction.opcode == "fusion" else None
    if callee is None:
        return out + sum(_main_memory(computation.arrays_of(name)) for name in instruction.operands)
    return _written_bytes(module, callee, out) + sum(
        _read_bytes(module, callee, parameter, _main_memory(computation.arrays_of(name)))
        for name, parameter in zip(instruction.operands, callee.parameters, strict=False)
    )


def _results(instruction: Instruction) -> tuple[Array, ...]:
    """Return the arrays that an instruction writes, without the workspace of a product or of attention of a library."""
    library = instruction.opcode == "custom-call" and re.search(
        r'custom_call_target="__cu(?:blas|dnn)\$', instruction.attributes
    )
    return tuple(array for array in instruction.arrays if not (library and array.dtype in ("s8", "u8")))


def _copied_bytes(instruction: Instruction) -> int:
    """Return the bytes of main memory that an asynchronous copy reads or writes."""
    buffers = [array for array in instruction.arrays if array.size > 1]
    smallest = min((array.bytes for array in buffers), default=0)
    return smallest * sum(array.space == 0 for array in buffers[:2])


def _read_bytes(module: Module, callee: Computation, parameter: Instruction, whole: int) -> int:
    """Return the bytes of an operand that a fusion reads.

    If the fusion, or one within it, only cuts parts out of the operand, only those parts count.
    """
    read, users = 0, _users(callee, parameter)
    for user, name in users:
        inner = module.callee(user) if user.opcode == "fusion" else None
        if inner is not None:
            inside = [p for p, operand in zip(inner.parameters, user.operands, strict=False) if operand == name]
            read += sum(_read_bytes(module, inner, p, whole) for p in inside)
        elif not _cuts(user, name):
            return whole
        elif user.opcode != "dynamic-update-slice":
            read += user.arrays[0].bytes
    return min(whole, read) if users else whole


def _users(callee: Computation, instruction: Instruction) -> list[tuple[Instruction, str]]:
    """Return (user, name) for each instruction that reads ``instruction``, directly or through bitcasts.

    ``name`` is the name of the operand under which the user reads it.
    """
    users = []
    for user in callee.users.get(instruction.name, ()):
        users += _users(callee, user) if user.opcode == "bitcast" else [(user, instruction.name)]
    return users


def _cuts(user: Instruction, name: str) -> bool:
    return user.opcode in (*_SLICES, "dynamic-update-slice") and user.operands[0] == name


def _written_bytes(module: Module, callee: Computation, out: int) -> int:
    """Return the bytes of all results of a fusion. A result that updates an operand in place counts only the update."""
    root = callee.root
    names = root.operands if root.opcode == "tuple" else (root.name,)
    return min(out, sum(_result(module, callee, callee.by_name[name]) for name in names))


def _result(module: Module, callee: Computation, instruction: Instruction) -> int:
    size = _main_memory(instruction.arrays)
    while instruction.opcode in ("bitcast", "copy") and instruction.operands[0] in callee.by_name:
        instruction = callee.by_name[instruction.operands[0]]
    if instruction.opcode == "dynamic-update-slice":
        return min(size, sum(array.bytes for array in callee.arrays_of(instruction.operands[1])))
    inner = module.callee(instruction) if instruction.opcode == "fusion" else None
    if inner is not None and inner.root.opcode != "tuple":
        return min(size, _result(module, inner, inner.root))
    return size


def _main_memory(among: Sequence[Array]) -> int:
    """Return the total bytes of the arrays that are in the device's main memory."""
    return sum(array.bytes for array in among if array.space == 0)


def _array(computation: Computation, name: str) -> Array:
    return computation.by_name[name].arrays[0]
