"""Finds the answer to a question as a span of a text (Devlin et al. 2019, sections 4.2 and 4.3): SQuAD v1.1 and v2.0.

Each row holds the question and a window of the context, as in run_squad.py. A predicted answer is cut out of the
context at the character offsets of its tokens, so it is original text and is never rebuilt from pieces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np
from scipy import special

from bert_jax import configuration
from bert_jax.errors import UserError, few
from bert_jax.examples.columns import Roles
from bert_jax.losses.cross_entropy import Accuracy, CrossEntropy
from bert_jax.models.heads import SpanClassifier
from bert_jax.models.model import Part, token_head
from bert_jax.records import Batch, Example, Sum
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.task import Term
from bert_jax.tasks import answers
from bert_jax.tasks.base import ExampleTask, Setting
from bert_jax.tasks.findings import Judge
from bert_jax.tasks.metrics import spans
from bert_jax.tasks.metrics.spans import TITLES, cmrc_metrics, squad_v1_metrics, squad_v2_metrics
from bert_jax.tasks.windows import Answer, Windows, best_spans, cut, merge, read_passage
from bert_jax.text.encoded import typed

_NO_SPAN = 1e4  # null odds if no span was found; larger than any difference of logits


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of ``config.task``, besides its name.

    A row has up to ``config.phases.train.max_length`` tokens (run_squad.py: 384).
    """

    version_2: bool = False  # whether some questions have no answer
    language: Literal["en", "zh"] = "en"  # how answers are scored: "en" as in SQuAD, "zh" as in CMRC 2018
    max_query_length: int = 64  # longer questions are cut to so many tokens
    doc_stride: int = 128  # tokens from one window's start to the next's; at most as many as a window has
    max_answer_length: int = 30  # in tokens
    n_best: int = 20  # how many candidate answers a prediction lists
    null_score_diff_threshold: float = 0.0  # with larger null odds, predict no answer
    bad_answers: Literal["repair", "drop", "error"] = "repair"  # answers that are not at their answer_start

    def __post_init__(self) -> None:
        names = ("max_query_length", "doc_stride", "max_answer_length", "n_best")
        configuration.check_fields(self, "config.task", "at least 1 is needed", *names, sound=lambda v: v >= 1)
        if self.version_2 and self.language == "zh":
            raise UserError(
                "config.task.language is 'zh' and config.task.version_2 true; CMRC 2018 scores no questions without an "
                "answer: take language 'en', or leave version_2 out"
            )


class _Decoded(NamedTuple):
    """The answers that were decoded for one question."""

    answers: list[Answer]  # best first; never includes ""
    null_score: float  # the score of "no answer": the lowest over all windows

    @property
    def null_odds(self) -> float:
        """The null score minus the score of the best answer; high if the question probably has no answer."""
        return self.null_score - self.answers[0].score if self.answers else _NO_SPAN


