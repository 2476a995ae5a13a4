"""Reads collections for scoring retrieval: documents, queries, and which documents answer which query."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from bert_jax.errors import UserError, few
from bert_jax.examples import delimited, jsonl, squad_json
from bert_jax.examples.reading import BadRecord, DataRecord, need, plain_name, text_lines
from bert_jax.examples.values import is_unicode

_SHOWN = 3
_QRELS = ("query-id", "corpus-id", "score")
_JSON_ENDINGS = (".json", ".jsonl")
OBJECT = re.compile(r"\s*+(?:\[\s*+)?\{")  # how a file of JSON objects begins


@dataclasses.dataclass(frozen=True)
class Collection:
    """The documents and queries of a collection, and the known relevance of documents for queries."""

    documents: Mapping[str, str]  # id -> text
    queries: Mapping[str, str]  # id -> text
    # query id -> document id -> grade, which is above 0 for a relevant document; empty if nothing is known
    relevances: Mapping[str, Mapping[str, int]]
    shared_ids: bool = True  # whether a document and a query of one id are one text; then neither answers the other


def read_collection(
    corpus: str | os.PathLike[str], queries: str | os.PathLike[str], qrels: str | os.PathLike[str] | None = None
) -> Collection:
    """Read a collection in BEIR's format (Thakur et al. 2021), or of plain text, from files that may be compressed.

    Args:
      corpus: JSON Lines with ``_id``, ``title`` and ``text``; or plain text, one document a line, whose id is the
        number of the line, from 1. Blank lines are skipped.
      queries: JSON Lines with ``_id`` and ``text``, or plain text, one query a line.
      qrels: a table (TSV) of relevance grades with the columns query-id, corpus-id and score. If given, queries without
        a line in it are left out.

    Raises:
      UserError: a file is missing or not of the format; a text has no id or the id of another text; a query has no
        text; ``qrels`` names texts that do not exist.
    """
    (documents, plain), (asked, typed) = read_texts(os.fspath(corpus)), read_texts(os.fspath(queries))
    empty = [name for name, text in asked.items() if not text]
    if empty:
        raise UserError(
            f"{os.fspath(queries)} has {len(empty):,} queries without text, such as {empty[0]!r}; mend them"
        )
    relevances = _qrels(os.fspath(qrels), documents, asked) if qrels else {}
    if qrels:
        asked = {name: text for name, text in asked.items() if name in relevances}
    return Collection(documents, asked, relevances, not (plain or typed) or os.fspath(corpus) == os.fspath(queries))


def of_documents(documents: Mapping[str, str], queries: Sequence[str]) -> Collection:
    """Return a collection of ``documents`` (id -> text) to search for ``queries``, whose ids are "1", "2" and so on.

    Raises:
      UserError: a query has no text.
    """
    if not all(query.strip() for query in queries):
        raise UserError("a query has no text; type what to search for")
    asked = {str(number): query for number, query in enumerate(queries, 1)}
    return Collection(documents, asked, {}, shared_ids=False)


def read_squad(path: str | os.PathLike[str]) -> Collection:
    """Read a file in SQuAD's format as a collection.

    Paragraphs are the documents and questions the queries; the relevant document of a question is its paragraph. Equal
    paragraphs are one document; equal questions are one query with several relevant documents. Questions without an
    answer are left out.
    """
    documents: dict[str, str] = {}  # text -> id
    queries: dict[str, str] = {}  # text -> id
    relevances: dict[str, dict[str, int]] = {}
    for row, record in enumerate(_good(squad_json.Reader().read(need(os.fspath(path))))):
        context, question = record.get("context"), record.get("question")
        if not isinstance(context, str) or not isinstance(question, str) or not question.strip():
            raise UserError(f"{record.where} has no question or no context; mend it")
        document = documents.setdefault(context, f"paragraph-{len(documents)}")
        if not record.get("is_impossible"):
            relevances.setdefault(queries.setdefault(question, f"question-{row}"), {})[document] = 1
    if not queries:
        raise UserError(f"{os.fspath(path)} has no question with an answer")
    by_id, asked = ({name: text for text, name in texts.items()} for texts in (documents, queries))
    return Collection(by_id, asked, relevances)


def read_texts(path: str) -> tuple[dict[str, str], bool]:
    """Return id -> title and text, joined by a space, of a file, and whether the file is plain text.

    Raises:
      UserError: the file is missing or has no text, or a text has no id or the id of another text.
    """
    texts: dict[str, str] = {}
    wrong: list[str] = []
    is_plain = not _is_json(path)
    for record in _lines(path) if is_plain else _good(jsonl.Reader().read(need(path))):
        name, text, title = (record.get(key) for key in ("_id", "text", "title"))
        if not isinstance(name, str | int) or not isinstance(text, str) or not isinstance(title, str | None):
            wrong.append(f"{record.where} has no _id and text ({', '.join(record)})")
        elif str(name) in texts:
            wrong.append(f"{record.where} has the _id {name!r} of another text")
        elif not (is_unicode(text) and is_unicode(title)):
            wrong.append(f"{record.where} is not UTF-8")
        else:
            texts[str(name)] = " ".join(piece for piece in (title, text) if piece).strip()
    _raise(wrong)
    if not texts:
        raise UserError(f"{path} has no text; write one text a line, or JSON objects with _id and text, one per line")
    return texts, is_plain


def _lines(path: str) -> Iterator[DataRecord]:
    """Yield the lines of plain text that are not blank, each with its number as ``_id``."""
    for number, line in text_lines(need(path)):
        if line.strip():
            yield DataRecord({"_id": number, "text": line}, f"{path}:{number}")


def _is_json(path: str) -> bool:
    """Return whether a file holds JSON objects, by its name or by how its text begins."""
    if plain_name(path).lower().endswith(_JSON_ENDINGS):
        return True
    return any(OBJECT.match(record["text"]) for record in itertools.islice(_lines(path), 1))


def _qrels(path: str, documents: Mapping[str, str], queries: Mapping[str, str]) -> dict[str, dict[str, int]]:
    relevances: dict[str, dict[str, int]] = {}
    wrong: list[str] = []
    for record in _good(delimited.Reader().read(need(path))):
        missing = [name for name in _QRELS if name not in record]
        if missing:
            raise UserError(f"{path} has no column {', '.join(missing)}; its first line names {', '.join(record)}")
        query, document, score = (record[name] for name in _QRELS)
        if query not in queries:
            wrong.append(f"{record.where} has the query {query!r}, which is not in the queries")
        elif document not in documents:
            wrong.append(f"{record.where} has the document {document!r}, which is not in the corpus")
        elif not re.fullmatch("-?[0-9]{1,18}", score):
            wrong.append(f"{record.where} has the score {score!r}, which is not a whole number")
        else:
            relevances.setdefault(query, {})[document] = int(score)
    _raise(wrong)
    if not relevances:
        raise UserError(f"{path} has no line after its first; leave --qrels out to search without a score")
    return relevances


def _good(items: Iterator[DataRecord | BadRecord]) -> Iterator[DataRecord]:
    for item in items:
        if isinstance(item, BadRecord):
            raise UserError(f"{item.where} {item.reason}; mend it")
        yield item


def _raise(wrong: list[str]) -> None:
    if wrong:
        raise UserError(few(wrong, _SHOWN, "; "))
