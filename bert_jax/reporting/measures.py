"""The metrics of a run: their titles, their decimals, and which baselines they are compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bert_jax.metric_names import MEAN, STANDARD_ERROR, TOTAL, has_goal, lower_is_better
from bert_jax.reporting.formats import MISSING, figure, in_words, is_number
from bert_jax.reporting.loggers.base import Record, metrics_of

# Title of each metric that training itself measures, in the order of the charts. Objectives, tasks and evaluations have
# further ``titles`` (``metric_names.titles_of``), which ``run.json`` keeps. Other metrics are drawn under their names.
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
_DIGITS = {"learning_rate": 6, "tokens_per_second": 0, "perplexity": 1}  # decimals; percentages have 2, other metrics 3
_MOST_TILES = 6
EXACT = ("learning_rate",)  # set, not measured, so drawn without a moving average
# Alarms report skipped steps. The report has percentiles of step_seconds, and draws tokens_per_second.
_NOT_DRAWN = ("perplexity", "phase", "skipped_steps", "step_seconds")
# Metric -> its baselines, which need no learning: (key in baselines.json, name in a chart). N-gram models and this
# package's tasks give them; ``_baselines`` adds the baselines of any other term or score.
BASELINES = {
    "replaced_loss": (("replaced_entropy", "entropy of the replaced share"),),
    "replaced_precision": (("replaced_rate", "replaced share"),),
    "mlm_loss": (("unigram_cross_entropy", "unigram"), ("trigram_cloze_cross_entropy", "3-gram cloze")),
    "plm_loss": (("unigram_cross_entropy", "unigram"), ("trigram_cloze_cross_entropy", "3-gram cloze")),
    "lm_loss": (("unigram_cross_entropy", "unigram"), ("trigram_cross_entropy", "3-gram")),
    "fragment_loss": (("unigram_cross_entropy", "unigram"), ("trigram_cross_entropy", "3-gram")),
    "accuracy": (("majority_rate", "majority rate"), ("chance_rate", "chance")),
    "loss": (("mean_label_loss", "loss of the mean label"),),
}
# The score X of written texts is compared with X_of_copies and X_of_first_sentences.
OF_TEXTS = (("of_copies", "copy of the source"), ("of_first_sentences", "first sentence"))
CONSTANT = "a constant answer"
_CORRELATIONS = ("correlation", "pearson", "spearmanr")  # ends of names of metrics that are 0 for any constant answer
# Name of a baseline -> what it does, for people who have not met it.
MEANINGS = {
    "3-gram cloze": "counts which word stands between two neighbours; a small model needs many steps to pass it",
    "3-gram": "counts which word follows two others; a small model needs many steps to pass it",
    "unigram": "guesses words by their frequency alone",
    "entropy of the replaced share": "the loss of knowing how many tokens are replaced, not which",
    "replaced share": "the precision of guessing",
    "majority rate": "always gives the most common label",
    "chance": "guesses among the answers",
    "copy of the source": "writes the text that is read",
    "first sentence": "writes the first sentence of the text that is read",
    "loss of the mean label": "always gives the mean of the labels",
    CONSTANT: "has a correlation of 0",
}


def titles_in(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the titles of metrics in the content of a ``run.json``, then the titles that training itself has."""
    own = run.get("titles")
    return {name: str(of) for name, of in (own if isinstance(own, Mapping) else {}).items()} | TITLES


def metric_title(metric: str, titles: Mapping[str, str]) -> str:
    """Return the title of a metric; ``titles``: the titles of the run's metrics (``titles_in``).

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


def in_order(metrics: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    """Return ``metrics`` in the order of their titles; metrics without a title come last."""
    place = {name: i for i, name in enumerate(titles)}
    return dict(sorted(metrics.items(), key=lambda one: place.get(_known(one[0], titles)[0], len(place))))


def decimals_of(metric: str, titles: Mapping[str, str]) -> int:
    """Return the number of decimals with which a metric is shown."""
    name, _ = _known(metric, titles)
    return _DIGITS.get(name, 2 if titles.get(name, "").endswith("%") else 3)


def cell_text(value: Any, metric: str, titles: Mapping[str, str] = TITLES) -> str:
    """Return a value of a metric as the text of a table cell."""
    return figure(value, decimals_of(metric, titles)) if is_number(value) else MISSING if value is None else str(value)


def drawn_metrics(records: Iterable[Record], titles: Mapping[str, str]) -> list[str]:
    """Return the metrics that have a number in any record and are drawn, first the metrics in ``titles``, in order.

    The title "" says that a metric, such as a count, is not drawn.
    """
    found = dict.fromkeys(k for record in records for k, v in metrics_of(record).items() if is_number(v))
    names = [*(name for name in titles if name in found), *(name for name in found if name not in titles)]
    return [
        name for name in names if name.partition("/")[0] not in _NOT_DRAWN and titles.get(_known(name, titles)[0]) != ""
    ]


def with_shares(baselines: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``baselines``, and baselines that follow from the share of replaced tokens in ``record``, an evaluation.

    The share differs between evaluations, since a better generator replaces fewer tokens.
    """
    found = {**baselines}
    for metric, share in record.items():
        name, slash, part = metric.partition("/")
        if name == "replaced_rate" and is_number(share) and 0 <= share <= 1:
            logs = (-x * math.log(x) for x in (share, 1 - share) if x > 0)
            own = {"replaced_rate": share, "replaced_entropy": sum(logs)}
            own["replaced_majority_rate"] = max(share, 1 - share)
            found |= {f"{key}{slash}{part}": value for key, value in own.items()}
    return found


