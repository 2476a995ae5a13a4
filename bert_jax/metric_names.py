"""Names of metrics: their titles in reports, and which values are better."""

from __future__ import annotations

from typing import Any

TOTAL = "total_loss"
MEAN = "mean"  # the metric of several tasks that is the mean of their main metrics
STANDARD_ERROR = "_standard_error"  # ends the name of the standard error of a baseline


def titles_of(part: Any) -> dict[str, str]:
    """Return the titles of metrics that an objective, a task or an evaluation has, in the order of the charts.

    Each class adds its ``titles`` to the titles of its base classes. A metric that a class names again has its place in
    the order of this class. A metric with the title "" is not drawn.
    """
    classes = reversed((part if isinstance(part, type) else type(part)).__mro__)
    own = {} if isinstance(part, type) else vars(part)
    found: dict[str, str] = {}
    for one in (*map(vars, classes), own):
        again = one.get("titles", {})
        found = {name: title for name, title in found.items() if name not in again} | again
    return found


def lower_is_better(metric: str) -> bool:
    """Return whether a smaller value of the metric is better, judged by the metric's name.

    A name such as ``probe/loss`` means the loss that the evaluation ``probe`` gives; ``f1/dev_loss`` and
    ``mlm_accuracy/error`` are of a split and of a part of a mixture, which a user named.
    """
    first, *others = metric.split("/")
    of_part = first.endswith("accuracy") or others[:1] and others[0].startswith("dev")
    names = [first] if of_part else [first, *others[:1]]
    return any(name.endswith(("loss", "perplexity", "error")) for name in names)


def has_goal(metric: str) -> bool:
    """Return whether some values of a metric are better than others: a share or a count has no goal."""
    return not any(name.endswith(("replaced_rate", "total", "_thresh")) for name in metric.split("/")[:2])
