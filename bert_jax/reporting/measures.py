"""The metrics of a run: their titles, their decimals, and which baselines they are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.reporting.formats import MISSING, figure, in_words, is_number
from bert_jax.tasks.metrics import classification, regression, spans

# Metric -> title, in the order of the charts. A metric without an entry is drawn under its own name. Metrics of tasks
# have theirs in the files that compute them.
TITLES = {
    "mlm_loss": "Masked-LM loss, nats",
    "mlm_accuracy": "Masked-LM accuracy",
    "mlm_accuracy_no_punctuation": "Masked-LM accuracy without punctuation",
    "lm_loss": "Next-token loss, nats",
    "lm_accuracy": "Next-token accuracy",
    "nsp_loss": "Next-sentence loss, nats",
    "nsp_accuracy": "Next-sentence accuracy",
    "sop_loss": "Sentence-order loss, nats",
    "sop_accuracy": "Sentence-order accuracy",
    "boundary_loss": "Span-boundary loss, nats",
    "boundary_accuracy": "Span-boundary accuracy",
    "loss": "Loss",
    **classification.TITLES,
    **regression.TITLES,
    **spans.TITLES,
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm",
    "tokens_per_second": "Tokens a second",
    "input_wait_seconds": "Waiting for input, seconds",
    "mfu": "Model FLOPs utilisation",
    "perplexity": "Perplexity",
}
DIGITS = {"learning_rate": 6, "tokens_per_second": 0, "perplexity": 1}  # decimals; percentages have 2, others 3
HEADLINE = ("mlm_loss", "mlm_accuracy", "lm_loss", "lm_accuracy", "nsp_accuracy", "sop_accuracy")
LOG_SCALE = ("gradient_norm",)
EXACT = ("learning_rate",)  # exact, not measured, so drawn without a moving average
NOT_DRAWN = (
    "perplexity",
    "phase",
    "total",  # three counts of questions and two thresholds
    "HasAns_total",
    "NoAns_total",
    "best_exact_thresh",
    "best_f1_thresh",
    "skipped_steps",  # alarms report these
    "step_seconds",  # the report has its percentiles, and draws tokens_per_second
)
# Metric -> its baselines, which need no learning: (key in baselines.json, name in a chart).
BASELINES = {
    "mlm_loss": (("unigram_cross_entropy", "unigram"), ("trigram_cloze_cross_entropy", "3-gram cloze")),
    "lm_loss": (("unigram_cross_entropy", "unigram"), ("trigram_cross_entropy", "3-gram")),
    "accuracy": (("majority_rate", "majority rate"), ("chance_rate", "chance")),
    "loss": (("mean_label_loss", "loss of the mean label"),),
}
CONSTANT = "a constant answer"
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


def title(metric: str) -> str:
    """Return the title of a metric.

    A name such as ``f1/dev_matched`` means F1 on the held-out split ``dev_matched``.
    """
    name, _, split = metric.partition("/")
    text = TITLES.get(name, in_words(name))
    return f"{text}: {split}" if split else text


def digits(metric: str) -> int:
    """Return the number of decimals with which a metric is shown."""
    name = metric.partition("/")[0]
    return DIGITS.get(name, 2 if TITLES.get(name, "").endswith("%") else 3)


def cell(value: Any, metric: str) -> str:
    """Return a value of a metric as the text of a table cell."""
    return figure(value, digits(metric)) if is_number(value) else MISSING if value is None else str(value)


def known_baselines(metric: str, baselines: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return (name, value) of each known baseline of a metric, the strongest first.

    A part of a mixture (``mlm_loss/legal``) has baselines of its own. The majority rate of a term of a loss, such as
    ``nsp``, belongs to its accuracy, ``nsp_accuracy``.
    """
    name, slash, part = metric.partition("/")
    if TITLES.get(name, "").endswith("correlation"):  # 0 for any constant answer
        return [(CONSTANT, 0.0)]
    of_term = ((f"{name.removesuffix('_accuracy')}_majority_rate", "majority rate"),)
    keys = ((f"{key}{slash}{part}", label) for key, label in BASELINES.get(name, of_term))
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


def lower_is_better(metric: str) -> bool:
    """Return whether a smaller value of the metric is better, judged by the metric's name.

    A name such as ``probe/loss`` means the loss that the evaluation ``probe`` gives.
    """
    first, *others = metric.split("/")
    names = [first] if first in TITLES else [first, *others[:1]]
    return any(name.endswith(("loss", "perplexity", "error")) for name in names)
