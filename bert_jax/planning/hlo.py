"""Parses the text of an optimized XLA program (HLO) into instructions that know their operands and users."""

from __future__ import annotations

import dataclasses
import functools
import math
import re

_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_NUMBER = re.compile(r"\d+")
_SPACE = re.compile(r"S\((\d+)\)")
_ASSIGNMENT = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_PARENTHESIS = re.compile(r"[()]")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+)")
_VALUE = r"(?:\{(?:[^{}]|\{[^{}]*\})*\}|\[[^\]]*\]|\([^)]*\)|[^,])*"  # up to a comma outside of brackets of any kind
_CALLS = re.compile(
    r"\b(calls|to_apply|called_computation|branch_computations|true_computation|body|condition)=\{?%?([\w.\-]+)"
)


@dataclasses.dataclass(frozen=True)
class Array:
    """One array in the shape of an instruction.

    ``space`` is 0 for the device's main memory, otherwise a memory on the chip.
    """

    dtype: str
    dims: tuple[int, ...]
    space: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Return the number of bytes, without the padding of the array's layout."""
        if self.dtype in ("pred", "token", "opaque"):
            return self.size if self.dtype == "pred" else 0
        bits = _NUMBER.search(self.dtype)
        return self.size * int(bits[0]) // 8 if bits else 0


@dataclasses.dataclass(eq=False)
class Instruction:
    """One line of a program: ``name = shape opcode(operands), attributes``.

    Attributes:
      text: the text between the parentheses of the operands.
      computation: the name of the computation that the instruction is a part of.
      calls: the computations that the instruction runs, by the attribute that names them, such as ``body`` of a loop.
      users: the instructions that read the result.
    """

    name: str
    opcode: str
    shape: str
    text: str
    attributes: str
    computation: str
    operands: tuple[Instruction, ...] = ()
    calls: dict[str, Computation] = dataclasses.field(default_factory=dict)
    users: list[Instruction] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Return the arrays of the instruction's shape, which may be a tuple of shapes, in order."""
        found = []
        for dtype, dims, layout in _ARRAY.findall(self.shape):
            space = _SPACE.search(layout)
            sizes = tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)
            found.append(Array(dtype, sizes, int(space[1]) if space else 0))
        return tuple(found)

    @property
    def called(self) -> Computation | None:
        """Return the computation that a fusion, a call or an asynchronous start runs; None for other instructions.

        For a conditional, it is the first branch.
        """
        return next(iter(self.calls.values()), None)

    def attribute(self, name: str) -> str:
        """Return the text after ``name=`` up to the comma that ends the value; "" if there is no such attribute."""
        match = re.search(rf"\b{name}=({_VALUE})", self.attributes)
        return match[1] if match else ""


@dataclasses.dataclass(eq=False)
class Computation:
    """A part of a program. The instructions of the entry are in the order in which the device runs them."""

    name: str
    by_name: dict[str, Instruction] = dataclasses.field(default_factory=dict)
    root: Instruction = dataclasses.field(init=False)

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return tuple(self.by_name.values())

    @functools.cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Return the parameters in the order of their numbers."""
        found = [i for i in self.instructions if i.opcode == "parameter"]
        return tuple(sorted(found, key=lambda i: int(i.text or 0)))


def whole_numbers(text: str) -> list[int]:
    """Return the whole numbers in a text, in order."""
    return [int(number) for number in _NUMBER.findall(text)]


def parse(text: str) -> Computation:
    """Return the entry of the program that the text of ``compiled.as_text()`` describes."""
    computations: dict[str, Computation] = {}
    current = entry = Computation("")
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")) and line.endswith("{"):
            header = _HEADER.match(line)
            assert header, line[:80]
            current = computations[header[2]] = Computation(header[2])
            entry = current if header[1] else entry
        elif match := _ASSIGNMENT.match(line):
            instruction = _instruction(match[2], line, match.end(), current, computations)
            current.by_name[match[2]] = instruction
            if match[1] or len(current.by_name) == 1:
                current.root = instruction
    return entry


def _instruction(
    name: str, line: str, start: int, within: Computation, computations: dict[str, Computation]
) -> Instruction:
    """Return the instruction whose shape begins at ``start``. Operands and computations stand before their users."""
    end = _closing(line, start) if line[start] == "(" else line.index(" ", start)
    opening = line.index("(", end)
    closing = _closing(line, opening)
    text, attributes = line[opening + 1 : closing - 1], line[closing:]
    operands = tuple(within.by_name[operand] for operand in _NAME.findall(text) if operand in within.by_name)
    calls = {key: computations[called] for key, called in _CALLS.findall(attributes) if called in computations}
    opcode, shape = line[end:opening].strip(), line[start:end]
    found = Instruction(name, opcode, shape, text, attributes, within.name, operands, calls)
    for operand in dict.fromkeys(operands):
        operand.users.append(found)
    return found


def _closing(line: str, start: int) -> int:
    """Return the index after the parenthesis that closes the parenthesis at ``start``."""
    depth = 0
    for match in _PARENTHESIS.finditer(line, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(line)
