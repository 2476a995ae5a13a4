"""Ranks the candidates of a group, of which one is right (MT-DNN, Liu et al. 2019, section 3: QNLI by relevance).

An example is one candidate: a text, such as a question, its pair, such as a sentence that may answer it, and whether
the pair is right. Candidates with the same text are a group, unless the role ``group`` names groups. A row has the C
sequences of a group, ``[CLS] text [SEP] pair [SEP]``, and the same learned vector scores each sequence.

``multiple_choice`` has the same head and loss; its examples are whole groups.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import special

from bert_jax.errors import UserError, few
from bert_jax.examples.columns import Roles
from bert_jax.examples.labels import label_names
from bert_jax.examples.splits import groups_of
from bert_jax.records import Example
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.tasks.base import Setting
from bert_jax.tasks.choices import ChoiceTask
from bert_jax.tasks.findings import Judge, PredictionRecord, clip
from bert_jax.tasks.metrics import standard_errors
from bert_jax.tasks.metrics.counting import ratio


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of ``config.task``, besides its name.

    Attributes:
      positive: the label of the right candidate. If None, the label whose name sorts last.
      bad_groups: what to do about groups that do not have one right candidate and at least one wrong candidate. If
        "skip", they count neither in the loss nor in a score.
      dropout_rate: the dropout rate on the pooled output. If None, the rate of an imported model's classifier, else
        the model's rate.
    """

    positive: str | None = None
    bad_groups: Literal["error", "skip"] = "error"
    dropout_rate: float | None = None


def _share(record: PredictionRecord) -> float:
    """Return the probability of a candidate's predicted label; the record has the probability of the right label."""
    return float(record["probability"] if record["rank"] == 1 else 1 - record["probability"])


def _weigh(record: PredictionRecord) -> tuple[float, float]:
    return float(record["label"] != record["prediction"]), _share(record)


def _show(example: Example, record: PredictionRecord) -> dict[str, Any]:
    shown = {name: clip(example[name]) for name in ("text", "pair")}
    answer = {name: record[name] for name in ("label", "prediction")}
    return {"id": record["id"], **shown, "share": _share(record), **answer}


