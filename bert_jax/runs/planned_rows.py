"""Finds the rows for which a corpus is meant: those of a recipe, or of the run that the corpus belongs to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax import catalogue
from bert_jax.models.model import NSP_HEAD
from bert_jax.storage import files, reading

USUAL = (128, 512)


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
    if not isinstance(config, Mapping):
        return PlannedRows({}, True, True)
    phases, objective = config.get("phases"), config.get("objective")
    named = phases if isinstance(phases, Mapping) else {}
    lengths = {name: values.get("max_length") for name, values in named.items() if isinstance(values, Mapping)}
    sound = {str(name): length for name, length in lengths.items() if isinstance(length, int) and length >= 5}
    if not isinstance(objective, Mapping):
        return PlannedRows(sound, True, True)
    made = catalogue.find("objectives", objective.get("name", ""), having="Objective").Objective
    pairs = (objective.get("arrangement") or made.arrangement) == "sentence_pairs"
    return PlannedRows(sound, pairs, pairs and NSP_HEAD in getattr(made, "parts", ()))
