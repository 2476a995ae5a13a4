"""The reader ``dream``: questions with choices on dialogues, as DREAM writes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.examples.jsonl import parse
from bert_jax.examples.reading import Bad, Record, whole_text


@dataclasses.dataclass(frozen=True)
class Options:
    """None: the format is one."""


class Reader:
    """Questions as ``{"id", "context", "question", "choices", "label"}``: the turns of a dialogue are lines of the
    context, the label is the place of the answer among the choices."""

    named_splits = False

    def __init__(self, options: Options = Options()) -> None:
        pass

    def read(self, path: str) -> Iterator[Record | Bad]:
        """The questions of ``path``. Raises ``UserError`` if it is not dialogues with questions."""
        whole = parse(whole_text(path), path)
        if not isinstance(whole, list):
            raise UserError(f"{path} is not a list of dialogues, which the format dream needs; set config.data.format")
        for i, dialogue in enumerate(whole):
            try:
                turns, questions, name = dialogue
                for n, question in enumerate(questions):
                    yield _question(f"{path}, [{i}][1][{n}]", turns, question, f"{name}-{n}")
            except (TypeError, ValueError, KeyError) as error:
                yield Bad(f"{path}, [{i}]", f"is not a dialogue, its questions and its id ({type(error).__name__})")


def _question(where: str, turns: list[str], question: dict[str, Any], name: str) -> Record | Bad:
    choices = question["choice"]
    columns = {"id": name, "context": "\n".join(turns), "question": question["question"], "choices": choices}
    if "answer" in question:
        if question["answer"] not in choices:
            return Bad(where, "has an answer that is none of its choices")
        columns["label"] = choices.index(question["answer"])
    return Record(columns, where)
