"""Searches with sentence vectors: encodes every text once, and finds the nearest documents of each query."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from bert_jax.errors import UserError, optional_library
from bert_jax.examples.collection import Collection
from bert_jax.features.extract import Extractor
from bert_jax.features.sentence_vectors import DOCUMENT_PROMPTS, QUERY_PROMPTS, SentenceVectors
from bert_jax.tasks.metrics.retrieval import Nearest, retrieval_metrics

BLOCK_TEXTS = 4096  # number of texts that are encoded, searched and dropped together
# Matches the words of BM25: runs of letters and digits; in scripts without spaces, each character.
WORD = re.compile(
    r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]+"
)
_K1, _B = 0.9, 0.4  # the values of BEIR's BM25 (Thakur et al. 2021, section 4)
Rankings = dict[str, dict[str, float]]  # query -> its best documents -> score
SHOWN = 200  # most characters of a document in a table


class _Retrieval(NamedTuple):
    """The result of a search. ``metrics`` are by searcher ("model", "bm25"), and empty if relevances are not known."""

    rankings: Rankings
    metrics: dict[str, dict[str, float]]


def retrieve(
    extractor: Extractor,
    collection: Collection,
    top: int = 10,
    baseline: Literal["bm25", "none"] = "bm25",
    progress: Callable[[int, int], None] = lambda done, texts: None,
) -> _Retrieval:
    """Return the ``top`` documents of each query, by a model, and by BM25 too if ``collection`` has relevances.

    The model may be pretrained or fine-tuned. A document with the id of the query is never an answer to it, as in BEIR,
    unless the collection says that ids are not shared.

    The model's prompts for queries and for documents, if it has any, are put before them.

    Args:
      extractor: computes one vector for each text.
      progress: is called with (texts read, all texts) after each batch, first of queries, then of documents.

    Raises:
      UserError: the baseline's package is missing, or the model's vectors are compared in another way than by cosine
        or dot product.
    """

    vectors = extractor.model.vectors
    similarity = check_similarity(vectors)

    def blocks(texts: Mapping[str, str], names: tuple[str, ...]) -> Iterator[np.ndarray]:
        every = list(texts.values())
        for start in range(0, len(every), BLOCK_TEXTS):
            shown = functools.partial(lambda before, done: progress(before + done, len(every)), start)
            yield extractor.texts(every[start : start + BLOCK_TEXTS], vectors.of_role(names), shown)

    queries = np.concatenate([*blocks(collection.queries, QUERY_PROMPTS)])
    nearest = Nearest(queries, top + 1, similarity)
    for block in blocks(collection.documents, DOCUMENT_PROMPTS):
        nearest.add(block)
    rankings, metrics = _rank(collection, nearest.places, nearest.scores, top), {}
    if collection.relevances:
        cutoffs = sorted({min(10, top), top})
        metrics["model"] = retrieval_metrics(collection.relevances, rankings, cutoffs)
        if baseline == "bm25":
            metrics["bm25"] = retrieval_metrics(collection.relevances, bm25(collection, top), cutoffs)
    return _Retrieval(rankings, metrics)


def check_similarity(vectors: SentenceVectors) -> Literal["cosine", "dot"]:
    """Return how the vectors of a model are compared. Raises ``UserError`` if a search cannot do it."""
    if vectors.similarity in ("cosine", "dot"):
        return vectors.similarity
    raise UserError(
        f"the model's files say similarity_fn_name {vectors.similarity!r}; a search compares by cosine or dot: write "
        "cosine or dot into config_sentence_transformers.json if it is right for this model"
    )


def _rank(collection: Collection, places: np.ndarray, scores: np.ndarray, top: int) -> Rankings:
    """Return the ``top`` documents of each query, the best first.

    ``places`` and ``scores`` [queries, more than top] are the numbers of documents and their scores, the best first.
    """
    names, rankings = list(collection.documents), {}
    for query, of_query, with_scores in zip(collection.queries, places.tolist(), scores.tolist(), strict=True):
        itself = query if collection.shared_ids else None
        listed = zip((names[place] for place in of_query), with_scores, strict=True)
        rankings[query] = dict([(name, score) for name, score in listed if name != itself][:top])
    return rankings


def words(text: str) -> list[str]:
    """Return the words of a text for BM25, in lower case."""
    return WORD.findall(text.lower())


def bm25_class() -> Callable[..., Any]:
    """Return the class of ``bm25s``. Raises ``UserError`` if it is not installed."""
    try:
        library = optional_library("bm25s", "BM25")
    except UserError as error:
        raise UserError(f"{error}, or give --baseline=none") from error
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # else it logs every index
    return library.BM25  # type: ignore[no-any-return]


def bm25(collection: Collection, top: int) -> Rankings:
    """Return the ``top`` documents of each query by BM25 (Lucene's variant), with their scores."""
    searcher = bm25_class()(k1=_K1, b=_B, method="lucene")
    searcher.index([words(text) for text in collection.documents.values()], show_progress=False)
    asked, count = [words(text) for text in collection.queries.values()], min(top + 1, len(collection.documents))
    places, scores = searcher.retrieve(asked, k=count, show_progress=False)
    return _rank(collection, places, scores, top)


def as_records(collection: Collection, rankings: Mapping[str, Mapping[str, float]]) -> Iterator[dict[str, Any]]:
    """Yield one record for each query, with its documents, best first, and their texts unless the search is scored."""
    for query, documents in rankings.items():
        listed: list[dict[str, Any]] = [{"id": name, "score": round(score, 6)} for name, score in documents.items()]
        if not collection.relevances:
            listed = [{**one, "text": collection.documents[one["id"]]} for one in listed]
        yield {"id": query, "text": collection.queries[query], "documents": listed}


def as_table(record: Mapping[str, Any]) -> str:
    """Return the query's text, followed by one line for each document of a record of ``as_records``."""
    lines = [f"  {one['score']:.3f}  {_short(one['text'])}  ({one['id']})" for one in record["documents"]]
    return "\n".join([record["text"], *lines])


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
