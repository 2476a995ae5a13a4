"""Parses the text of an optimized XLA program (HLO) into instructions."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_BITS = re.compile(r"\d+")
_SPACE = re.compile(r"S\((\d+)\)")
_ASSIGNMENT = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+)")


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
        bits = _BITS.search(self.dtype)
        return self.size * int(bits[0]) // 8 if bits else 0


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program: ``name = shape opcode(operands), attributes``."""

    name: str
    opcode: str
    shape: str
    operand_text: str
    attributes: str
    is_root: bool

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Return the arrays of the instruction's shape, which may be a tuple of shapes, in order."""
        found = []
        for dtype, dims, layout in _ARRAY.findall(self.shape):
            space = _SPACE.search(layout)
            sizes = tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)
            found.append(Array(dtype, sizes, int(space[1]) if space else 0))
        return tuple(found)

    @functools.cached_property
    def operands(self) -> tuple[str, ...]:
        """Return the names of the operands."""
        return tuple(_NAME.findall(self.operand_text))

    def attribute(self, name: str) -> str:
        """Return the text after ``name=`` up to the comma that ends the value; "" if there is no such attribute."""
        match = re.search(rf"\b{name}=", self.attributes)
        return _value(self.attributes, match.end()) if match else ""

    def computation(self, name: str) -> str:
        """Return the name of the computation that the attribute ``name`` refers to, such as ``x`` for ``calls=%x``.

        If the attribute lists several computations, the first is returned.
        """
        return self.attribute(name).strip("{}").partition(",")[0].lstrip("%")


@dataclasses.dataclass(frozen=True)
class Computation:
    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    def arrays_of(self, name: str) -> tuple[Array, ...]:
        """Return the arrays of the instruction with this name; () if another computation has it."""
        instruction = self.by_name.get(name)
        return instruction.arrays if instruction else ()

    @functools.cached_property
    def root(self) -> Instruction:
        return next((i for i in self.instructions if i.is_root), self.instructions[-1])

    @functools.cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Return the parameters in the order of their numbers."""
        found = [i for i in self.instructions if i.opcode == "parameter"]
        return tuple(sorted(found, key=lambda i: int(i.operand_text or 0)))

    @functools.cached_property
    def users(self) -> Mapping[str, tuple[Instruction, ...]]:
        """Return, for each instruction's name, the instructions that read it."""
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                found.setdefault(operand, []).append(instruction)
        return {name: tuple(users) for name, users in found.items()}


@dataclasses.dataclass(frozen=True)
class Module:
    """A program. The instructions of ``entry`` are in the order in which the device runs them."""

    entry: Computation
    computations: Mapping[str, Computation]

    def callee(self, instruction: Instruction) -> Computation | None:
        """Return the computation that a fusion, a call or an asynchronous start runs; None for other instructions.

        Of a conditional it is the first branch.
        """
        for attribute in ("calls", "to_apply", "called_computation", "branch_computations", "true_computation"):
            if (name := instruction.computation(attribute)) in self.computations:
                return self.computations[name]
        return None


def parse(text: str) -> Module:
    """Return the module that the text of ``compiled.as_text()`` describes."""
    computations: dict[str, Computation] = {}
    entry, name, lines = "", "", list[str]()
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")) and line.endswith("{"):
            header = _HEADER.match(line)
            assert header, line[:80]
            name, lines = header[2], []
            entry = name if header[1] else entry
        elif line.startswith("}") and not line.startswith("}}"):  # which ends an attribute of several lines
            computations[name] = Computation(name, tuple(_instructions(lines)))
        elif name:
            lines.append(line)
    return Module(computations[entry], computations)


def _instructions(lines: list[str]) -> Iterator[Instruction]:
    for line in lines:
        match = _ASSIGNMENT.match(line)
        if not match:
            continue
        start = match.end()
        end = _closing(line, start) if line[start] == "(" else line.index(" ", start)
        shape = line[start:end]
        opening = line.index("(", end)
        closing = _closing(line, opening)
        yield Instruction(
            match[2], line[end:opening].strip(), shape, line[opening + 1 : closing - 1], line[closing:], bool(match[1])
        )


def _closing(line: str, start: int) -> int:
    """Return the index after the parenthesis that closes the parenthesis at ``start``."""
    depth = 0
    for match in re.compile(r"[()]").finditer(line, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(line)


def _value(text: str, start: int) -> str:
    """Return the text from ``start`` to the next comma outside of braces, brackets and parentheses."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] in "{[(":
            depth += 1
        elif text[i] in "}])":
            depth -= 1
        elif text[i] == "," and depth == 0:
            return text[start:i]
    return text[start:]
