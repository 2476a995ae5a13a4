"""Says which keys of vocabulary and corpus a run has used, for its record, its report and its card.

A vocabulary or corpus that a run finds was made with other keys. The keys that the recipe has for making one do not
count then, and a record that had them would be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.configuration import without
from bert_jax.corpora.store import Corpus
from bert_jax.runs.inputs import Inputs
from bert_jax.text.tokenizer import Tokenizer

_LEARNING = (
    *("kind", "size", "lowercase", "strip_accents", "min_frequency"),
    *("character_coverage", "byte_fallback", "max_sentences", "num_threads"),
)
BUILDING = ("source", "options", "heldout_fraction", "duplicates", "part_bytes", "num_workers", "beam_options")


def used_keys(config: Mapping[str, Any], inputs: Inputs) -> dict[str, Any]:
    """Return ``config`` with the vocabulary and the corpus as they are, if they are not made by the run."""
    found = with_vocabulary(config, inputs.vocab.path, inputs.source_tokenizer)
    keys, corpus = dict(config.get("corpus", {})), inputs.corpus
    if not corpus.parts:
        language = corpus.options.get("language")
        found["corpus"] = {**without(keys, *BUILDING), **_of_store(corpus.path, language)} if corpus.path else keys
        return found
    parts = {name: dict(part) for name, part in keys["parts"].items()}
    there = [name for name in parts if corpus.path or corpus.part(name).path]
    keys["parts"] = parts | {name: without(parts[name], "source", "options") for name in there}
    found["corpus"] = without(keys, *BUILDING) if len(there) == len(parts) else keys
    return found


def with_vocabulary(config: Mapping[str, Any], path: str, given: Tokenizer | None) -> dict[str, Any]:
    """Return ``config`` with the vocabulary as it is, if a vocabulary was ``given``: at ``path``, or by ``--init``."""
    if given is None:
        return dict(config)
    case = {name: value for name, value in given.case._asdict().items() if value is not None}
    return {**config, "vocab": {**without(config.get("vocab", {}), *_LEARNING), "path": path, **case}}


def _of_store(path: str, language: str | None) -> dict[str, Any]:
    """Return the keys with which the store at ``path`` was built, without the keys that say where its text was.

    ``language``: the language that the recipe gives, which the card has in place of the language of the store.
    """
    manifest = Corpus(path).manifest
    language = language or manifest["source"].get("language")
    built = {name: manifest[name] for name in ("heldout_fraction", "duplicates", "part_bytes")}
    return {"source": manifest["source"].get("source", ""), "options": {"language": language}, **built}
