"""Reads collections for scoring retrieval: documents, queries, and which documents answer which query."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping

from bert_jax.errors import UserError
from bert_jax.examples import delimited, jsonl, squad_json
from bert_jax.examples.reading import Bad, Record, need
from bert_jax.examples.values import is_unicode

SHOWN = 3
QRELS = ("query-id", "corpus-id", "score")


@dataclasses.dataclass(frozen=True)
class Collection:
    """The documents and queries of a collection, and the known relevance of documents for queries."""

    documents: Mapping[str, str]  # id -> text
    queries: Mapping[str, str]  # id -> text
    # query id -> document id -> grade, which is above 0 for a relevant document; empty if nothing is known
    relevances: Mapping[str, Mapping[str, int]]


def read_collection(
    corpus: str | os.PathLike[str], queries: str | os.PathLike[str], qrels: str | os.PathLike[str] | None = None
) -> Collection:
    """Read a collection in BEIR's format (Thakur et al. 2021) from files that may be compressed.

    Args:
      corpus: JSON Lines with ``_id``, ``title`` and ``text``.
      queries: JSON Lines with ``_id`` and ``text``.
      qrels: a table (TSV) of relevance grades with the columns query-id, corpus-id and score. If given, queries without
        a line in it are left out.

    Raises:
      UserError: a file is missing or not of the format; a text has no id or the id of another text; a query has no
        text; ``qrels`` names texts that do not exist.
    """
    documents, asked = _texts(os.fspath(corpus)), _texts(os.fspath(queries))
    empty = [name for name, text in asked.items() if not text]
    if empty:
        raise UserError(
            f"{os.fspath(queries)} has {len(empty):,} queries without text, such as {empty[0]!r}; mend them"
        )
    relevances = _qrels(os.fspath(qrels), documents, asked) if qrels else {}
    if qrels:
        asked = {name: text for name, text in asked.items() if name in relevances}
    return Collection(documents, asked, relevances)


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
        context, question = record["context"], record["question"]
        if not isinstance(context, str) or not isinstance(question, str) or not question.strip():
            raise UserError(f"{record.where} has no question or no context; mend it")
        name = number.setdefault(context, f"paragraph-{len(number)}")
        documents[name] = context
        if not record["is_impossible"]:
            query = asked.setdefault(question, f"question-{row}")
            queries[query] = question
            relevances.setdefault(query, {})[name] = 1
    if not queries:
        raise UserError(f"{os.fspath(path)} has no question with an answer")
    return Collection(documents, queries, relevances)


def _texts(path: str) -> dict[str, str]:
    """Return id -> title and text, joined by a space."""
    texts: dict[str, str] = {}
    wrong: list[str] = []
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
    return texts


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
