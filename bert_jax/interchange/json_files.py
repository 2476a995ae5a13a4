"""Reads and writes the JSON files in a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.storage import reading


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ``UserError`` if the file is missing or holds something else."""
    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name}; is it a model's folder?")
    if (content := reading.parse_object(reading.read_bytes(path))) is None:
        raise UserError(f"{path} holds no JSON object; copy it again")
    return content


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as an indented JSON file."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
