"""Searches with sentence vectors: encodes every text once, and finds the nearest documents of each query by cosine."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bert_jax.errors import UserError
from bert_jax.examples.collection import Collection
from bert_jax.features.extract import Extractor
from bert_jax.features.trained_model import TrainedModel
from bert_jax.models.heads import Pooling
from bert_jax.program import program
from bert_jax.tasks.metrics.nearest import Nearest, unit
from bert_jax.tasks.metrics.retrieval import retrieval_metrics

BLOCK_TEXTS = 4096  # number of texts that are encoded, searched and dropped together
# Matches the words of BM25: runs of letters and digits; in scripts without spaces, each character.
WORD = re.compile(
    r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]+"
)
K1, B = 0.9, 0.4  # the values of BEIR's BM25 (Thakur et al. 2021, section 4)
Rankings = dict[str, dict[str, float]]  # query -> its best documents -> score
Progress = Callable[[int, int], None]  # takes (texts encoded so far, all texts)
SHOWN = 200  # most characters of a document in a table


@dataclasses.dataclass(frozen=True)
class RetrievalRequest:
    """How ``bert-jax retrieve`` searches. None for ``pooling`` or ``max_length`` means as in training."""

    top: int = 10
    pooling: Pooling | None = None
    max_length: int | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("top", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}={getattr(self, name)}; at least 1 is needed")


@dataclasses.dataclass(frozen=True)
class RetrievalResult:
    """The result of a search. ``metrics`` are by searcher ("model", "bm25"), and empty if relevances are not known."""

    rankings: Rankings
    metrics: dict[str, dict[str, float]]
    pooling: str
    max_length: int
    note: str  # a line for the user about cosines that lie close together, or ""


def retrieve(
    model: TrainedModel,
    collection: Collection,
    request: RetrievalRequest,
    baseline: Literal["bm25", "none"] = "bm25",
    progress: Progress | None = None,
) -> RetrievalResult:
    """Search ``collection`` with a model, and with BM25 too if ``collection`` has relevances.

    The model may be pretrained or fine-tuned. A document with the id of the query is never an answer to it, as in BEIR,
    unless the collection says that ids are not shared.

    Args:
      progress: is called after each batch, first of queries, then of documents.

    Raises:
      UserError: ``max_length`` exceeds the model's positions, or the baseline's package is missing.
    """
    scored = bool(collection.relevances)
    tuned = (model.facts.get("task") or {}).get("name") == "sentence_embeddings"
    pooling: Pooling = request.pooling or model.pooling
    max_length = request.max_length or model.facts.get("max_length") or model.config.max_length
    model.config.check_lengths({"--max_length": max_length})
    extractor = Extractor(model, [pooling], max_length, request.batch_size)

    texts, asked = (list(found.values()) for found in (collection.documents, collection.queries))
    queries = np.concatenate([block for _, block in blocks(extractor, asked, progress)])
    nearest, note = Nearest(queries, request.top + 1), ""
    for start, block in blocks(extractor, texts, progress):
        nearest.add(block)
        if not (start or tuned):
            note = crowded(float(np.median(unit(queries[:BLOCK_TEXTS]) @ unit(block).T)), model.source)
    rankings = ranked(collection, nearest.places, nearest.scores, request.top)
    metrics = {}
    if scored:
        cutoffs = sorted({min(10, request.top), request.top})
        metrics["model"] = retrieval_metrics(collection.relevances, rankings, cutoffs)
        if baseline == "bm25":
            metrics["bm25"] = retrieval_metrics(collection.relevances, bm25(collection, request.top), cutoffs)
    return RetrievalResult(rankings, metrics, pooling, max_length, note)


def blocks(extractor: Extractor, texts: Sequence[str], progress: Progress | None) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (number of the first text, vectors) for each block of ``BLOCK_TEXTS`` texts."""
    for start in range(0, len(texts), BLOCK_TEXTS):

        def encoded(done: int, before: int = start) -> None:
            if progress:
                progress(before + done, len(texts))

        yield start, extractor.texts(texts[start : start + BLOCK_TEXTS], encoded)


def crowded(median: float, source: str) -> str:
    """Return a line about the cosines of an encoder that was not trained for them; "" if their median is below 0.5."""
    if median < 0.5:
        return ""
    return (
        f"untuned encoder: the cosine of any two texts is high (median {median:.2f}), so only the order counts; "
        f"{program()} finetune --config=embeddings --init={source} tunes it on pairs of texts that belong together"
    )


def ranked(collection: Collection, places: np.ndarray, scores: np.ndarray, top: int) -> Rankings:
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


def check_bm25() -> Callable[..., Any]:
    """Return the class of ``bm25s``. Raises ``UserError`` if it is not installed."""
    try:
        from bm25s import BM25
    except ImportError as error:
        raise UserError("BM25 needs a package: pip install bm25s, or give --baseline=none") from error
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # else it logs every index
    return BM25  # type: ignore[no-any-return]


def bm25(collection: Collection, top: int) -> Rankings:
    """Return the ``top`` documents of each query by BM25 (Lucene's variant), with their scores."""
    searcher = check_bm25()(k1=K1, b=B, method="lucene")
    searcher.index([words(text) for text in collection.documents.values()], show_progress=False)
    asked, count = [words(text) for text in collection.queries.values()], min(top + 1, len(collection.documents))
    places, scores = searcher.retrieve(asked, k=count, show_progress=False)
    return ranked(collection, places, scores, top)


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
