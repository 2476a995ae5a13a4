"""Searches with sentence vectors: encodes every text once, and finds the nearest documents of each query by cosine."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.examples.collection import Collection
from bert_jax.interchange.workdir import TrainedModel, load_trained
from bert_jax.models.heads import Pooling, SentenceVector
from bert_jax.models.model import Model, Part
from bert_jax.program import program
from bert_jax.rows.encoded import EncodedRows
from bert_jax.tasks.base import pair_sequences
from bert_jax.tasks.metrics.nearest import Nearest, unit
from bert_jax.tasks.metrics.retrieval import retrieval_metrics
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig

BLOCK_TEXTS = 4096  # number of texts that are encoded, searched and dropped together
SHORTEST = 16
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
    """The flags of ``bert-jax retrieve``. None for ``pooling`` or ``max_length`` means as in training."""

    workdir: str
    step: int | None = None
    top: int = 10
    pooling: Pooling | None = None
    max_length: int | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("top", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}={getattr(self, name)}; at least 1 is needed")


class TextEncoder:
    """Encodes texts as vectors, on all devices.

    Texts of a block are sorted by length, so that there is little padding.
    """

    def __init__(self, trained: TrainedModel, pooling: Pooling, max_length: int, batch_size: int):
        trained.config.check_lengths({"--max_length": max_length})
        self._tokenizer, self._max_length = trained.tokenizer, max_length
        self._mesh = meshes.make_mesh(MeshConfig())
        shards = self._mesh.shape["data"]
        self._rows = -(-batch_size // shards) * shards
        model = Model(trained.config, (Part.of("sentence_vector", SentenceVector, pooling=pooling),))
        with meshes.activations(self._mesh):
            params = {"encoder": trained.params["encoder"]}
            self._params = jax.device_put(params, meshes.replicated(self._mesh))

        def encode(params: Any, batch: Any) -> jax.Array:
            outputs: Any = model.apply({"params": params}, batch)
            return outputs["embeddings"]  # type: ignore[no-any-return]

        self._encode = jax.jit(encode)

    def __call__(self, texts: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """Return vectors [N, D] float32, in the order of ``texts``."""
        return np.concatenate([block for _, block in self.blocks(texts, progress)])

    def blocks(self, texts: Sequence[str], progress: Progress | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number of the first text, vectors) for each block of ``BLOCK_TEXTS`` texts."""
        for start in range(0, len(texts), BLOCK_TEXTS):

            def encoded(done: int, before: int = start) -> None:
                if progress:
                    progress(before + done, len(texts))

            yield start, self._block(texts[start : start + BLOCK_TEXTS], encoded)

    def _block(self, texts: Sequence[str], encoded: Callable[[int], None]) -> np.ndarray:
        rows = EncodedRows.of(pair_sequences(self._tokenizer, texts, [None] * len(texts), self._max_length), {})
        order = np.argsort(rows.lengths, kind="stable")
        vectors: list[np.ndarray] = []
        with meshes.activations(self._mesh):
            for start in range(0, len(order), self._rows):
                # The last batch is filled up with copies of its last text.
                chosen = order[np.minimum(np.arange(start, start + self._rows), len(order) - 1)]
                batch = rows.take(chosen, padded(int(rows.lengths[chosen].max()), self._max_length))
                found = self._encode(self._params, meshes.to_devices(batch, self._mesh))
                vectors.append(np.asarray(found)[: len(order) - start])
                encoded(min(start + self._rows, len(order)))
        placed = np.empty((len(texts), vectors[0].shape[-1]), np.float32)
        placed[order] = np.concatenate(vectors)
        return placed


def padded(length: int, max_length: int) -> int:
    """Return the length to pad to: the smallest allowed length that is at least ``length``, up to ``max_length``.

    Allowed lengths are powers of two from ``SHORTEST`` up, and 1.5 times those, so that only a few shapes are compiled.
    """
    bound = SHORTEST
    while bound < length:
        bound = bound * 3 // 2 if bound & (bound - 1) == 0 else bound // 3 * 4
    return min(bound, max_length)


