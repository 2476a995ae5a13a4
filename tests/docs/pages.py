"""Reads the links, anchors and commands of this repository's pages."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
ARRAY = re.compile(r"^\s*([A-Z]+)=\((.*?)\)$", re.MULTILINE | re.DOTALL)
RUN_OF_A_SCRIPT = re.compile(r"launch/\w+\.sh\b.*? -- ")


def markdown() -> list[Path]:
    """Return all pages of this repository."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    found = [ROOT / name for name in names if (ROOT / name).is_file()]
    return found or [p for p in ROOT.rglob("*.md") if not {".venv", "runs"} & set(p.parts)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in HEADING.findall(_without_code(page.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        number = next(i for i in range(100) if (f"{anchor}-{i}" if i else anchor) not in found)
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead to no file or to no heading. Links to other sites are not followed."""
    wrong = []
    for link in LINK.findall(_without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or anchor and anchor not in anchors(file / "README.md" if file.is_dir() else file):
            wrong.append(link)
    return wrong


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words after ``bert-jax`` of each command in the code blocks of a page or in a recipe's docstring.

    Shell arrays of the page are filled in, ``[brackets]`` around flags that may be left out are removed, and of a
    launch script the words after ``--`` are taken.
    """
    code = "\n".join(_code(text)).replace("\\\n", " ")
    arrays = {name: " ".join(words.split()) for name, words in ARRAY.findall(code)}
    lines = ARRAY.sub("", code).splitlines()
    while lines:
        line = lines.pop(0).strip()
        if not re.match(r"(bert-jax|launch/\w+\.sh) ", line):
            continue
        for name, words in arrays.items():
            line = line.replace(f'"${{{name}[@]}}"', words)
        while (words := _words(line)) is None:  # a quote is still open
            line += " " + lines.pop(0).strip()
        found = RUN_OF_A_SCRIPT.match(line)
        if found:
            yield _words(line[found.end() :]) or []
        elif line.startswith("bert-jax"):
            yield words[1:]


def _words(line: str) -> list[str] | None:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None
    for end in ("&&", "&", "|", ">", ";"):
        words = words[: words.index(end)] if end in words else words
    return [re.sub(r"^\[(-.*?)\]?$|^(-[^\[]*)\]$", r"\1\2", word) for word in words]


def _code(text: str) -> Iterator[str]:
    """Yield the lines of code blocks: those indented by four spaces, and those between fences."""
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line


def without_programs(text: str) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _without_code(text: str) -> str:
    text = without_programs(text)
    lines = (line for line in text.splitlines() if not line.startswith("    "))
    return re.sub(r"`[^`\n]*\]\([^`\n]*`", "", "\n".join(lines))
