"""The reader ``squad_json``: reads questions about passages, in the format of SQuAD 1.1 and 2.0."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.examples.jsonl import kind, parse
from bert_jax.examples.reading import Bad, Record, whole_text


@dataclasses.dataclass(frozen=True)
class Options:
    """No options: the format has no variants."""


class Reader:
    """Reads questions as records.

    Columns: ``{"id", "title", "context", "question", "answers": [{"text", "answer_start"}], "is_impossible"}``.
    Character offsets stay as found: the task counts and corrects offsets that do not point at their text. A question
    has no ``answers`` if the file gives none; an impossible question has an empty list.
    """

    named_splits = False

    def __init__(self, options: Options = Options()) -> None:
        pass

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the questions of ``path``."""
        whole = parse(whole_text(path), path)
        for at_article, article in _list(whole, "data", path):
            for at_paragraph, paragraph in _list(article, "paragraphs", path, at_article):
                for at_question, question in _list(paragraph, "qas", path, at_paragraph):
                    yield _question(f"{path}, {at_question}", article, paragraph, question)


def _question(where: str, article: Any, paragraph: Any, question: Any) -> Record | Bad:
    if not isinstance(question, Mapping):
        return Bad(where, f"is a JSON {kind(question)}, not an object")
    columns: dict[str, Any] = {
        "id": question.get("id"),
        "title": article.get("title"),
        "context": paragraph.get("context"),
        "question": question.get("question"),
        "is_impossible": bool(question.get("is_impossible", False)),
    }
    answers = [] if columns["is_impossible"] else question.get("answers")
    if answers is not None:
        if not isinstance(answers, list) or not all(_is_answer(answer) for answer in answers):
            return Bad(where, "has answers that are not a list of objects with a text and an answer_start")
        columns["answers"] = [{"text": a["text"], "answer_start": a["answer_start"]} for a in answers]
    return Record(columns, where)


def _is_answer(answer: Any) -> bool:
    return (
        isinstance(answer, Mapping)
        and isinstance(answer.get("text"), str)
        and isinstance(answer.get("answer_start"), int)
    )


def _list(value: Any, key: str, path: str, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (place, item) for each item of the list ``value[key]``. Raises ``UserError`` if there is no such list."""
    found = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(found, list):
        inside = f" at {place}" if place else ""
        raise UserError(
            f"{path} has no list {key!r}{inside}; SQuAD's format is needed: data, paragraphs, qas; set"
            " config.data.format if it is another"
        )
    for i, item in enumerate(found):
        yield f"{place}.{key}[{i}]".lstrip("."), item
