"""Small files of labelled data, and what is made of them."""

from pathlib import Path

from bert_jax.examples.columns import Roles
from bert_jax.examples.load import DataConfig, load
from bert_jax.records import Example

CLASSIFICATION = Roles(("text",), ("pair", "label"))
TAGGING = Roles(("words",), ("tags",))
SPAN_QA = Roles(("question", "context"), ("answers", "is_impossible"))
MULTIPLE_CHOICE = Roles(("context", "choices"), ("question", "label"))


def loaded(folder: Path, roles: Roles, **config) -> dict[str, tuple[Example, ...]]:
    """``load`` where nothing is to be noted of."""
    notes: list[str] = []
    found = load(DataConfig(**config), folder, roles, notes.append)
    assert notes == []
    return found


def noted(folder: Path, roles: Roles, **config) -> tuple[dict[str, tuple[Example, ...]], list[str]]:
    notes: list[str] = []
    return load(DataConfig(**config), folder, roles, notes.append), notes


def written(folder: Path, **texts: str | bytes) -> Path:
    """``folder`` with a file of each name; a ``__`` in a name is a dot."""
    for name, text in texts.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder
