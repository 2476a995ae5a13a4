"""Reads collections for scoring retrieval: documents, queries, and which documents answer which query."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from bert_jax.errors import UserError
from bert_jax.examples import delimited, jsonl, squad_json
from bert_jax.examples.reading import Bad, Record, need, plain_name, text_lines
from bert_jax.examples.values import is_unicode

SHOWN = 3
QRELS = ("query-id", "corpus-id", "score")
JSON_ENDINGS = (".json", ".jsonl")
OBJECT = re.compile(r"\s*+(?:\[\s*+)?\{")  # how a file of JSON objects begins


@dataclasses.dataclass(frozen=True)
class Collection:
    """The documents and queries of a collection, and the known relevance of documents for queries."""

    documents: Mapping[str, str]  # id -> text
    queries: Mapping[str, str]  # id -> text
    # query id -> document id -> grade, which is above 0 for a relevant document; empty if nothing is known
    relevances: Mapping[str, Mapping[str, int]]
    shared_ids: bool = True  # whether a document and a query of one id are the same text, and no answer to each other


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
    (documents, plain), (asked, typed) = _texts(os.fspath(corpus)), _texts(os.fspath(queries))
    empty = [name for name, text in asked.items() if not text]
    if empty:
        raise UserError(
            f"{os.fspath(queries)} has {len(empty):,} queries without text, such as {empty[0]!r}; mend them"
        )
    relevances = _qrels(os.fspath(qrels), documents, asked) if qrels else {}
    if qrels:
        asked = {name: text for name, text in asked.items() if name in relevances}
    return Collection(documents, asked, relevances, not (plain or typed) or os.fspath(corpus) == os.fspath(queries))


def read_documents(corpus: str | os.PathLike[str], queries: Sequence[str]) -> Collection:
    """Read the documents of ``read_collection``, to search them for ``queries``, whose ids are "1", "2" and so on.

    Raises:
      UserError: as ``read_collection``, or a query has no text.
    """
    return of_documents(_texts(os.fspath(corpus))[0], queries)


def of_documents(documents: Mapping[str, str], queries: Sequence[str]) -> Collection:
    """Return a collection of ``documents`` (id -> text) to search for ``queries``, as ``read_documents``."""
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
    documents: dict[str, str] = {}
    queries: dict[str, str] = {}
    relevances: dict[str, dict[str, int]] = {}
    number: dict[str, str] = {}
    asked: dict[str, str] = {}
    for row, record in enumerate(_sound(squad_json.Reader().read(need(os.fspath(path))))):
        context, question = record.get("context"), record.get("question")
        if not isinstance(context, str) or not isinstance(question, str) or not question.strip():
            raise UserError(f"{record.where} has no question or no context; mend it")
        name = number.setdefault(context, f"paragraph-{len(number)}")
        documents[name] = context
        if not record.get("is_impossible"):
            query = asked.setdefault(question, f"question-{row}")
            queries[query] = question
            relevances.setdefault(query, {})[name] = 1
    if not queries:
        raise UserError(f"{os.fspath(path)} has no question with an answer")
    return Collection(documents, queries, relevances)


def _texts(path: str) -> tuple[dict[str, str], bool]:
    """Return id -> title and text, joined by a space, and whether the file is plain text."""
    texts: dict[str, str] = {}
    wrong: list[str] = []
    if not _is_json(path):
        for number, line in text_lines(need(path)):
            if not is_unicode(line):
                wrong.append(f"{path}:{number} is not UTF-8")
            elif line.strip():
                texts[str(number)] = line.strip()
        _raise(wrong)
        if not texts:
            raise UserError(f"{path} has no text; write one text a line, or JSON objects with _id and text")
        return texts, True
    for record in _sound(jsonl.Reader().read(need(path))):
        name, text, title = (record.get(key) for key in ("_id", "text", "title"))
        if not isinstance(name, str | int) or not isinstance(text, str) or not isinstance(title, str | None):
            wrong.append(f"{record.where} has no _id and text ({', '.join(record)})")
        elif str(name) in texts:
            wrong.append(f"{record.where} has the _id {name!r} of another text")
        elif not (is_unicode(text) and is_unicode(title)):
            wrong.append(f"{record.where} is not UTF-8")
        else:
            texts[str(name)] = " ".join(part for part in (title, text) if part).strip()
    _raise(wrong)
    if not texts:
        raise UserError(f"{path} has no text; JSON objects with _id and text are needed, one per line")
    return texts, False


def _is_json(path: str) -> bool:
    """Return whether a file holds JSON objects, by its name or by how its text begins."""
    if plain_name(path).lower().endswith(JSON_ENDINGS):
        return True
    first = next((line for _, line in text_lines(need(path)) if line.strip()), "")
    return OBJECT.match(first) is not None


def _qrels(path: str, documents: Mapping[str, str], queries: Mapping[str, str]) -> dict[str, dict[str, int]]:
    relevances: dict[str, dict[str, int]] = {}
    wrong: list[str] = []
    for record in _sound(delimited.Reader().read(need(path))):
        missing = [name for name in QRELS if name not in record]
        if missing:
            raise UserError(f"{path} has no column {', '.join(missing)}; its first line names {', '.join(record)}")
        query, document, score = (record[name] for name in QRELS)
        if query not in queries:
            wrong.append(f"{record.where} has the query {query!r}, which is not in the queries")
        elif document not in documents:
            wrong.append(f"{record.where} has the document {document!r}, which is not in the corpus")
        elif not score.lstrip("-").isdecimal():
            wrong.append(f"{record.where} has the score {score!r}, which is not a whole number")
        else:
            relevances.setdefault(query, {})[document] = int(score)
    _raise(wrong)
    if not relevances:
        raise UserError(f"{path} has no line after its first; leave --qrels out to search without a score")
    return relevances


def _sound(items: Iterator[Record | Bad]) -> Iterator[Record]:
    for item in items:
        if isinstance(item, Bad):
            raise UserError(f"{item.where} {item.reason}; mend it")
        yield item


def _raise(wrong: list[str]) -> None:
    if wrong:
        more = f"; and {len(wrong) - SHOWN:,} more" if len(wrong) > SHOWN else ""
        raise UserError("; ".join(wrong[:SHOWN]) + more)
