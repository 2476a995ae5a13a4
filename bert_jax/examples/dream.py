"""The reader ``dream``: reads multiple-choice questions about dialogues, in the format of DREAM."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.examples.jsonl import parse
from bert_jax.examples.reading import Bad, Record, whole_text


@dataclasses.dataclass(frozen=True)
class Options:
    """No options: the format has no variants."""


class Reader:
    """Reads questions as records ``{"id", "context", "question", "choices", "label"}``.

    The turns of a dialogue are the lines of the context. The label is the index of the answer among the choices.
    """

    named_splits = False

    def __init__(self, options: Options = Options()) -> None:
        pass

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the questions of ``path``. Raises ``UserError`` if it does not hold dialogues with questions."""
        whole = parse(whole_text(path), path)
        if not isinstance(whole, list):
            raise UserError(f"{path} is not a list of dialogues, which the format dream needs; set config.data.format")
        for i, dialogue in enumerate(whole):
            try:
                turns, questions, name = dialogue
                for n, question in enumerate(questions):
                    yield _question(f"{path}, [{i}][1][{n}]", turns, question, f"{name}-{n}")
            except (TypeError, ValueError, KeyError) as error:
                yield Bad(f"{path}, [{i}]", f"is not [dialogue, questions, id] ({type(error).__name__})")


def _question(where: str, turns: list[str], question: dict[str, Any], name: str) -> Record | Bad:
    choices = question["choice"]
    columns = {"id": name, "context": "\n".join(turns), "question": question["question"], "choices": choices}
    if "answer" in question:
        if question["answer"] not in choices:
            return Bad(where, "has an answer that is not one of its choices")
        columns["label"] = choices.index(question["answer"])
    return Record(columns, where)
