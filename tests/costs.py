"""What tests cost: ``pytest --costs=FILE`` writes the processor seconds of each folder of tests and of its files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

LEAST_SECONDS = 5  # a file that costs less is not named


class Costs:
    """A plugin of pytest. A worker of pytest-xdist hands its sums to the process that started the worker."""

    def __init__(self, path: Path):
        self.path = path
        self.seconds: dict[str, float] = Counter()

    def pytest_collection_finish(self) -> None:
        self.seconds["imports"] += processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = processor_seconds()
        result = yield
        self.seconds[item.location[0]] += processor_seconds() - before
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        handed = getattr(node, "workeroutput", {"costs": {}})  # a worker that broke down hands nothing over
        for file, seconds in handed["costs"].items():
            self.seconds[file] += seconds

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        worker = getattr(session.config, "workeroutput", None)
        if worker is not None:
            worker["costs"] = dict(self.seconds)
        else:
            self.path.write_text(table(self.seconds))


def processor_seconds() -> float:
    """Return the seconds of this process and of the processes that it has waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def table(seconds: dict[str, float]) -> str:
    """Return a table of Markdown: folders and files by what they cost, the dearest first."""
    folders: dict[str, float] = Counter()
    for file, spent in seconds.items():
        folders[_folder(file)] += spent
    lines = ["| tests of | seconds | files of 5 seconds or more |", "|---|---|---|"]
    for folder, spent in _dearest(folders):
        files = {file: cost for file, cost in seconds.items() if _folder(file) == folder and cost >= LEAST_SECONDS}
        named = ", ".join(f"{PurePosixPath(file).stem} {cost:.0f}" for file, cost in _dearest(files))
        lines.append(f"| {folder} | {spent:.0f} | {named} |")
    return "\n".join([*lines, f"| all | {sum(seconds.values()):.0f} | |"]) + "\n"


def _folder(file: str) -> str:
    return str(PurePosixPath(file).parent)


def _dearest(costs: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(costs.items(), key=lambda item: -item[1])