@dataclasses.dataclass(frozen=True)
class RetrievalResult:
    """The result of a search. ``metrics`` are by searcher ("model", "bm25"), and empty if relevances are not known."""

    rankings: Rankings
    metrics: dict[str, dict[str, float]]
    step: int
    pooling: str
    max_length: int
    note: str  # a line for the user about cosines that lie close together, or ""


def retrieve(
    collection: Collection,
    request: RetrievalRequest,
    baseline: Literal["bm25", "none"] = "bm25",
    progress: Progress | None = None,
) -> RetrievalResult:
    """Search ``collection`` with the model of a run, and with BM25 too if ``collection`` has relevances.

    The model may be pretrained or fine-tuned. A document with the id of the query is never an answer to it, as in BEIR,
    unless the collection says that ids are not shared.

    Args:
      progress: is called after each batch, first of queries, then of documents.

    Raises:
      UserError: there is no model, ``max_length`` exceeds the model's positions, or the baseline's package is missing.
    """
    scored = bool(collection.relevances)
    if baseline == "bm25" and scored:
        check_bm25()
    trained = load_trained(request.workdir, request.step)
    task = trained.facts.get("task") or {}
    tuned = task.get("name") == "sentence_embeddings"
    trained_pooling: Pooling = task["pooling"] if tuned else "mean"
    pooling: Pooling = request.pooling or trained_pooling
    max_length = request.max_length or trained.facts.get("max_length") or trained.config.max_length
    encoder = TextEncoder(trained, pooling, max_length, request.batch_size)

    names, texts = list(collection.documents), list(collection.documents.values())
    queries = encoder(list(collection.queries.values()), progress)
    nearest, note = Nearest(queries, request.top + 1), ""
    for start, block in encoder.blocks(texts, progress):
        nearest.add(block)
        if not (start or tuned):
            note = crowded(float(np.median(unit(queries[:BLOCK_TEXTS]) @ unit(block).T)), request.workdir)
    searched = zip(collection.queries, nearest.places, nearest.scores, strict=True)
    own = collection.shared_ids
    rankings = {
        query: best(query if own else None, names, places, scores, request.top) for query, places, scores in searched
    }
    metrics = {}
    if scored:
        cutoffs = sorted({min(10, request.top), request.top})
        metrics["model"] = retrieval_metrics(collection.relevances, rankings, cutoffs)
        if baseline == "bm25":
            metrics["bm25"] = retrieval_metrics(collection.relevances, bm25(collection, request.top), cutoffs)
    return RetrievalResult(rankings, metrics, trained.step, pooling, max_length, note)


def crowded(median: float, workdir: str) -> str:
    """Return a line about the cosines of an encoder that was not trained for them; "" if their median is below 0.5."""
    if median < 0.5:
        return ""
    return (
        f"untuned encoder: the cosine of any two texts is high (median {median:.2f}), so only the order counts; "
        f"{program()} finetune --config=embeddings --init={workdir} tunes it on pairs of texts that belong together"
    )


def best(query: str | None, names: Sequence[str], places: np.ndarray, scores: np.ndarray, top: int) -> dict[str, float]:
    """Return document -> score for the ``top`` documents, the best first, without a document named like the query."""
    listed = zip(places.tolist(), scores.tolist(), strict=True)
    return dict([(names[place], score) for place, score in listed if names[place] != query][:top])


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
    names = list(collection.documents)
    searcher.index([words(text) for text in collection.documents.values()], show_progress=False)
    count = min(top + 1, len(names))
    asked = [words(text) for text in collection.queries.values()]
    places, scores = searcher.retrieve(asked, k=count, show_progress=False)
    searched = zip(collection.queries, places, scores, strict=True)
    own = collection.shared_ids
    return {query: best(query if own else None, names, found, score, top) for query, found, score in searched}


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
