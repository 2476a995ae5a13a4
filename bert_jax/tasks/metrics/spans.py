"""Computes exact match and F1 of answer texts, in percent, as the official scripts of SQuAD and CMRC 2018 do.

Sources: SQuAD v1.1 (Rajpurkar et al. 2016, section 6.1), SQuAD v2.0 (Rajpurkar, Jia and Liang 2018, section 4), CMRC
2018 (Cui et al. 2019, section 3; also for DRCD). If a question has several right answers, a prediction is compared with
each of them and the highest score counts.
"""

from __future__ import annotations

import functools
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher

from bert_jax.errors import optional_library
from bert_jax.tasks.metrics.counting import precision_recall_f1, ratio
from bert_jax.tasks.metrics.standard_errors import of_mean

TITLES = {
    "exact_match": "Exact match, %",
    "exact": "Exact match, %",
    "f1": "F1",
    "HasAns_exact": "Exact match where there is an answer, %",
    "HasAns_f1": "F1 where there is an answer, %",
    "NoAns_exact": "Exact match where there is none, %",
    "NoAns_f1": "F1 where there is none, %",
    **dict.fromkeys(("total", "HasAns_total", "NoAns_total", "best_exact_thresh", "best_f1_thresh"), ""),  # not drawn
}
Answers = Mapping[str, Sequence[str]]  # question id -> right answers; empty if the question has no answer
Texts = Mapping[str, str]  # question id -> predicted answer; "" predicts that there is no answer
Scores = dict[str, tuple[float, float]]  # question id -> (exact match, F1), as fractions

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# The list in CMRC 2018's script, without "……", which the script never removes because it compares single characters.
_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CMRC_PIECES = re.compile("[\u4e00-\u9fa5]|[^\u4e00-\u9fa5]+")


def squad_v1_metrics(answers: Answers, predictions: Texts) -> dict[str, float]:
    """Return exact_match and f1. Every question has an answer and a prediction."""
    return _means(squad_v1_scores(answers, predictions))


def squad_v1_scores(answers: Answers, predictions: Texts) -> Scores:
    """Return the exact match and the F1 of each question."""
    return _scores(answers, predictions, exact_match, _token_f1)


def cmrc_metrics(answers: Answers, predictions: Texts) -> dict[str, float]:
    """Return exact_match, f1 and average (the mean of both), as ``squad_v1_metrics``. Needs the extra ``cmrc``."""
    means = _means(cmrc_scores(answers, predictions))
    return {**means, "average": (means["exact_match"] + means["f1"]) / 2}


def cmrc_scores(answers: Answers, predictions: Texts) -> Scores:
    """Return the exact match and the F1 of each question."""
    split = optional_library("nltk.tokenize", "a score of CMRC 2018").NLTKWordTokenizer().tokenize
    return _scores(answers, predictions, _cmrc_exact_match, functools.partial(_cmrc_f1, split))


def squad_v2_metrics(
    answers: Answers, predictions: Texts, null_odds: Mapping[str, float], threshold: float
) -> dict[str, float]:
    """Return exact, f1 and total; and as HasAns_* and NoAns_*, the same for questions with and without an answer.

    The result also has best_exact, best_exact_thresh, best_f1 and best_f1_thresh, see ``_find_best_threshold``.

    Args:
      predictions: the best text that is not "" for every question.
      null_odds: a score for every question. If it is above ``threshold``, the prediction counts as "".
    """
    raw = _raw_scores(answers, predictions)
    scores = _at_threshold(raw, answers, null_odds, threshold)
    result = _totals(list(scores.values()))
    for name, kept in (("HasAns", True), ("NoAns", False)):
        part = [scores[key] for key in scores if bool(answers[key]) == kept]
        if part:
            result |= {f"{name}_{key}": value for key, value in _totals(part).items()}
    for position, name in enumerate(("exact", "f1")):
        best, where = _find_best_threshold(predictions, {k: s[position] for k, s in raw.items()}, null_odds, answers)
        result |= {f"best_{name}": best, f"best_{name}_thresh": where}
    return result


def squad_v2_scores(answers: Answers, predictions: Texts, null_odds: Mapping[str, float], threshold: float) -> Scores:
    """Return the exact match and the F1 of each question; see ``squad_v2_metrics``."""
    return _at_threshold(_raw_scores(answers, predictions), answers, null_odds, threshold)


def _raw_scores(answers: Answers, predictions: Texts) -> Scores:
    """Return the scores of the predictions as they are. Right answers that normalise to "" are left out."""
    right = {key: [text for text in texts if normalize(text)] or [""] for key, texts in answers.items()}
    return _scores(right, predictions, exact_match, _no_answer_f1)


