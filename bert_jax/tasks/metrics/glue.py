"""GLUE (Wang et al. 2018): the score of each task, and the two kinds of average in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from bert_jax.configuration import choose
from bert_jax.errors import UserError

Results = Mapping[str, Mapping[str, float]]  # task -> its metrics, as fractions


class GlueTask(NamedTuple):
    """The names of the metrics of a GLUE task."""

    metrics: tuple[str, ...]  # the leaderboard shows the mean of these
    paper: str  # the metric that the paper's table shows


TASKS = {
    "cola": GlueTask(("matthews_correlation",), "matthews_correlation"),
    "sst2": GlueTask(("accuracy",), "accuracy"),
    "mrpc": GlueTask(("f1", "accuracy"), "f1"),
    "stsb": GlueTask(("pearson", "spearmanr"), "spearmanr"),
    "qqp": GlueTask(("f1", "accuracy"), "f1"),
    "mnli_matched": GlueTask(("accuracy",), "accuracy"),
    "mnli_mismatched": GlueTask(("accuracy",), "accuracy"),
    "qnli": GlueTask(("accuracy",), "accuracy"),
    "rte": GlueTask(("accuracy",), "accuracy"),
    "wnli": GlueTask(("accuracy",), "accuracy"),
    "ax": GlueTask(("matthews_correlation",), "matthews_correlation"),
}
RULES = ("paper", "leaderboard")


def glue_score(task: str, metrics: Mapping[str, float], rule: Literal["paper", "leaderboard"] = "paper") -> float:
    """Return the score of a task as one number, in percent.

    With rule "paper" it is the metric of the BERT paper (F1 of MRPC and QQP, Spearman of STS-B); with "leaderboard" it
    is the mean of all metrics that the leaderboard uses for the task.

    Raises ``UserError`` for an unknown task or rule and a missing metric.
    """
    if rule not in RULES:
        raise UserError(f"unknown rule {rule!r} of GLUE; allowed: {', '.join(RULES)}")
    known = choose("GLUE task", task, TASKS)
    names = (known.paper,) if rule == "paper" else known.metrics
    missing = [name for name in names if name not in metrics]
    if missing:
        raise UserError(f"GLUE task {task} is scored by {', '.join(missing)}; given: {', '.join(metrics) or 'nothing'}")
    return 100.0 * sum(metrics[name] for name in names) / len(names)


def glue_average(results: Results, rule: Literal["paper", "leaderboard"] = "paper") -> float:
    """Return the mean score over tasks, in percent.

    Rule "paper" (Devlin et al. 2019, Table 1): the mean of nine numbers without WNLI; MNLI gives two of them. Rule
    "leaderboard": the mean over nine tasks, WNLI included; the two numbers of MNLI are averaged first. The diagnostic
    set counts in neither. Raises ``UserError`` with a list of missing tasks.
    """
    names = [name for name in TASKS if name != "ax" and not (name == "wnli" and rule == "paper")]
    missing = [name for name in names if name not in results]
    if missing:
        raise UserError(f"the GLUE average lacks {', '.join(missing)}; it is the mean over {', '.join(names)}")
    scores = {name: glue_score(name, results[name], rule) for name in names}
    if rule == "leaderboard":
        scores["mnli"] = (scores.pop("mnli_matched") + scores.pop("mnli_mismatched")) / 2
    return sum(scores.values()) / len(scores)
