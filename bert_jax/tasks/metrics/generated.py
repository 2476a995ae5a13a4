"""Scores generated texts by their references: BLEU and chrF of sacrebleu, ROUGE of rouge-score.

Sources: Papineni et al. 2002 and Post 2018 (BLEU), Popovic 2015 (chrF), Lin 2004 (ROUGE). All scores are from 0 to 100.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.configuration import choose
from bert_jax.errors import UserError
from bert_jax.tasks.metrics.counting import check_each

# Every metric that ``config.task.metrics`` may name, with its title.
TITLES = {
    "rouge_l": "ROUGE-L",
    "rouge_1": "ROUGE-1",
    "rouge_2": "ROUGE-2",
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "Exact match",
}
_ROUGE = {"rouge_l": "rougeL", "rouge_1": "rouge1", "rouge_2": "rouge2"}
_IDEOGRAPH = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff])")
_WORD = re.compile(r"\w+")


def check_names(names: Sequence[str], where: str) -> None:
    """Raise ``UserError`` with all names that are not metrics, or if the packages of the metrics are not installed.

    ``where``: the key that has the names.
    """
    check_each(names, lambda name: choose(f"metric in {where}:", name, TITLES))
    try:
        import rouge_score  # noqa: F401
        import sacrebleu  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"the scores that {where} names need {error.name}; install the extra generation: pip install "
            "'bert-jax[generation]'"
        ) from None


def generated_metrics(names: Sequence[str], references: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """Return the scores called ``names`` of ``texts``, each with one reference.

    BLEU and chrF are scores of the whole; ROUGE and the exact match are means over the texts. The tokens of BLEU are
    sacrebleu's "13a", or "zh" if most letters of the references are ideographs. The tokens of ROUGE are lower-case
    words, and each ideograph. Without texts every score is 0.
    """
    return {name: _score(name, references, texts) if len(texts) else 0.0 for name in names}


def of_each(name: str, references: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """Return the score of each text [N] by a metric that is a mean over texts."""
    if name == "exact_match":
        return np.array([100.0 * (a.split() == b.split()) for a, b in zip(references, texts, strict=True)])
    kind = _ROUGE[name]
    scores = (_rouge(kind).score(a, b)[kind].fmeasure for a, b in zip(references, texts, strict=True))
    return 100 * np.array(list(scores), np.float64)


def is_mean(name: str) -> bool:
    """Return whether the score of a metric is the mean of the scores of the texts."""
    return name in _ROUGE or name == "exact_match"


def _score(name: str, references: Sequence[str], texts: Sequence[str]) -> float:
    if is_mean(name):
        return float(of_each(name, references, texts).mean())
    import sacrebleu

    if name == "bleu":
        tokens = "zh" if _is_ideographic(references) else "13a"
        return float(sacrebleu.corpus_bleu(list(texts), [list(references)], tokenize=tokens).score)
    return float(sacrebleu.corpus_chrf(list(texts), [list(references)]).score)


def _is_ideographic(texts: Sequence[str]) -> bool:
    letters = sum(map(str.isalpha, "".join(texts)))
    return 2 * sum(len(_IDEOGRAPH.findall(text)) for text in texts) > letters


class _Words:
    """Splits a text into lower-case words and ideographs; rouge-score's tokens are of ASCII letters alone."""

    def tokenize(self, text: str) -> list[str]:
        return _WORD.findall(_IDEOGRAPH.sub(r" \1 ", text.lower()))


@functools.cache
def _rouge(kind: str) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([kind], tokenizer=_Words())
