"""The flags that mend what an inspection finds. A flag with which the corpus was built is not named again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_FEWEST_FILES = 20  # with fewer, files are too few documents to hold some out


@dataclasses.dataclass(frozen=True)
class Fixes:
    """Names the flags of the next build that would change something, by how the corpus was built.

    Attributes:
      manifest: the corpus's manifest.
      key: the config key of the corpus: ``config.corpus``, or ``config.corpus.parts.<name>`` for a part of a mixture.
      phases: the phases of the recipe, name -> row length; empty if no recipe is known.
    """

    manifest: Mapping[str, Any]
    key: str = "config.corpus"
    phases: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def _source(self) -> Mapping[str, Any]:
        source = self.manifest.get("source")
        return source if isinstance(source, Mapping) else {}

    def option(self, name: str, value: str, now: str) -> str:
        """Return the flag that sets the source's option ``name`` to ``value``; "" unless its value is ``now``."""
        return f"--{self.key}.options.{name}={value}" if self._source.get(name) == now else ""

    def joins_lines(self) -> str:
        """Return the flag that makes line breaks spaces; "" if they are read as spaces already."""
        return self.option("line_breaks", "are_spaces", "end_sentences") or self.option("format", "free", "sentences")

    def longer_documents(self) -> str:
        """Return the flag that makes documents longer, or other advice."""
        several = self._source.get("files", 0) >= _FEWEST_FILES
        return (
            (self.option("document_boundary", "file", "blank_line") if several else "")
            or self.option("document_rule", "example", "blank_line")
            or "--config.objective.name=mlm --config.objective.arrangement=sentences does without pairs of sentences"
        )

    def shorter_documents(self) -> str:
        """Return the flag that makes documents shorter, or other advice."""
        return (
            self.option("document_boundary", "blank_line", "file")
            or self.option("document_rule", "blank_line", "example")
            or "split the file before the build"
        )

    def other_field(self) -> str:
        """Return the flag that names the field with the text, or other advice."""
        name = next((name for name in ("text_field", "text_column") if name in self._source), "")
        return f"--{self.key}.options.{name}=NAME" if name else "see why documents have no text"

    def duplicates(self) -> str:
        """Return the flag that drops repeated documents, or other advice."""
        if self.manifest.get("duplicates", "keep") == "keep":
            return "--config.corpus.duplicates=exact"
        return "drop headers, footers and notices from the text before the build"

    def language(self) -> str:
        """Return the flag that names another language for sentence ends, or other advice."""
        if now := self._source.get("language"):
            return f"--{self.key}.options.language=CODE (now {now})"
        return "split the lines before the build"

    def longer_rows(self, length: int) -> str:
        """Return the flag that makes rows of ``length`` twice as long."""
        names = [name for name, value in self.phases.items() if value == length] or ["PHASE"]
        return " ".join(f"--config.phases.{name}.max_length={2 * length}" for name in names)
