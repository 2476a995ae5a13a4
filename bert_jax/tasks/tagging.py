"""Predicts a tag for every word of a sentence (Devlin et al. 2019, section 5.3 and figure 4 d).

The tag of a word is predicted at the word's first piece; other pieces and special tokens are ignored. The classifier is
linear, without a CRF. A word that the tokenizer turns into no piece becomes ``[UNK]``, so that every word has a tag.
Every word, also the first, is encoded with the space before it that running text has, as transformers does for words
(``is_split_into_words`` with ``add_prefix_space=True``).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import configuration
from bert_jax.examples.columns import Roles
from bert_jax.examples.labels import label_names
from bert_jax.losses.cross_entropy import prediction
from bert_jax.models.heads import Classifier
from bert_jax.models.model import Part, token_head
from bert_jax.records import Batch, Example
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.task import Term
from bert_jax.tasks.base import ExampleTask, ProblemType, with_error
from bert_jax.tasks.findings import Judge, PredictionRecord
from bert_jax.tasks.metrics import standard_errors
from bert_jax.tasks.metrics.classification import TITLES
from bert_jax.tasks.metrics.counting import precision_recall_f1, ratio
from bert_jax.tasks.metrics.entities import conll_entities, entity_counts, entity_metrics
from bert_jax.text.encoded import typed

_OUTSIDE = "O"
_MAX_WORDS = 120  # of a sentence that the report shows
_FEATURES = ("input_ids", "labels", "label_weights", "word_ids")


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of ``config.task``, besides its name.

    Attributes:
      metrics: "entities" scores whole entities and needs tags such as B-PER; "accuracy" works with any tags.
      mode, scheme: how entities are read from tags, see ``tasks.metrics.entities``.
      labels: all tags. If (), the tags that occur in the training examples are used.
      overflow: what happens to a sentence longer than a row. "windows": it becomes several rows; "cut": the rest is
        dropped, and the dropped words count as predicted O.
      overlap: how many pieces neighbouring windows share. Each word is scored only in the window that shows more of its
        context.
      dropout_rate: the dropout rate on the last layer. If None, the rate of an imported model's classifier, else the
        model's rate.
    """

    metrics: Literal["entities", "accuracy"] = "entities"
    mode: Literal["conll", "strict"] = "conll"
    scheme: str | None = None  # of the entities, for mode strict
    labels: tuple[str, ...] = ()  # all tags; if empty, the tags of the training examples
    overflow: Literal["windows", "cut"] = "windows"
    overlap: int = 32
    dropout_rate: float | None = None

    def __post_init__(self) -> None:
        configuration.check_fields(self, "config.task", "at least 0 is needed", "overlap", sound=lambda v: v >= 0)


def _weigh(record: PredictionRecord) -> tuple[float, float]:
    rows = zip(record["label"], record["prediction"], record["probabilities"], strict=True)
    wrong = [share for truth, found, share in rows if truth != found]
    return float(bool(wrong)), max(wrong or record["probabilities"], default=0.0)


def _show(example: Example, record: PredictionRecord) -> dict[str, Any]:
    del example
    cut = {name: list(record[name][:_MAX_WORDS]) for name in ("words", "label", "prediction")}
    return {"id": record["id"], "share": _weigh(record)[1], **cut}


def _as_entities(config: Config) -> dict[str, Any] | None:
    return {"mode": config.mode, "scheme": config.scheme} if config.metrics == "entities" else None


