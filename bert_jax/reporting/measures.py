"""The metrics of a run: their titles, their decimals, and which baselines they are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.reporting.formats import MISSING, figure, in_words, is_number
from bert_jax.reporting.loggers.base import Record, metrics_of
from bert_jax.task import TOTAL
from bert_jax.task import lower_is_better as lower_is_better

# Metric -> title of what training itself measures, in the order of the charts. Objectives, tasks and evaluations have
# ``titles`` of their own (``task.titles_of``), which ``run.json`` keeps. A metric without one is drawn under its name.
TITLES = {
    "loss": "Loss",
    TOTAL: "Loss, all terms",
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm",
    "tokens_per_second": "Tokens a second",
    "input_wait_seconds": "Waiting for input, seconds",
    "mfu": "Model FLOPs utilisation",
    "perplexity": "Perplexity",
}
DIGITS = {"learning_rate": 6, "tokens_per_second": 0, "perplexity": 1}  # decimals; percentages have 2, others 3
MOST_TILES = 6
MEAN = "mean"  # the metric of several tasks that is the mean of their main ones
EXACT = ("learning_rate",)  # exact, not measured, so drawn without a moving average
NOT_DRAWN = (
    "perplexity",
    "phase",
    "skipped_steps",  # alarms report these
    "step_seconds",  # the report has its percentiles, and draws tokens_per_second
)
# Metric -> its baselines, which need no learning: (key in baselines.json, name in a chart). They are those that n-gram
# models and this package's tasks give; the accuracy of any other term X is compared with X_majority_rate.
BASELINES = {
    "mlm_loss": (("unigram_cross_entropy", "unigram"), ("trigram_cloze_cross_entropy", "3-gram cloze")),
    "lm_loss": (("unigram_cross_entropy", "unigram"), ("trigram_cross_entropy", "3-gram")),
    "accuracy": (("majority_rate", "majority rate"), ("chance_rate", "chance")),
    "loss": (("mean_label_loss", "loss of the mean label"),),
}
CONSTANT = "a constant answer"
CORRELATIONS = ("correlation", "pearson", "spearmanr")  # ends of names of metrics that are 0 for any constant answer
# Name of a baseline -> what it does, for people who have not met it.
MEANINGS = {
    "3-gram cloze": "counts which word stands between two neighbours; a small model needs many steps to pass it",
    "3-gram": "counts which word follows two others; a small model needs many steps to pass it",
    "unigram": "guesses words by their frequency alone",
    "majority rate": "always gives the most common label",
    "chance": "guesses among the answers",
    "loss of the mean label": "always gives the mean of the labels",
    CONSTANT: "has a correlation of 0",
}


def titles_in(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the titles of metrics that the content of a ``run.json`` has, then those of training itself."""
    own = run.get("titles")
    return {name: str(of) for name, of in (own if isinstance(own, Mapping) else {}).items()} | TITLES


def title(metric: str, titles: Mapping[str, str] = TITLES) -> str:
    """Return the title of a metric; ``titles`` are those of the run (``titles_in``).

    A name such as ``f1/dev_matched`` means F1 on the held-out split ``dev_matched``.
    """
    known, rest = _known(metric, titles)
    text = titles.get(known) or in_words(known)
    return f"{text}: {rest}" if rest else text


def _known(metric: str, titles: Mapping[str, str]) -> tuple[str, str]:
    """Return the longest beginning of a metric's name that has a title, up to a slash, and the rest."""
    names = metric.split("/")
    number = next((n for n in range(len(names), 0, -1) if "/".join(names[:n]) in titles), 1)
    return "/".join(names[:number]), "/".join(names[number:])


def digits(metric: str, titles: Mapping[str, str] = TITLES) -> int:
    """Return the number of decimals with which a metric is shown."""
    name, _ = _known(metric, titles)
    return DIGITS.get(name, 2 if titles.get(name, "").endswith("%") else 3)


def cell(value: Any, metric: str, titles: Mapping[str, str] = TITLES) -> str:
    """Return a value of a metric as the text of a table cell."""
    return figure(value, digits(metric, titles)) if is_number(value) else MISSING if value is None else str(value)


def metric_names(records: Iterable[Record], titles: Mapping[str, str] = TITLES) -> list[str]:
    """Return the metrics that have a number in any record and are drawn. Those with a title come first, in their order.

    A title "" says that a metric is not drawn, such as a count.
    """
    found = dict.fromkeys(k for record in records for k, v in metrics_of(record).items() if is_number(v))
    names = [*(name for name in titles if name in found), *(name for name in found if name not in titles)]
    return [
        name for name in names if name.partition("/")[0] not in NOT_DRAWN and titles.get(_known(name, titles)[0]) != ""
    ]


