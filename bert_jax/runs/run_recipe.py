"""Reads what other commands need of the recipe of a run: the rows that it trains on, and the sentences of its text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax import catalogue
from bert_jax.configuration import build
from bert_jax.corpora.prepare import CorpusConfig, find_source
from bert_jax.corpora.source import documents
from bert_jax.errors import UserError
from bert_jax.models.model import NSP_HEAD
from bert_jax.reporting.run_record import read_run
from bert_jax.storage import files, reading

USUAL = (128, 512)
MOST_SENTENCES = 200_000  # of which the vectors take about 100 MB for each 128 of the model's width


class PlannedRows(NamedTuple):
    """The rows of a recipe."""

    phases: Mapping[str, int]  # name -> row length, in order; empty if no recipe is known
    pairs: bool  # whether rows are pairs of segments whose second one is random half of the time
    next_sentences: bool  # whether the model predicts which second segments are random

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.phases.values())) or USUAL


def planned_rows(corpus: str | os.PathLike[str], config: Mapping[str, Any] | None) -> PlannedRows:
    """Return the rows of ``config``; if it is None, those of the run in whose folder ``corpus`` lies, if there is one.

    Without either, rows are pairs and the row lengths are the usual ones.
    """
    if config is None:
        run = reading.read_object(files.as_path(corpus).parent / "run.json") or {}
        config = run.get("config")
    tree = config if isinstance(config, Mapping) else {}
    phases: Any = tree.get("phases") if isinstance(tree.get("phases"), Mapping) else {}
    every = {str(name): phase.get("max_length") for name, phase in phases.items() if isinstance(phase, Mapping)}
    lengths = {name: length for name, length in every.items() if isinstance(length, int) and length >= 5}
    objective = tree.get("objective")
    if not isinstance(objective, Mapping):
        return PlannedRows(lengths, True, True)
    chosen = catalogue.find("objectives", objective.get("name", ""), having="Objective").Objective
    pairs = (objective.get("arrangement") or chosen.arrangement) == "sentence_pairs"
    return PlannedRows(lengths, pairs, pairs and NSP_HEAD in getattr(chosen, "parts", ()))


def own_sentences(workdir: str, most: int = MOST_SENTENCES) -> tuple[dict[str, str], bool]:
    """Return the sentences of a pretraining run's text by name, and whether there are more than ``most``.

    They are read again from the files that the run's recipe names. A sentence's name is its document's, a colon and its
    number in the document, from 1.

    Raises:
      UserError: ``workdir`` is no pretraining run, its text is private or only there as a store, or cannot be found.
    """
    config: dict[str, Any] = read_run(workdir).get("config") or {}
    text = config.get("corpus")
    if not text or config.get("private"):
        why = "is private" if text else "was not pretrained on text"
        raise UserError(f"{workdir} {why}; name the texts to search with --corpus=FILE, one a line")
    corpus = build(CorpusConfig, text, "config.corpus")
    if corpus.path or any(part.path for part in corpus.part_configs().values()):
        raise UserError(f"the text of {workdir} is there only as tokens; name the texts to search with --corpus=FILE")
    sentences: dict[str, str] = {}
    for document in documents(find_source(corpus)):
        for number, sentence in enumerate(document.sentences, 1):
            if len(sentences) == most:
                return sentences, True
            sentences[f"{document.id}:{number}"] = sentence
    return sentences, False
