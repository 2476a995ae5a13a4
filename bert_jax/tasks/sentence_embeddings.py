"""Trains sentence vectors: texts with the same meaning get close vectors; the rest of the batch serves as negatives.

The loss is the multiple negatives ranking loss (Henderson et al. 2017, section 4), as sentence-transformers defines it.
Without pairs, the positive of a text is the text itself under another dropout mask (SimCSE, Gao et al. 2021).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.examples.columns import Roles
from bert_jax.losses.cross_entropy import cross_entropy
from bert_jax.models.heads import DEFAULT_POOLING, Pooling, SentenceVector
from bert_jax.models.masks import NEVER
from bert_jax.models.model import Part
from bert_jax.records import Batch, Example, Sum
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.task import Term
from bert_jax.tasks.base import ExampleTask, Setting
from bert_jax.tasks.findings import Judge, PredictionRecord, clip
from bert_jax.tasks.metrics import standard_errors
from bert_jax.tasks.metrics.regression import TITLES, regression_metrics
from bert_jax.tasks.metrics.retrieval import Nearest, Rankings, Relevances, query_scores, retrieval_metrics, unit

_TOP = 10


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of ``config.task``, besides its name."""

    # how the vectors of tokens become one; if None, as the model of --init makes them one, or the mean
    pooling: Pooling | None = None
    temperature: float = 0.05  # the loss divides cosines by this
    positives: Literal["given", "dropout"] = "given"  # "dropout": the text itself, even if there are pairs
    max_negatives: int | None = None  # use at most this many negatives of an example, the first; if None, use all
    min_similarity: float = 0.0  # a pair with a lower ``similarity`` is no positive

    def __post_init__(self) -> None:
        check_fields(self, "config.task", "0.001 to 1,000 is allowed", "temperature", sound=lambda v: 1e-3 <= v <= 1e3)
        allowed = "at least 0 is needed, or None"
        check_fields(self, "config.task", allowed, "max_negatives", sound=lambda value: value is None or value >= 0)


def _weigh(record: PredictionRecord) -> tuple[float, float]:
    return 1.0, -record["prediction"]


def _show(example: Example, record: PredictionRecord) -> dict[str, Any]:
    shown = {"text": clip(example["text"]), "pair": clip(example["positive"])}
    return {"id": record["id"], **shown, "prediction": record["prediction"]}