class Task(ExampleTask):
    """The span task. Its loss is the mean of two cross-entropies, for the first and for the last token of the answer.

    Each cross-entropy is a softmax over all positions of the row, including question and padding, as in run_squad.py
    and in transformers. If a window does not hold the answer, both targets are ``[CLS]``.
    """

    roles = Roles(("question", "context"), ("answers", "is_impossible"))
    answer, main_metric = "answers", "f1"
    titles: ClassVar[Mapping[str, str]] = TITLES
    exported_as = ("ForQuestionAnswering", None)
    head_dropout = "span_dropout_rate"
    judge = Judge("answers", answers.weigh, answers.show, lambda record: record.get("answers") is not None)
    gathered_outputs = ("start_logits", "end_logits")

    def __init__(self, config: Config, setting: Setting):
        setting.tokenizer.need("sep", "a question with its context")
        capacity = setting.max_length - 3 - config.max_query_length
        if capacity < 1:
            raise UserError(
                f"config.phases.train.max_length is {setting.max_length} and config.task.max_query_length "
                f"{config.max_query_length}; at least 4 tokens more are needed for the context"
            )
        if not config.version_2:
            _check_answerable(setting.splits)
        contexts = dict.fromkeys(example["context"] for examples in setting.splits.values() for example in examples)
        self.passages = {text: read_passage(setting.tokenizer, text) for text in contexts}
        use_moved, self.gold, self.notes = config.bad_answers == "repair", {}, []
        for name, examples in setting.splits.items():
            self.gold[name] = [answers.find_gold(e, self.passages[e["context"]], use_moved) for e in examples]
            self.notes += answers.describe(name, examples, self.gold[name], config.bad_answers)
        if config.bad_answers == "error" and any("answer_start" in line for line in self.notes):
            raise UserError(f"{'; '.join(self.notes)}; mend them, or set config.task.bad_answers to 'repair' or 'drop'")
        # split -> the number of positions before the window in each of the W rows [W], and the windows
        self.layouts: dict[str, tuple[np.ndarray, Windows]] = {}
        super().__init__(config, setting)

    # ---- Rows ------------------------------------------------------------------------------------------------------

    def encode(self, split: str, examples: Sequence[Example]) -> EncodedRows:
        gold, training = self.gold[split], split.startswith("train")
        config, tokenizer = self.config, self.setting.tokenizer
        questions = tokenizer.encode_batch([example["question"] for example in examples])
        before, after = (np.array(ids, np.int32) for ids in tokenizer.around)
        between, types = np.array(tokenizer.between, np.int32), np.array([0, 1], np.int32)
        sequences: dict[str, list[np.ndarray]] = {"input_ids": [], "token_type_ids": []}
        columns: list[np.ndarray] = []  # one array [W, 11] per question
        for number, (example, one) in enumerate(zip(examples, gold, strict=True)):
            if training and one.unusable:
                continue
            question = questions[number][: config.max_query_length]
            passage = self.passages[example["context"]]
            prefix = len(before) + len(question) + len(between)
            windows = cut(len(passage.ids), self.setting.max_length - prefix - len(after), config.doc_stride)
            for start, size in zip(windows.starts.tolist(), windows.sizes.tolist(), strict=True):
                window = passage.ids[start : start + size]
                sequences["input_ids"].append(np.concatenate([before, question, between, window, after]))
                of_row = np.repeat(types, [prefix, size + len(after)])
                sequences["token_type_ids"].append(typed(of_row, tokenizer.cls_last))
            known = example.get("answers") is not None and not one.unusable
            held, *targets = _targets(one.tokens, windows, prefix, self._nulls(prefix, windows))
            every = np.broadcast_arrays(number, known, held, *targets, prefix, *windows)
            columns.append(np.stack(every, axis=1).astype(np.int32))
        if training and not columns:
            raise UserError(f"no answer of {split} is in its context; check config.data.columns")
        numbers, known, held, first, last, prefixes, *windows_of_rows = np.concatenate(columns).T
        self.layouts[split] = prefixes, Windows(*windows_of_rows)
        if known.any():
            self.notes.append(self._window_note(numbers, held > 0, gold))
        arrays = {"example_ids": numbers, "start_positions": first, "end_positions": last}
        return self.make_rows(sequences, {**arrays, "label_weights": known.astype(np.float32)})

    def _nulls(self, prefixes: int | np.ndarray, windows: Windows) -> np.ndarray:
        """Return the position of [CLS] in each of the W rows [W], which says that there is no answer."""
        return prefixes + windows.sizes + 1 if self.setting.tokenizer.cls_last else np.zeros_like(windows.sizes)

    def _window_note(self, numbers: np.ndarray, held: np.ndarray, gold: Sequence[answers.Gold]) -> str:
        """Return a line that counts questions, windows, and answers that no window holds whole.

        ``numbers`` [W]: the question of each window; ``held`` [W]: whether the window holds its answer.
        """
        most, stride = self.setting.max_length, self.config.doc_stride
        counts = np.bincount(numbers, minlength=len(gold))
        line = (
            f"{np.count_nonzero(counts):,} questions, {len(numbers):,} windows of at most {most} tokens, "
            f"{np.count_nonzero(held):,} with an answer"
        )
        answered = {number for number, one in enumerate(gold) if one.tokens is not None}
        if lost := len(answered - set(numbers[held].tolist())):
            line += f"; for {lost:,} no window holds the whole answer: lower config.task.doc_stride ({stride})"
            line += f" or raise config.phases.train.max_length ({most})" if most < self.setting.model.max_length else ""
        return line

    # ---- Head and loss ---------------------------------------------------------------------------------------------

    def head(self, dropout_rate: float) -> tuple[Part, ...]:
        return (*token_head(self.setting.model), Part.of("qa_outputs", SpanClassifier, dropout_rate=dropout_rate))

    def terms(self, config: Config) -> dict[str, Term]:
        start, end = (Accuracy(*names) for names in _ENDS)
        return {"": Term(_SpanLoss(), measures={"start_accuracy": start, "end_accuracy": end})}

    # ---- Answers ---------------------------------------------------------------------------------------------------

    def decode(self, split: str, outputs: Mapping[str, np.ndarray]) -> list[_Decoded]:
        """Return the decoded answers of each question, in the order of the split."""
        (prefixes, windows), config = self.layouts[split], self.config
        starts, ends = outputs["start_logits"], outputs["end_logits"]
        rows, nulls = np.arange(len(starts)), self._nulls(prefixes, windows)
        null_scores = starts[rows, nulls].astype(np.float64) + ends[rows, nulls]
        layouts = np.stack([prefixes, *windows], axis=1).tolist()
        examples = self.setting.splits[split]
        edges = np.searchsorted(self.rows[split].arrays["example_ids"], np.arange(len(examples) + 1))
        result = []
        for example, i, j in zip(examples, edges[:-1], edges[1:], strict=True):
            spans = []
            for row, (prefix, start, size, best_start, best_end) in enumerate(layouts[i:j], i):
                first, last_first = (prefix + token - start for token in (best_start, best_end))
                of_row = starts[row, first:last_first], ends[row, first : prefix + size]
                best = best_spans(*of_row, config.max_answer_length, config.n_best)
                spans += [(score, best_start + begin, best_start + end) for score, begin, end in best]
            found = merge(example["context"], self.passages[example["context"]], spans, config.n_best)
            result.append(_Decoded(found, float(null_scores[i:j].min(initial=np.inf))))
        return result

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        right, texts, odds = self._answers(part, outputs)
        if not self.config.version_2:
            return cmrc_metrics(right, texts) if self.config.language == "zh" else squad_v1_metrics(right, texts)
        return squad_v2_metrics(right, texts, odds, self.config.null_score_diff_threshold)

    def errors(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the standard errors of the means over questions, in percent."""
        right, texts, odds = self._answers(part, outputs)
        if self.config.version_2:
            scores = spans.squad_v2_scores(right, texts, odds, self.config.null_score_diff_threshold)
            return spans.standard_errors(scores, "exact")
        of = spans.cmrc_scores if self.config.language == "zh" else spans.squad_v1_scores
        return spans.standard_errors(of(right, texts))

    def _answers(
        self, part: str, outputs: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, list[str]], dict[str, str], dict[str, float]]:
        """Return the right answers, the best predicted text and the score of no answer, by the id of the question."""
        examples = self.setting.splits[part]
        found = {e["id"]: one for e, one in zip(examples, self.decode(part, outputs), strict=True)}
        right = {example["id"]: answers.texts(example) for example in examples}
        texts = {name: one.answers[0].text if one.answers else "" for name, one in found.items()}
        return right, texts, {name: one.null_odds for name, one in found.items()}

    def predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Return a record for each question.

        Keys of a record: ``id``; ``prediction``, the predicted answer, "" for no answer; its ``score``, ``start`` and
        ``end``, in characters of the context, None for no answer; ``n_best``, the best answers with their probabilities
        relative to each other; ``null_odds`` in version 2; ``answers``, the right answers, if they are known.
        """
        records = []
        for example, one in zip(self.setting.splits[split], self.decode(split, outputs), strict=True):
            ranked = _ranked(one, self.config)
            none = self.config.version_2 and one.null_odds > self.config.null_score_diff_threshold
            chosen = next((entry for entry in ranked if (entry["text"] == "") == none), {"text": ""})
            record = {"id": example["id"], "prediction": chosen["text"]}
            record |= {name: chosen.get(name) for name in ("score", "start", "end")}
            if self.config.version_2:
                record["null_odds"] = round(one.null_odds, 6)
            if example.get("answers") is not None:
                record["answers"] = answers.texts(example)
            records.append(record | {"n_best": ranked})
        return records


def _check_answerable(splits: Mapping[str, Sequence[Example]]) -> None:
    without = {name: [e["id"] for e in examples if e.get("answers") == []] for name, examples in splits.items()}
    counts = [f"{name}: {len(ids):,} ({few(ids)})" for name, ids in without.items() if ids]
    if counts:
        raise UserError(
            f"questions without an answer in {'; '.join(counts)}; set config.task.version_2=True, or leave them out"
        )


def _targets(
    tokens: tuple[int, int] | None, windows: Windows, prefix: int, nulls: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which windows [W] hold the whole answer, and the positions of its first and last token, else ``nulls``."""
    if tokens is None:
        return np.zeros_like(windows.starts), nulls, nulls
    inside = (tokens[0] >= windows.starts) & (tokens[1] < windows.starts + windows.sizes)
    first, last = (np.where(inside, token - windows.starts + prefix, nulls) for token in tokens)
    return inside, first, last


def _ranked(found: _Decoded, config: Config) -> list[dict[str, Any]]:
    """Return the answers as plain records, best first. In version 2 the list includes "" (no answer)."""
    entries: list[tuple[str, float, int | None, int | None]] = [*found.answers]
    if config.version_2:
        entries.append(("", found.null_score, None, None))
        entries.sort(key=lambda entry: -entry[1])
    parts = special.softmax([entry[1] for entry in entries]).tolist() if entries else []
    return [
        {"text": text, "score": round(score, 6), "probability": round(part, 6), "start": start, "end": end}
        for (text, score, start, end), part in zip(entries, parts, strict=True)
    ]


_ENDS = [(f"{end}_logits", f"{end}_positions", "label_weights") for end in ("start", "end")]


@dataclasses.dataclass(frozen=True)
class _SpanLoss:
    """The mean of the cross-entropies of the first and of the last token of an answer."""

    scores: ClassVar[tuple[str, ...]] = tuple(logits for logits, *_ in _ENDS)

    def __call__(self, outputs: Mapping[str, jax.Array], batch: Batch) -> Sum:
        return _mean(*(CrossEntropy(*names)(outputs, batch) for names in _ENDS))

    def taught(
        self, outputs: Mapping[str, jax.Array], said: Mapping[str, jax.Array], batch: Batch, temperature: float
    ) -> Sum:
        """Return the mean of their divergences from a teacher's distributions."""
        return _mean(*(CrossEntropy(*names).taught(outputs, said, batch, temperature) for names in _ENDS))


def _mean(first: Sum, last: Sum) -> Sum:
    return Sum((first.value + last.value) / 2, first.count)
