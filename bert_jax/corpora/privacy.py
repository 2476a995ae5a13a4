"""Private mode: a run writes how much text it has, but not which text, or where it came from.

With ``--private`` (or ``config.private``) no text of the corpus, and no path or name of its source, is written to any
file of the working folder or of the corpus, or printed, except

- the token shards and the vocabulary, which hold the text or are learned from it (trained weights can reveal text too),
- error messages on the terminal, which name the file to correct; ``status.json`` keeps only the kind of an error,
- paths that the user chose for output (``--workdir``, ``--output``), and the recipe's own examples.

A hash replaces each text that is left out, so a restart with another source is still noticed, and two runs can be
distinguished. The hash is not salted: a reader who guesses a path can confirm the guess.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from bert_jax.parts.catalogue import is_own

# Keys whose text says what kind of source it is, but not which source it is. All other text is replaced by a hash.
_OPEN_KEYS = {
    *("source", "kind", "format", "document_boundary", "language", "license", "bad_text", "line_breaks", "annotator")
}
PREFIX = "sha256:"


def redact(value: Any, key: str = "") -> Any:
    """Return ``value`` with a hash in place of every text, except under ``_OPEN_KEYS``. Numbers and structure stay.

    Keys of a mapping stay if they are identifiers, that is, names of fields. Other keys, such as paths, are hashed.
    """
    if isinstance(value, Mapping):
        return {_name(name): redact(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(inner, key) for inner in value]
    if not isinstance(value, str) or not value or value.startswith(PREFIX):
        return value
    if key in _OPEN_KEYS and not is_own(value):  # the name of a user's own file may say whose text it reads
        return value
    return PREFIX + hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _name(name: Any) -> str:
    text = str(name)
    return text if text.isidentifier() else redact(text)


def private_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config tree as a private run records it: hashes replace the text under ``vocab`` and ``corpus``."""
    hidden = {name: redact(config[name]) for name in ("vocab", "corpus") if name in config}
    return {**config, **hidden}


def is_private(manifest: Mapping[str, Any]) -> bool:
    """Return whether a corpus was built in private mode."""
    return bool(manifest["source"].get("private"))