class Task(ExampleTask):
    """The token-tagging task: predicts one tag per word. Its loss is the mean cross-entropy over words."""

    roles = Roles(("words",), ("tags",))
    answer = "tags"
    exported_as: tuple[str, ProblemType | None] | None = ("ForTokenClassification", None)
    titles: ClassVar[Mapping[str, str]] = {name: TITLES[name] for name in ("f1", "precision", "recall", "accuracy")}
    judge = Judge("tags", _weigh, _show, entities=_as_entities)
    gathered_outputs = ("predicted", "confidence")
    packs = True

    @classmethod
    def metric(cls, config: Config) -> str:
        return "f1" if config.metrics == "entities" else "accuracy"

    @classmethod
    def labels(cls, config: Config, examples: Sequence[Example]) -> tuple[str, ...]:
        """Return all tags, ``O`` first. For entity metrics ``O`` is always included."""
        names = set(config.labels or label_names(examples, "tags"))
        if config.metrics == "entities":
            names.add(_OUTSIDE)
            entity_metrics([[*names]], [[*names]], config.mode, config.scheme)  # raises if a tag is malformed
        return tuple(sorted(names, key=lambda name: (name != _OUTSIDE, name)))

    def answer_names(self, example: Example) -> Sequence[str]:
        return example.get("tags") or ()

    def encode(self, split: str, examples: Sequence[Example]) -> EncodedRows:
        """Return a row for each window.

        ``word_ids`` [L] is w + 1 at the first piece of each word w that is scored in the row, and 0 elsewhere.
        """
        del split
        tokenizer = self.setting.tokenizer
        before, after = tokenizer.around
        capacity = self.setting.max_length - len(before) - len(after)
        number = {name: i for i, name in enumerate(self.setting.labels)}
        unknown = np.array([max(tokenizer.unk_id, 0)], np.int32)  # of a word without a piece
        texts = (tokenizer.joiner + word for example in examples for word in example["words"])
        flat = iter(tokenizer.encode_batch(list(texts)))
        sequences: dict[str, list[np.ndarray]] = {name: [] for name in _FEATURES}
        rows_of, long, cut = [], 0, 0
        for i, example in enumerate(examples):
            pieces = [ids if len(ids) else unknown for ids in (next(flat) for _ in example["words"])]
            tags = example.get("tags")
            per_word = {"labels": [number[tag] for tag in tags] if tags else [0] * len(pieces)}
            per_word |= {"label_weights": [int(bool(tags))] * len(pieces), "word_ids": [*range(1, len(pieces) + 1)]}
            ids, firsts = np.concatenate(pieces), np.cumsum([0, *map(len, pieces[:-1])])
            long += len(ids) > capacity
            places = windows(len(ids), firsts, capacity, self.config.overlap)
            if self.config.overflow == "cut":
                places = [(0, np.flatnonzero(firsts < capacity))]
                cut += int((firsts >= capacity).sum())
            for begin, scored in places:
                part = ids[begin : begin + capacity]
                sequences["input_ids"].append(np.concatenate([before, part, after]).astype(np.int32))
                for name, values in per_word.items():
                    row = np.zeros(len(before) + len(part) + len(after), np.int32)
                    row[firsts[scored] - begin + len(before)] = np.asarray(values)[scored]
                    sequences[name].append(row)
                rows_of.append(i)
        if long:
            how = "read in windows that overlap"
            if self.config.overflow == "cut":
                how = f"cut: {cut:,} words are not trained on and count as {_OUTSIDE}"
            most = self.setting.max_length
            self.notes.append(f"{long:,} of {len(examples):,} sentences are longer than {most} tokens, {how}")
        sequences["token_type_ids"] = [typed(np.zeros_like(ids), tokenizer.cls_last) for ids in sequences["input_ids"]]
        return self.make_rows(sequences, {"example_ids": np.array(rows_of, np.int32)})

    def head(self, dropout_rate: float) -> tuple[Part, ...]:
        number = len(self.setting.labels)
        options = {"num_outputs": number, "dropout_rate": dropout_rate, "vectors": "sequence"}
        return (*token_head(self.setting.model), Part.of("classifier", Classifier, **options))

    def outputs(self, variables: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return the model's outputs, and at every position [B, L] the most likely label and its probability."""
        outputs = super().outputs(variables, batch)
        shares = jax.nn.softmax(outputs["logits"], axis=-1)
        chosen = jnp.argmax(outputs["logits"], axis=-1).astype(jnp.int32)
        return outputs | {"predicted": chosen, "confidence": jnp.max(shares, axis=-1)}

    def terms(self, config: Config) -> dict[str, Term]:
        return {"": prediction("logits", "labels", "label_weights")}

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the metrics over all words of the split, including the words that were cut."""
        true, predicted = self._tags(part, outputs)
        if self.config.metrics == "entities":
            figures = entity_metrics(true, predicted, self.config.mode, self.config.scheme)
            ends = ("_support", "_precision", "_recall")  # of each type, report only F1
            return {name: value for name, value in figures.items() if not name.endswith(ends)}
        return {"accuracy": ratio(*_hits(true, predicted).sum(axis=0))}

    def errors(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the standard errors of the scores over all types, by the jackknife over sentences."""
        true, predicted = self._tags(part, outputs)
        words = _hits(true, predicted)
        found = {"accuracy": standard_errors.jackknife(lambda kept: ratio(*words[kept].sum(axis=0)), len(true))}
        if self.config.metrics == "entities":
            counts = entity_counts(true, predicted, self.config.mode, self.config.scheme)
            for name in ("f1", "precision", "recall"):
                scores = functools.partial(_of_counts, counts, name)
                found[name] = standard_errors.jackknife(scores, len(true))
        return found

    def _tags(self, part: str, outputs: dict[str, np.ndarray]) -> tuple[list[list[str]], list[list[str]]]:
        """Return the true and the predicted tags of each sentence whose tags are known."""
        found = zip(self.setting.splits[part], self._words(part, outputs), strict=True)
        pairs = [(list(example["tags"]), tags) for example, (tags, _) in found if example.get("tags")]
        return [tags for tags, _ in pairs], [tags for _, tags in pairs]

    def predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Return one record per example: ``words``, predicted tags (``prediction``) and their probabilities.

        ``label`` has the true tags, if they are known. If an example has its raw ``text`` and the ``starts`` of its
        words, ``entities`` has the text, type, start and end (in characters) of each entity.
        """
        records = []
        for example, (tags, sure) in zip(self.setting.splits[split], self._words(split, outputs), strict=True):
            record = {"id": example["id"], "words": list(example["words"]), "prediction": tags}
            if example.get("tags"):
                record["label"] = list(example["tags"])
            if "starts" in example and self.config.metrics == "entities":
                record["entities"] = _entities(example, tags)
            records.append(record | {"probabilities": sure})
        return records

    def _words(self, split: str, outputs: dict[str, np.ndarray]) -> list[tuple[list[str], list[float]]]:
        """Return (tags, probabilities) of each example's words. A cut word has the tag O and the probability 0."""
        rows, names = self.rows[split], self.setting.labels
        missing = _OUTSIDE if _OUTSIDE in names else names[0]
        found = [([missing] * len(e["words"]), [0.0] * len(e["words"])) for e in self.setting.splits[split]]
        for row, i in enumerate(rows.arrays["example_ids"]):
            word_ids = rows.sequences["word_ids"][rows.offsets[row] : rows.offsets[row + 1]]
            for position in np.flatnonzero(word_ids):
                word = int(word_ids[position]) - 1
                found[i][0][word] = names[int(outputs["predicted"][row, position])]
                found[i][1][word] = round(float(outputs["confidence"][row, position]), 6)
        return found

    def guess(self) -> dict[str, float]:
        """Return the accuracy of giving every evaluated word the most common tag."""
        every = [list(e["tags"]) for part in self.heldout_parts for e in self.setting.splits[part] if e.get("tags")]
        number = collections.Counter(tag for tags in every for tag in tags)
        if not number:
            return {}
        words = _hits(every, [[max(number, key=number.__getitem__)] * len(tags) for tags in every])
        error = standard_errors.jackknife(lambda kept: ratio(*words[kept].sum(axis=0)), len(every))
        return with_error("majority_rate", max(number.values()) / number.total(), error)


def _hits(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the number of right tags and the number of tags of each sentence, [sentences, 2]."""
    pairs = zip(true, predicted, strict=True)
    return np.array([(sum(map(str.__eq__, tags, others)), len(tags)) for tags, others in pairs]).reshape(-1, 2)


def _of_counts(counts: np.ndarray, name: str, kept: np.ndarray) -> float:
    return precision_recall_f1(*counts[kept].sum(axis=0))[name]


def _entities(example: Example, tags: list[str]) -> list[dict[str, Any]]:
    """Return the entities of an example with raw text, as conlleval reads the tags."""
    ends = [start + len(word) for start, word in zip(example["starts"], example["words"], strict=True)]
    found = []
    for entity in conll_entities([tags]):
        start, end = example["starts"][entity.start], ends[entity.end - 1]
        found.append({"text": example["text"][start:end], "type": entity.type, "start": start, "end": end})
    return found


def windows(length: int, firsts: np.ndarray, capacity: int, overlap: int) -> list[tuple[int, np.ndarray]]:
    """Return the windows of at most ``capacity`` pieces into which a sentence of ``length`` pieces is cut.

    Args:
      firsts: [words] the index of each word's first piece.
      overlap: how many pieces neighbouring windows share; at most half of ``capacity`` is used.

    Returns:
      For each window (index of its first piece, indices of the words scored in it). Every word is scored in one window:
      the window in which the smaller of the word's left and right context is largest.
    """
    stride = capacity - min(overlap, capacity // 2)
    begins = [0]
    while begins[-1] + capacity < length:
        begins.append(begins[-1] + stride)
    # A word after the middle of the pieces that two windows share has more context in the later window.
    borders = [(begin + stride + begin + capacity) / 2 for begin in begins[:-1]]
    owner = np.searchsorted(borders, firsts, side="right")
    return [(begin, np.flatnonzero(owner == i)) for i, begin in enumerate(begins)]