def heldout_errors(by_split: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return a dict: metric, as an evaluation names it -> its standard error.

    If there are several dev splits, the error of a metric without a split's name is the error of the mean over them.

    Args:
      by_split: split -> metric -> standard error. If there are several tasks, the name of a split is ``TASK/split``.
    """
    tasks: dict[str, dict[str, Mapping[str, float]]] = {}
    for whole, errors in by_split.items():
        task, slash, split = whole.rpartition("/")
        if split.startswith("dev"):
            tasks.setdefault(f"{task}{slash}", {})[split] = errors
    found: dict[str, float] = {}
    for start, splits in tasks.items():
        for metric in dict.fromkeys(name for errors in splits.values() for name in errors):
            known = {split: errors[metric] for split, errors in splits.items() if metric in errors}
            if len(splits) > 1:
                found |= {f"{start}{metric}/{split}": error for split, error in known.items()}
            if len(known) == len(splits):
                found[f"{start}{metric}"] = math.hypot(*known.values()) / len(known)
    return found


def in_a_line(metrics: Mapping[str, Any]) -> str:
    """Return the metrics of an evaluation as text. The first metric with several parts has them in brackets.

    The parts of other metrics are in the log and in the report alone. ``mlm_loss/legal`` is a part of ``mlm_loss`` if
    both are there.
    """
    parts: dict[str, list[str]] = {}
    for name in metrics:
        whole, slash, _ = name.partition("/")
        if slash and whole in metrics:
            parts.setdefault(whole, []).append(name)
    first = next((whole for whole, names in parts.items() if len(names) > 1), "")
    inside = ", ".join(f"{name.partition('/')[2]} {figure(metrics[name])}" for name in parts.get(first, ()))
    others = [name for name in metrics if name.partition("/")[0] not in parts or name in parts]
    texts = {name: f"{in_words(name)} {figure(metrics[name])}" for name in others}
    return ", ".join(f"{text} ({inside})" if name == first else text for name, text in texts.items())


def headline_metrics(record: Record, tuned: bool, main: str | None, titles: Mapping[str, str]) -> list[str]:
    """Return the metrics of a record that lead the report of a run, which is fine-tuned if ``tuned``.

    In pretraining they are the loss of the first term, and the accuracy, precision and recall of all terms; in
    fine-tuning ``main`` and two more. If there are several tasks, they are the mean and the main metrics, whose titles
    come first.
    """
    names = drawn_metrics([record], titles)
    shares = [name for name in names if name.endswith(("_accuracy", "_precision", "_recall"))]
    terms = [name for name in names if name.endswith("_loss")][:1] + shares
    if terms and not tuned:
        return terms[:_MOST_TILES]
    return sorted(names, key=lambda name: (name != main, name.endswith("loss")))[: _MOST_TILES if main == MEAN else 3]


class _Baseline(NamedTuple):
    """A score that is reached without learning. ``error`` is its standard error; 0 if it is exact."""

    name: str
    score: float
    error: float


def known_baselines(metric: str, baselines: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return (name, value) of each known baseline of a metric, the strongest first.

    Each part of a mixture (``mlm_loss/legal``) and each of several tasks (``rte/accuracy``) has separate baselines. The
    majority rate of a term of a loss, such as ``nsp``, belongs to the accuracy of the term, ``nsp_accuracy``.
    """
    return [one[:2] for one in _baselines(metric, baselines)]


def _baselines(metric: str, baselines: Mapping[str, Any]) -> list[_Baseline]:
    name, slash, part = metric.partition("/")
    if name.endswith(_CORRELATIONS) or part.endswith(_CORRELATIONS):
        return [_Baseline(CONSTANT, 0.0, 0.0)]
    of_term = (
        (f"{name.removesuffix('_accuracy')}_majority_rate", "majority rate"),
        *((f"{name}_{ending}", label) for ending, label in OF_TEXTS),
    )
    keys = [(f"{key}{slash}{part}", label) for key, label in BASELINES.get(name, of_term)]
    keys += [(f"{name}/{key}", label) for key, label in BASELINES.get(part, ())]
    known = []
    for key, label in keys:
        if is_number(baselines.get(key)):
            error = baselines.get(f"{key}{STANDARD_ERROR}")
            known.append(_Baseline(label, float(baselines[key]), error if is_number(error) else 0.0))
    return sorted(known, key=lambda one: one.score if lower_is_better(metric) else -one.score)


def to_beat(metric: str, baselines: Mapping[str, Any]) -> str:
    """Return as text the scores that are reached without learning; "" if no score is known for the metric."""
    return ", ".join(f"{name} {figure(value)}" for name, value in known_baselines(metric, baselines))


def compare_score(
    metric: str, value: float, baselines: Mapping[str, Any], errors: Mapping[str, float] | None = None
) -> tuple[str, str]:
    """Return text that compares a value with its strongest baseline, and a colour: good if the value is better.

    Both are "" if no baseline is known for the metric.

    Args:
      errors: metric -> its standard error. The value of a metric without an error is not called better or worse. If
        None, as in pretraining, where a held-out figure is a mean over very many tokens, every difference counts.
    """
    known = _baselines(metric, baselines)
    return _compare_with(metric, value, known[0], errors) if known else ("", "")


def _compare_with(
    metric: str, value: float, baseline: _Baseline, errors: Mapping[str, float] | None
) -> tuple[str, str]:
    gap, beside = round(value, 3) - round(baseline.score, 3), f"{baseline.name} {baseline.score:.3f}"
    if not gap:  # between the values as they are shown
        return f"no better than {beside}", "bad"
    better, side = (gap < 0) == lower_is_better(metric), "above" if gap > 0 else "below"
    if errors is not None and metric not in errors:
        return f"{abs(gap):.3f} {side} {beside}", ""
    if errors is not None and abs(value - baseline.score) <= 2 * math.hypot(errors[metric], baseline.error):
        return f"{abs(gap):.3f} {side} {beside}, within two standard errors", "doubt"
    return f"{abs(gap):.3f} {'better' if better else 'worse'} than {beside}", "good" if better else "bad"


def with_error(metric: str, text: str, errors: Mapping[str, float] | None, decimals: int = 3) -> str:
    """Return the text of a metric's value, with its standard error if that is known: ``0.834 ± 0.012``."""
    known = (errors or {}).get(metric)
    return f"{text} ± {known:.{decimals}f}" if is_number(known) else text


def comparison_lines(
    metrics: Mapping[str, Any],
    baselines: Mapping[str, Any],
    cure: str,
    untrained: Mapping[str, Any] | None = None,
    errors: Mapping[str, float] | None = None,
    main: str = "",
) -> list[str]:
    """Return a line for ``main`` and for each metric with baselines. A line compares with the weakest baseline first.

    A line also names the value in ``untrained``, at step 0, and says if training did not make it better. A precision
    stands beside the recall. If a value is not better than a baseline, the last line is ``cure``, a remedy.
    ``errors``: see ``compare``.
    """
    lines, colours = [], set()
    baselines = with_shares(baselines, metrics)
    for metric, value in sorted(metrics.items(), key=lambda one: one[0] != main):
        known = _baselines(metric, baselines)
        if not is_number(value) or not (known or metric == main):
            continue
        comparisons = [_compare_with(metric, value, one, errors) for one in reversed(known)]
        colours |= {colour for _, colour in comparisons}
        line = f"held-out {in_words(metric)} {with_error(metric, f'{value:.3f}', errors)}"
        if is_number(recall := metrics.get(metric.replace("_precision", "_recall"))) and "_precision" in metric:
            line += f" with recall {recall:.3f}"
        line += _since(metric, value, (untrained or {}).get(metric))
        lines.append(line + (": " if comparisons else "") + ", ".join(text for text, _ in comparisons))
    return [*lines, cure] if colours & {"bad", "doubt"} else lines


def _since(metric: str, value: float, before: Any) -> str:
    """Return, in brackets, the value of a metric at step 0, and whether training did not help; "" if unknown."""
    if not is_number(before):
        return ""
    gap = round(value, 3) - round(before, 3)
    helped = not has_goal(metric) or (gap < 0 if lower_is_better(metric) else gap > 0)
    return f" ({before:.3f} at step 0{'' if helped else ': training did not help'})"


def meanings_line(metrics: Iterable[str], baselines: Mapping[str, Any]) -> str:
    """Return a line that says what each known baseline of the metrics does; "" if none is known."""
    names = dict.fromkeys(name for metric in metrics for name, _ in known_baselines(metric, baselines))
    return f"Compared with: {', '.join(f'{name} ({MEANINGS[name]})' for name in names)}." if names else ""