def headline(record: Record, tuned: bool, main: str | None, titles: Mapping[str, str]) -> list[str]:
    """Return the metrics of a record that lead the report, of a run that is ``tuned`` or one of pretraining.

    In pretraining they are the loss of the first term and the accuracies of all, in fine-tuning ``main`` and two more.
    Of several tasks they are the mean and the main metrics, whose titles come first.
    """
    names = metric_names([record], titles)
    terms = [name for name in names if name.endswith("_loss")][:1] + [n for n in names if n.endswith("_accuracy")]
    if terms and not tuned:
        return terms[:MOST_TILES]
    return sorted(names, key=lambda name: name != main)[: MOST_TILES if main == MEAN else 3]


def known_baselines(metric: str, baselines: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return (name, value) of each known baseline of a metric, the strongest first.

    A part of a mixture (``mlm_loss/legal``) has baselines of its own, and so has one of several tasks
    (``rte/accuracy``). The majority rate of a term of a loss, such as ``nsp``, belongs to its accuracy,
    ``nsp_accuracy``.
    """
    name, slash, part = metric.partition("/")
    if name.endswith(CORRELATIONS) or part.endswith(CORRELATIONS):
        return [(CONSTANT, 0.0)]
    of_term = ((f"{name.removesuffix('_accuracy')}_majority_rate", "majority rate"),)
    keys = [(f"{key}{slash}{part}", label) for key, label in BASELINES.get(name, of_term)]
    keys += [(f"{name}/{key}", label) for key, label in BASELINES.get(part, ())]
    known = [(label, float(baselines[key])) for key, label in keys if is_number(baselines.get(key))]
    return sorted(known, key=lambda one: one[1] if lower_is_better(metric) else -one[1])


def to_beat(metric: str, baselines: Mapping[str, Any]) -> str:
    """Return, as text, the scores that are reached without learning; "" if none is known for the metric."""
    return ", ".join(f"{name} {figure(value)}" for name, value in known_baselines(metric, baselines))


def compare(metric: str, value: float, baselines: Mapping[str, Any]) -> tuple[str, str]:
    """Return text that compares a value with its strongest baseline, and a colour: good if the value is better.

    Both are "" if no baseline is known for the metric.
    """
    for name, baseline in known_baselines(metric, baselines)[:1]:
        return _compare_with(metric, value, name, baseline)
    return "", ""


def _compare_with(metric: str, value: float, name: str, baseline: float) -> tuple[str, str]:
    gap = round(value, 3) - round(baseline, 3)  # of what is shown
    if not gap:
        return f"no better than {name} {baseline:.3f}", "bad"
    better = (gap < 0) == lower_is_better(metric)
    return f"{abs(gap):.3f} {'better' if better else 'worse'} than {name} {baseline:.3f}", "good" if better else "bad"


def comparison_lines(
    metrics: Mapping[str, Any], baselines: Mapping[str, Any], cure: str, untrained: Mapping[str, Any] | None = None
) -> list[str]:
    """Return, for each metric that has baselines, a line that compares it with all of them, the weakest first.

    A line names the metric of ``untrained``, at step 0, too. If a baseline is better than the model, the last line is
    ``cure``: what helps.
    """
    lines, colours = [], set()
    for metric, value in metrics.items():
        if is_number(value) and (known := known_baselines(metric, baselines)):
            comparisons = [_compare_with(metric, value, *one) for one in reversed(known)]
            before = (untrained or {}).get(metric)
            start = f" ({before:.3f} at step 0)" if is_number(before) else ""
            texts = ", ".join(text for text, _ in comparisons)
            lines.append(f"held-out {in_words(metric)} {value:.3f}{start}: {texts}")
            colours |= {colour for _, colour in comparisons}
    return [*lines, cure] if "bad" in colours else lines


def meanings(metrics: Iterable[str], baselines: Mapping[str, Any]) -> str:
    """Return a line that says what each known baseline of the metrics does; "" if none is known."""
    names = dict.fromkeys(name for metric in metrics for name, _ in known_baselines(metric, baselines))
    return f"Compared with: {', '.join(f'{name} ({MEANINGS[name]})' for name in names)}." if names else ""