class Task(ChoiceTask):
    """The ranking task. Its loss is the mean cross-entropy of the softmax over the candidates of a group.

    ``accuracy`` is the share of groups whose right candidate has the highest score; ``mrr`` is the mean of 1 / the rank
    of the right candidate; ``pairwise_accuracy`` is the share of wrong candidates that rank below the right candidate
    of their group. In groups of two candidates, as in QNLI, ``accuracy`` and ``pairwise_accuracy`` equal the accuracy
    over examples, by which QNLI is judged. Of candidates with the same score, the earlier candidate ranks higher.
    """

    roles = Roles(("text", "pair"), ("group", "label"), together=("group", "text"))
    answer, main_metric = "label", "accuracy"
    titles: ClassVar[Mapping[str, str]] = {
        "accuracy": "Accuracy",
        "mrr": "Mean reciprocal rank",
        "pairwise_accuracy": "Accuracy of pairs",
    }
    judge = Judge("classes", _weigh, _show)

    def __init__(self, config: Config, setting: Setting):
        self.groups = {name: groups_of(examples, self.roles.together) for name, examples in setting.splits.items()}
        self.num_choices = max((len(group) for groups in self.groups.values() for group in groups), default=1)
        super().__init__(config, setting)

    @classmethod
    def labels(cls, config: Config, examples: Sequence[Example]) -> tuple[str, ...]:
        """Return the label of wrong candidates, and the label of right candidates."""
        names = label_names(examples, "label")
        if len(names) != 2:
            raise UserError(f"the labels are {few(names)}; a ranking needs two, of right and of wrong candidates")
        positive = names[1] if config.positive is None else config.positive
        if positive not in names:
            raise UserError(f"config.task.positive is {positive!r}; the labels are {', '.join(names)}")
        return (names[1 - names.index(positive)], positive)

    def answer_names(self, example: Example) -> Sequence[str]:
        return () if example.get("label") is None else (str(example["label"]),)

    def encode(self, split: str, examples: Sequence[Example]) -> EncodedRows:
        groups = self.groups[split]
        rights = [[examples[i].get("label") and str(examples[i]["label"]) for i in group] for group in groups]
        self._report(split, groups, rights)
        choices = [[(examples[i]["text"], examples[i]["pair"]) for i in group] for group in groups]
        return self.choice_rows(choices, [_place(labels, self.setting.labels[-1]) for labels in rights])

    def _report(self, split: str, groups: Sequence[Sequence[int]], labels: Sequence[Sequence[str | None]]) -> None:
        """Note how many groups a split has, and which do not count.

        Raises:
          UserError: a group is bad, ``bad_groups`` is "error", and the task trains.
        """
        positive, examples = self.setting.labels[-1], self.setting.splits[split]
        bad = collections.defaultdict(list)
        for group, of_group in zip(groups, labels, strict=True):
            if None not in of_group and _place(of_group, positive) is None:
                right = of_group.count(positive)
                reason = f"with {right} right candidates" if len(group) > 1 or not right else "of one candidate"
                bad[reason].append(examples[group[0]]["id"])
        sizes = [len(group) for group in groups]
        several = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else max(sizes)
        self.notes.append(f"{len(groups):,} group{'s' * (len(groups) != 1)} of {several} candidates")
        if not bad:
            return
        count = sum(map(len, bad.values()))
        listed = "; ".join(f"{len(ids):,} {reason}, as that of {ids[0]}" for reason, ids in sorted(bad.items()))
        line = f"{count:,} of {len(groups):,} groups do not have one right candidate and others: {listed}"
        if self.config.bad_groups == "error" and self.setting.names("train"):
            raise UserError(
                f"{split}: {line}; correct them, name the column that tells groups apart in config.data.columns.group, "
                "or set config.task.bad_groups to 'skip'"
            )
        self.notes.append(f"{line}; they do not count")

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        places, others = self._places(part, outputs)
        return {
            "accuracy": ratio(int(np.sum(places == 0)), len(places)),
            "mrr": ratio(float(np.sum(1 / (places + 1))), len(places)),
            "pairwise_accuracy": ratio(float(np.sum(others - places)), float(np.sum(others))),
        }

    def errors(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the standard errors over groups."""
        places, others = self._places(part, outputs)

        def of_pairs(kept: np.ndarray) -> float:
            return ratio(float(np.sum((others - places)[kept])), float(np.sum(others[kept])))

        return {
            "accuracy": standard_errors.of_share(ratio(int(np.sum(places == 0)), len(places)), len(places)),
            "mrr": standard_errors.of_mean(1 / (places + 1)),
            "pairwise_accuracy": standard_errors.jackknife(of_pairs, len(places)),
        }

    def _places(self, part: str, outputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the rank of the right candidate (from 0) and the number of wrong candidates of each known group."""
        arrays = self.rows[part].arrays
        known = arrays["label_weights"] > 0
        places = np.take_along_axis(self._ranks(part, outputs), arrays["labels"][:, None], axis=1)[known, 0]
        return places, arrays["choice_weights"].sum(axis=1)[known] - 1

    def predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Return one record per example: its predicted label, its rank in its group, from 1, and its probability."""
        shares = special.softmax(self.scores(split, outputs), axis=-1)
        ranks, examples = self._ranks(split, outputs), self.setting.splits[split]
        records: list[dict[str, Any]] = [{} for _ in examples]
        for row, group in enumerate(self.groups[split]):
            for place, i in enumerate(group):
                rank = int(ranks[row, place])
                record = {"id": examples[i]["id"], "prediction": self.setting.labels[rank == 0]}
                if examples[i].get("label") is not None:
                    record["label"] = str(examples[i]["label"])
                records[i] = record | {"rank": rank + 1, "probability": round(float(shares[row, place]), 6)}
        return records

    def _ranks(self, split: str, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the rank of each candidate within its group, from 0, [groups, C]."""
        return np.argsort(np.argsort(-self.scores(split, outputs), axis=1, kind="stable"), axis=1)

    def guess(self) -> dict[str, float]:
        """Return the accuracy of guessing the right candidate of each group at random."""
        arrays = [self.rows[part].arrays for part in self.heldout_parts]
        chances = [1 / one["choice_weights"].sum(axis=1)[one["label_weights"] > 0] for one in arrays]
        return {"chance_rate": float(np.mean(every))} if len(every := np.concatenate(chances)) else {}


def _place(labels: Sequence[str | None], positive: str) -> int | None:
    """Return the index of the right candidate of a group; None unless there are one right and some wrong candidates."""
    return labels.index(positive) if len(labels) > 1 and labels.count(positive) == 1 and None not in labels else None
