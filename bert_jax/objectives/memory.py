"""The memory that an objective carries from batch to batch: what its encoder reads of earlier segments of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import encoder_file
from bert_jax.parts import catalogue
from bert_jax.records import Feature
from bert_jax.rows.lanes import LANE_STARTS
from bert_jax.rows.rows_config import RowsConfig, arrangements_with

_LESS = "config.model.memory_length to 0"


def memory_of(model: ModelConfig) -> Mapping[str, Feature]:
    """Return the arrays of a row that an encoder hands on to the next segment; {} if it has no memory."""
    return encoder_file(model.encoder).Encoder.past(model) if _reads_memory(model) else {}


def _reads_memory(model: ModelConfig) -> bool:
    """Return whether an encoder reads memory where a batch has it, even if its config asks for none."""
    return hasattr(encoder_file(model.encoder).Encoder, "past")


def lanes_read(memory: Mapping[str, Feature], rows: RowsConfig, model: ModelConfig) -> set[str]:
    """Return the feature that says where lanes begin, if there is memory.

    Raises ``UserError`` if ``rows`` lack it, or if the next row begins where the memory of ``model`` does not end.
    """
    if not memory:
        return set()
    if not rows.in_lanes:
        raise UserError(
            f"the model has memory, and the arrangement {rows.arrangement!r} has rows that do not go on from batch to "
            f"batch; set config.objective.arrangement to {' or '.join(map(repr, arrangements_with([LANE_STARTS])))}, "
            f"or {_LESS}"
        )
    length, arranger = rows.max_length, rows.arranger
    begins = arranger.reused(length) if hasattr(arranger, "reused") else length
    if begins != (kept := getattr(model, "reuse_length", 0) or length):
        raise UserError(
            f"{min(kept, length)} of the {length} positions of a row enter the memory, and in the arrangement "
            f"{rows.arrangement!r} the next row begins after {begins}; set config.model.reuse_length, which encoder "
            f"xlnet alone has, to {begins % length} (0: all), or {_LESS}"
        )
    return {LANE_STARTS}


def check_memory(objective: Any) -> None:
    """Raise ``UserError`` if ``objective``, a ``PretrainingObjective``, cannot carry the memory that it declares."""
    if not objective.memory:
        return
    name = catalogue.display_name(objective.name)
    if objective.whole_batches:
        raise UserError(f"objective {name} reads whole batches, and a model with memory reads rows alone; set {_LESS}")
    if (teacher := objective.setting.teacher) and _reads_memory(teacher.trained.config):
        raise UserError(
            f"config.teacher.init={teacher.trained.source} would read the memory of the student, which is made of "
            f"other vectors; take a teacher of another encoder, or set {_LESS}"
        )
    given = {**next(iter(objective.batch_specs.values())), **objective.memory}
    found = {n: Feature(x.shape[1:], str(x.dtype)) for n, x in objective.output_shapes(given).items()}
    for one, wanted in objective.memory.items():
        if found.get(one) != wanted:
            raise UserError(
                f"objective {name} gives out {found.get(one, 'no')} {one}, and the memory of its model is {wanted}; "
                f"return it from forward, or set {_LESS}"
            )