def _at_threshold(raw: Scores, answers: Answers, null_odds: Mapping[str, float], threshold: float) -> Scores:
    without = {key: float(not answers[key]) for key in raw}  # what the prediction "" scores
    return {key: (without[key], without[key]) if null_odds[key] > threshold else score for key, score in raw.items()}


def standard_errors(scores: Scores, exact: str = "exact_match") -> dict[str, float]:
    """Return the standard errors, in percent, of the means of ``scores``; ``exact``: the name of the first mean."""
    return {name: 100 * of_mean([one[i] for one in scores.values()]) for i, name in enumerate((exact, "f1"))}


def _find_best_threshold(
    predictions: Texts, scores: Mapping[str, float], null_odds: Mapping[str, float], answers: Answers
) -> tuple[float, float]:
    """Return the highest mean of ``scores``, in percent, that any threshold gives, and that threshold.

    For a question whose ``null_odds`` are above the threshold, "" is predicted. The search follows the official script.
    At first no question is answered and the threshold is 0. Then questions are answered one by one, in ascending order
    of ``null_odds`` (on a tie, in the order of that dict), and the threshold becomes the ``null_odds`` of the last
    answered question. Of equally good thresholds, the first is taken.
    """
    current = best = float(sum(1 for texts in answers.values() if not texts))
    threshold = 0.0
    for key in sorted(null_odds, key=null_odds.__getitem__):
        current += scores[key] if answers[key] else -float(bool(predictions[key]))
        if current > best:
            best, threshold = current, null_odds[key]
    return 100.0 * ratio(best, len(scores)), float(threshold)


def normalize(text: str) -> str:
    """Return ``text`` in lower case, without ASCII punctuation and English articles, words joined by single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, prediction: str) -> float:
    """Return 1 if the two texts are equal after normalisation, else 0."""
    return float(normalize(answer) == normalize(prediction))


def _token_f1(answer: str, prediction: str) -> float:
    """Return the F1 of the normalised words as multisets; 0 if no word is shared, even if both texts are empty."""
    true, predicted = normalize(answer).split(), normalize(prediction).split()
    shared = (Counter(true) & Counter(predicted)).total()
    return precision_recall_f1(shared, len(predicted), len(true))["f1"]


def _no_answer_f1(answer: str, prediction: str) -> float:
    """Return ``_token_f1``, except that it is 1 if both texts are empty, as SQuAD v2.0 defines it."""
    return _token_f1(answer, prediction) or float(not normalize(answer) and not normalize(prediction))


def _cmrc_exact_match(answer: str, prediction: str) -> float:
    answer, prediction = (text.lower().strip().translate(_CMRC_PUNCTUATION) for text in (answer, prediction))
    return float(answer == prediction)


def _cmrc_segments(split: Callable[[str], list[str]], text: str) -> list[str]:
    """Return the segments of a text as CMRC 2018 defines them: ideographs, and the words of the text between them.

    Text between ideographs is split as one sentence; the official script may see several sentences in it.
    """
    pieces = _CMRC_PIECES.findall(text.lower().strip().translate(_CMRC_PUNCTUATION))
    return [word for piece in pieces for word in ([piece] if "\u4e00" <= piece <= "\u9fa5" else split(piece))]


def _cmrc_f1(split: Callable[[str], list[str]], answer: str, prediction: str) -> float:
    """Return the F1 that CMRC 2018 defines: segments count as shared if they are in the longest common run."""
    true, predicted = _cmrc_segments(split, answer), _cmrc_segments(split, prediction)
    shared = SequenceMatcher(None, true, predicted, autojunk=False).find_longest_match().size
    return precision_recall_f1(shared, len(predicted), len(true))["f1"]


def _scores(
    answers: Answers, predictions: Texts, exact: Callable[[str, str], float], f1: Callable[[str, str], float]
) -> Scores:
    """Return the exact match and the F1 of each question: the highest of each score over the right answers."""
    return {
        key: (max(exact(text, predictions[key]) for text in texts), max(f1(text, predictions[key]) for text in texts))
        for key, texts in answers.items()
    }


def _means(scores: Scores) -> dict[str, float]:
    totals = _totals(list(scores.values()))
    return {"exact_match": totals["exact"], "f1": totals["f1"]}


def _totals(scores: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the means of exact match and F1, in percent, and the number of questions."""
    exact, f1 = (100.0 * ratio(sum(score[i] for score in scores), len(scores)) for i in (0, 1))
    return {"exact": exact, "f1": f1, "total": float(len(scores))}