class Task(ExampleTask):
    """The sentence-embedding task. A row has C texts: a text, its positive, and its negatives.

    The model has to find the positive of each text, by cosine, among the positives and negatives of all rows of the
    global batch. Candidates that equal the text or its positive are left out. Therefore a paragraph that is the
    positive of two questions does not count as a negative of either. Without such repeats, the loss is the same as in
    sentence-transformers.
    """

    roles = Roles(("text",), ("positive", "negatives", "similarity"))
    answer, main_metric = "positive", f"ndcg@{_TOP}"
    exported_as = ("Model", None)
    titles: ClassVar[Mapping[str, str]] = {"spearmanr": TITLES["spearmanr"]}
    judge = Judge("pairs", _weigh, _show, lambda record: isinstance(record["prediction"], float), by_degree=True)
    gathered_outputs = ("embeddings",)
    whole_batches = True

    def __init__(self, config: Config, setting: Setting):
        if setting.bilstm_layers:
            raise UserError("config.bilstm_layers is for tasks with a head; set it to 0 for sentence_embeddings")
        splits = {
            name: _to_train_on(config, part, name) if name.startswith("train") else part
            for name, part in setting.splits.items()
        }
        for name, part in splits.items():
            if name.startswith("dev") and not any(_is_positive(config, example) for example in part):
                raise UserError(
                    f"{name} has no example with a positive, so no model can be scored on it; name its column in "
                    "config.data.columns.positive, or lower config.task.min_similarity"
                )
        most = max((len(_negatives_of(config, example)) for part in splits.values() for example in part), default=0)
        self.num_choices = 2 + most
        config = dataclasses.replace(config, pooling=config.pooling or DEFAULT_POOLING)
        super().__init__(config, dataclasses.replace(setting, splits=splits))

    def encode(self, split: str, examples: Sequence[Example]) -> EncodedRows:
        del split
        assert self.num_choices
        texts: list[str] = []
        weights = np.zeros((len(examples), self.num_choices), np.float32)
        for row, example in enumerate(examples):
            negatives = _negatives_of(self.config, example)
            given = [example["text"], example.get("positive") or "", *negatives]
            texts += given + [""] * (self.num_choices - len(given))
            weights[row, : len(given)] = [1, _is_positive(self.config, example), *[1] * len(negatives)]
        number: dict[str, int] = {}
        text_ids = np.array([number.setdefault(text, len(number)) for text in texts], np.int32).reshape(weights.shape)
        sequences = self.pair_sequences(texts, [None] * len(texts))
        return self.make_rows(sequences, {"choice_weights": weights, "text_ids": text_ids})

    def head(self, dropout_rate: float) -> tuple[Part, ...]:
        del dropout_rate
        return (Part.of("sentence_vector", SentenceVector, pooling=self.config.pooling),)

    def terms(self, config: Config) -> dict[str, Term]:
        measures = {"accuracy": lambda outputs, batch: self._rank(outputs, batch)[1]}
        return {"": Term(lambda outputs, batch: self._rank(outputs, batch)[0], measures=measures)}

    def _rank(self, outputs: Mapping[str, jax.Array], batch: Batch) -> tuple[Sum, Sum]:
        cosines, allowed = candidates(outputs["embeddings"], batch["text_ids"], batch["choice_weights"])
        logits = jnp.where(allowed, cosines / self.config.temperature, NEVER)  # [B, C - 1, B]
        num_rows = logits.shape[0]
        # On the flattened axis, candidate b is the positive of row b.
        flat = logits.reshape(num_rows, -1)
        return cross_entropy(flat, jnp.arange(num_rows), batch["choice_weights"][:, 1])

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return ndcg@10, recall@10 and mrr@10 of finding each text's positives among all candidates of the split.

        If the pairs have similarities, also return spearmanr of the cosines and the similarities.
        """
        embeddings, arrays = outputs["embeddings"].astype(np.float64), self.rows[part].arrays
        metrics = retrieval_scores(embeddings, arrays["text_ids"], arrays["choice_weights"])
        similarities, cosines = self._similarities(part, embeddings)
        if len(similarities):
            metrics |= regression_metrics(("spearmanr",), similarities.tolist(), cosines.tolist())
        return metrics

    def errors(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the standard errors over queries, and the jackknife error of spearmanr over pairs."""
        embeddings, arrays = outputs["embeddings"].astype(np.float64), self.rows[part].arrays
        found = query_scores(*_rankings(embeddings, arrays["text_ids"], arrays["choice_weights"]), (_TOP,))
        errors = {name: standard_errors.of_mean(of) for name, of in found.items() if of}
        similarities, cosines = self._similarities(part, embeddings)
        if len(similarities):

            def score(kept: np.ndarray) -> float:
                return regression_metrics(("spearmanr",), similarities[kept], cosines[kept])["spearmanr"]

            errors["spearmanr"] = standard_errors.jackknife(score, len(similarities))
        return errors

    def _similarities(self, part: str, embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the similarities of the pairs that have one, and their cosines, [pairs] each."""
        pairs = [(row, _similarity_of(e)) for row, e in enumerate(self.setting.splits[part]) if e.get("positive")]
        known = {row: similarity for row, similarity in pairs if similarity is not None}
        cosines = _cosines(embeddings[list(known)])[:, 0] if known else np.zeros(0)
        return np.array([*known.values()], np.float64), cosines

    def predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Return one record per example: the cosine of its pair or, if a text has no pair, the vector of the text."""
        embeddings = outputs["embeddings"].astype(np.float64)
        cosines = _cosines(embeddings)
        records = []
        for row, example in enumerate(self.setting.splits[split]):
            negatives = _negatives_of(self.config, example)
            record: dict[str, Any] = {"id": example["id"]}
            if not example.get("positive"):
                record["prediction"] = [round(x, 6) for x in embeddings[row, 0].tolist()]
            else:
                record["prediction"] = round(float(cosines[row, 0]), 6)
            if negatives:
                record["negatives"] = [round(x, 6) for x in cosines[row, 1 : 1 + len(negatives)].tolist()]
            records.append(record)
        return records


def _to_train_on(config: Config, examples: Sequence[Example], split: str) -> tuple[Example, ...]:
    """Return the examples to train on, with the positives that ``config.positives`` asks for.

    Raises:
      UserError: an example has no positive, or no pair is similar enough.
    """
    if config.positives == "dropout":
        texts = dict.fromkeys(text for e in examples for text in (e["text"], e.get("positive")) if text)
        return tuple({"id": f"{split}-{i}", "text": text, "positive": text} for i, text in enumerate(texts))
    without = [example["id"] for example in examples if not example.get("positive")]
    if without:
        raise UserError(
            f"{len(without):,} of {len(examples):,} examples of {split} have no positive, such as {without[0]}; name "
            "its column in config.data.columns.positive, or set config.task.positives to 'dropout'"
        )
    kept = tuple(example for example in examples if _is_positive(config, example))
    if not kept:
        raise UserError(f"no example of {split} has a similarity of config.task.min_similarity; lower it")
    return kept


def _is_positive(config: Config, example: Example) -> bool:
    """Return whether an example has a positive whose similarity is high enough or unknown."""
    similarity = _similarity_of(example)
    return bool(example.get("positive")) and (similarity is None or similarity >= config.min_similarity)


def _negatives_of(config: Config, example: Example) -> list[str]:
    return list(example.get("negatives") or ())[: config.max_negatives]


def _similarity_of(example: Example) -> float | None:
    """Return the similarity of an example, or None if it has none. Raises ``UserError`` if it is not a number."""
    given = example.get("similarity")
    try:
        return None if given is None else float(given)
    except (TypeError, ValueError):
        raise UserError(f"{example['id']} has the similarity {given!r}; a number is needed") from None


def candidates(embeddings: jax.Array, text_ids: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cosines of every text with every candidate: the positives and negatives of all rows.

    Args:
      embeddings: [B, C, D].
      text_ids: [B, C], equal for equal texts.
      weights: [B, C], 0 where there is no text.

    Returns:
      cosines [B, C - 1, B], and whether each cosine counts [B, C - 1, B]. Entry [b, c, n] compares the text of row b
      with candidate c of row n; candidate 0 is the positive. A row's own positive always counts.
    """
    lengths = jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(embeddings), axis=-1, keepdims=True), 1e-24))
    unit = embeddings / lengths
    cosines = jnp.einsum("bd,ncd->bcn", unit[:, 0], unit[:, 1:])
    num_rows, num_choices = text_ids.shape
    ids, there = text_ids[:, 1:].T[None], weights[:, 1:].T[None] > 0  # [1, C - 1, B]
    repeated = (ids == text_ids[:, 0][:, None, None]) | (ids == text_ids[:, 1][:, None, None])
    first = jnp.arange(num_choices - 1)[None, :, None] == 0
    own = (jnp.arange(num_rows)[:, None, None] == jnp.arange(num_rows)[None, None, :]) & first
    return cosines, (there & ~repeated) | own


def retrieval_scores(embeddings: np.ndarray, text_ids: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Return retrieval metrics: each text (choice 0) has to find its positives among all distinct candidates.

    The candidates are all other choices of all rows; shapes are as for ``candidates``. A text is not its own candidate
    unless it is its own positive.
    """
    relevances, scores = _rankings(embeddings, text_ids, weights)
    return retrieval_metrics(relevances, scores, (_TOP,)) if relevances else {}


def _rankings(embeddings: np.ndarray, text_ids: np.ndarray, weights: np.ndarray) -> tuple[Relevances, Rankings]:
    """Return the positives of each query, and the scores of the candidates nearest to it."""
    relevant: dict[int, dict[str, int]] = {}
    query_rows: dict[int, int] = {}
    for row in np.flatnonzero(weights[:, 1] > 0):
        query_rows.setdefault(int(text_ids[row, 0]), int(row))
        relevant.setdefault(int(text_ids[row, 0]), {})[str(text_ids[row, 1])] = 1
    if not relevant:
        return {}, {}
    rows, choices = np.nonzero(weights[:, 1:] > 0)
    names, first = np.unique(text_ids[:, 1:][rows, choices], return_index=True)
    found = Nearest(embeddings[list(query_rows.values()), 0], _TOP + 1)
    found.add(embeddings[rows[first], choices[first] + 1])
    scores: dict[str, Mapping[str, float]] = {}
    for query, near, places in zip(query_rows, found.scores, found.places, strict=True):
        listed = zip(names[places].tolist(), near.tolist(), strict=True)
        scores[str(query)] = {str(n): s for n, s in listed if n != query or str(n) in relevant[query]}
    return {str(query): grades for query, grades in relevant.items()}, scores


def _cosines(embeddings: np.ndarray) -> np.ndarray:
    """Return, for vectors [N, C, D], the cosines [N, C - 1] of each row's first vector with its other vectors."""
    vectors = unit(embeddings)
    return np.einsum("nd,ncd->nc", vectors[:, 0], vectors[:, 1:])
