"""The launch scripts are run as they are, with recorders in place of the tools of a cloud.

PATH has nothing but the recorders and a few tools of the shell, so no real gcloud or kubectl can be reached.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SHELL_TOOLS = ("bash", "sh", "env", "sed", "date", "dirname", "seq", "sleep", "id", "python3", "cat", "cksum", "cut")
RECORDED = ("gcloud", "kubectl", "sbatch", "srun", "squeue", "scontrol", "xpk", "docker", "bert-jax")
HOSTILE = [
    "with  two spaces",
    "it's",
    'say "hi"',
    "$(touch x)",
    "`touch x`",
    "; touch x #",
    "&& touch x",
    "| touch x",
    "two\nlines",
    "tab\there",
    "",
    "*",
    "$HOME ${HOME}",
    "$$(HOME) $(HOME)",
    "back\\slash\\",
    "'\\''",
    "--flag=$(touch x)",
    "%s {x} !x ~ #x",
    "gr\u00f6\u00dfe",
]


@dataclass
class Launch:
    """A folder with the recorders, and the calls that they saw."""

    folder: Path
    answers: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    def env(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'recorders'}:{self.folder / 'tools'}",
            "HOME": str(self.folder / "home"),
            "STUB_LOG": str(self.log),
            "STUB_ANSWERS": json.dumps(self.answers),
            "LC_ALL": "C.UTF-8",
            **self.environment,
        }

    def command(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess:
        return subprocess.run(
            words, env=self.env(), cwd=self.folder / "home", input=stdin, capture_output=True, text=True, timeout=60
        )

    def script(self, name: str, *words: str) -> subprocess.CompletedProcess:
        """Run launch/NAME and return how it ended. The calls of earlier scripts are forgotten."""
        self.log.write_text("")
        return self.command(str(ROOT / "launch" / name), *words)

    def calls(self, tool: str | None = None) -> list[dict]:
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [call for call in found if tool in (None, call["tool"])]

    def argvs(self, tool: str | None = None) -> list[list[str]]:
        return [call["argv"] for call in self.calls(tool)]

    def remove(self, tool: str) -> None:
        (self.folder / "recorders" / tool).unlink()

    def untouched(self) -> bool:
        """Return whether no hostile value has made a file."""
        return not any((self.folder / "home").iterdir())


def prepare(folder: Path) -> Launch:
    for name in ("recorders", "tools", "home"):
        (folder / name).mkdir()
    for tool in SHELL_TOOLS:
        found = sys.executable if tool == "python3" else shutil.which(tool)
        assert found, tool
        (folder / "tools" / tool).symlink_to(os.path.realpath(found))
    program = f"#!{sys.executable} -IS\n" + (Path(__file__).parent / "recorder.py").read_text()
    for tool in RECORDED:
        _write_program(folder / "recorders" / tool, program)
    _write_program(folder / "recorders" / "sudo", '#!/bin/sh\nexec "$@"\n')
    (folder / "log.jsonl").write_text("")
    return Launch(folder)


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
