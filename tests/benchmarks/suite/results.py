"""What a run of the suite found, as JSON, as a table and as a picture."""

from __future__ import annotations

import dataclasses
import statistics
from html import escape
from typing import Any

from tests.benchmarks.suite.figures import OURS, Figure

HEAD = ("side", "ms a step: median", "least to most", "rows a second", "of the matmul rate", "ours is faster by")
WIDTH, BAR, LABEL = 860, 18, 270


@dataclasses.dataclass
class SideResult:
    """The turns of a side. ``left_out`` says in one line why there are none."""

    name: str
    who: str
    dtype: str
    seconds: list[float] = dataclasses.field(default_factory=list)  # of a step, one entry a turn
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    left_out: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclasses.dataclass
class FigureResult:
    figure: Figure
    alternating: bool  # whether the turns of all sides alternated, so that other load slowed all alike
    sides: list[SideResult]

    @property
    def measured(self) -> list[SideResult]:
        return [side for side in self.sides if side.seconds]

    @property
    def flops(self) -> float | None:
        """The FLOPs of a step's matrix products, by ``bert_jax/models/config.py``."""
        return next((side.facts["flops"] for side in self.sides if "flops" in side.facts), None)

    def best_of_ours(self) -> SideResult | None:
        return min((side for side in self.measured if side.who == OURS), key=lambda side: side.median, default=None)

    def matmul_rate(self, dtype: str) -> float | None:
        """Return the highest rate of a product of ``dtype`` that any side measured, in FLOP/s."""
        rates = [side.facts["matmul"][dtype] for side in self.sides if dtype in side.facts.get("matmul", {})]
        return max(rates, default=None)

    def row(self, side: SideResult) -> list[str]:
        """Return a row of the table, for the columns of ``HEAD``."""
        flops, rate, best = self.flops, self.matmul_rate(side.dtype), self.best_of_ours()
        return [
            side.name,
            f"{1e3 * side.median:,.2f}",
            f"{1e3 * min(side.seconds):,.2f} to {1e3 * max(side.seconds):,.2f}",
            f"{self.figure.rows / side.median:,.1f}",
            f"{flops / side.median / rate:.0%}" if flops and rate else "",
            f"{side.median / best.median:.2f} x" if best and side.who != OURS else "",
        ]


def as_json(machine: dict[str, Any], results: list[FigureResult]) -> dict[str, Any]:
    figures = []
    for result in results:
        record = {"figure": result.figure.as_json(), "alternating": result.alternating, "flops": result.flops}
        sides = [
            dataclasses.asdict(side) | ({"median_seconds": side.median} if side.seconds else {})
            for side in result.sides
        ]
        figures.append(record | {"sides": sides})
    return {"machine": machine, "figures": figures}


def table(machine: dict[str, Any], results: list[FigureResult]) -> str:
    """Return the results as Markdown."""
    lines = [", ".join(str(value) for value in machine.values() if value), ""]
    for result in results:
        turns = "turns of all sides alternate" if result.alternating else "one side after the other"
        lines += [f"**{result.figure.name}**: {result.figure.described()}; {turns}", ""]
        if result.measured:
            lines += [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
            lines += [f"| {' | '.join(result.row(side))} |" for side in result.measured] + [""]
        lines += [f"{side.name} is left out: {side.left_out}" for side in result.sides if side.left_out]
        lines += [""] if any(side.left_out for side in result.sides) else []
    return "\n".join(lines)


def picture(machine: dict[str, Any], results: list[FigureResult]) -> str:
    """Return an SVG: a bar for each side, as long as its median step, with a line from the least turn to the most."""
    shown = [result for result in results if result.measured]
    drawn, y = [f'<text x="8" y="20" font-size="12">{escape(", ".join(map(str, machine.values())))}</text>'], 44
    for result in shown:
        drawn.append(f'<text x="8" y="{y}" font-weight="bold">{escape(result.figure.name)}, ms a step</text>')
        y += 10
        longest = max(max(side.seconds) for side in result.measured)
        scale = (WIDTH - LABEL - 90) / longest
        for side in result.measured:
            middle, least, most = side.median * scale, min(side.seconds) * scale, max(side.seconds) * scale
            colour = "#2a6fdb" if side.who == OURS else "#b9bec7"
            centre = y + BAR / 2
            drawn += [
                f'<text x="{LABEL - 8}" y="{centre + 4}" text-anchor="end">{escape(side.name)}</text>',
                f'<rect x="{LABEL}" y="{y}" width="{middle:.1f}" height="{BAR - 4}" fill="{colour}"/>',
                f'<path d="M{LABEL + least:.1f} {centre - 2} H{LABEL + most:.1f}" stroke="#222"/>',
                f'<text x="{LABEL + most + 6:.1f}" y="{centre + 4}">{1e3 * side.median:,.1f}</text>',
            ]
            y += BAR
        y += 30
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *drawn, "</svg>\n"])
