"""Checks whether text and vocabulary belong together, and whether the text was decoded correctly."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.inspection.check import Check, Status, grade, percent, ratio, worst
from bert_jax.inspection.fertility import Fertility, compare_fertility
from bert_jax.inspection.pieces import Pieces
from bert_jax.inspection.scan import Scan
from bert_jax.text.accents import Losses
from bert_jax.text.tokenizer import Tokenizer

OFTEN_UNKNOWN = 0.1  # a share of a document's tokens; a larger share of [UNK] counts as often
_FEW_TOKENS = 20_000  # with fewer held-out tokens (3,000 masked), a loss is uncertain by several hundredths
_OFTEN_CONTROL = 100  # control characters in a million bytes; more give a warning
CONTROL = "control_characters"  # an entry of the counts of ``corpora.hits``, and a check
_CASED = 0.2  # if letters with case are in a smaller share of the word-like tokens, nothing is said of case


# A closing tag; a tokenizer may put spaces between its parts. </s> and </unk> are signs of other tokenizers.
CLOSING = re.compile(r"< ?/ ?(?!s ?>|unk ?>)[a-z][\w-]{0,15} ?>", re.IGNORECASE)


def learned(size: int) -> str:
    """Return the advice to learn a vocabulary, for a user whose vocabulary has ``size`` pieces."""
    return (
        "--config.vocab.path= (empty) learns one from the text; if this one was, --config.vocab.size="
        f"{_round_up(2 * size)} makes it larger"
    )


def unknown(scan: Scan, document_tokens: np.ndarray) -> Check:
    """Check how many tokens are unknown, that is, words that the vocabulary cannot spell."""
    share = ratio(scan.unknown.sum(), scan.split.num_tokens)
    often = float((scan.unknown > OFTEN_UNKNOWN * document_tokens).mean()) if len(document_tokens) else 0.0
    status = worst([grade(share, 0.01, 0.05), grade(often, 0.01, 0.1)])
    return Check(
        "unknown_tokens",
        status,
        f"{percent(share)} of tokens are [UNK]; in {percent(often)} of documents more than"
        f" {percent(OFTEN_UNKNOWN)} are",
        f"the vocabulary lacks characters of this text: {learned(len(scan.token_counts))}",
        {"share": share, "documents_often": often},
    )


def words(scan: Scan, pieces: Pieces, found: Fertility) -> Check:
    """Check into how many pieces the vocabulary cuts a word on average, or a character of a script without spaces."""
    tokens = int(scan.token_counts[pieces.wordlike].sum())
    letters = ratio(scan.token_counts[pieces.single_continuation].sum(), tokens)
    cut = grade(found.value, 2.0, 2.5) if found.unit == "word" else grade(found.value, 1.1, 1.5)
    return Check(
        "tokens_a_word",
        worst([cut, grade(letters, 0.15, 0.3)]),
        f"{found}; {percent(letters)} of word pieces are single letters inside a word",
        f"the vocabulary is of another language or too small: {learned(len(scan.token_counts))}",
        {**found.facts, "single_letter_share": letters},
    )


def gain(new: Fertility, old: Fertility) -> Check:
    """Check whether the vocabulary makes fewer tokens of the text than the vocabulary of the model to start from."""
    times, line = compare_fertility(new, old)
    return Check(
        "gain_over_init",
        grade(times, 1.0, math.inf),
        line,
        "keep the vocabulary of --init: pretrain without --vocab",
        {"times_the_tokens": times, **{f"init_{name}": value for name, value in old.facts.items()}},
    )


def case(scan: Scan, pieces: Pieces, lowercase: bool, says: bool) -> list[Check]:
    """Check that vocabulary and text agree: both have capitals, or both are in lower case.

    There is no such check of text in a script without case.

    Args:
      says: whether the tokenizer's file says the case, so that a key cannot.
    """
    capital, small = pieces.capital, pieces.small
    tokens = scan.token_counts[capital | small].sum()
    if ratio(tokens, scan.token_counts[pieces.wordlike].sum()) < _CASED:
        return []
    longer = pieces.where(lambda text: len(text) > 1)  # letters alone are in every byte-level vocabulary
    in_vocabulary = ratio((capital & longer).sum(), ((capital | small) & longer).sum())
    used = ratio(scan.token_counts[capital].sum(), tokens)
    unknown = ratio(scan.unknown.sum(), scan.split.num_tokens)
    status: Status = "ok"
    fix = ""
    if lowercase and in_vocabulary > 0.05:
        status, fix = "bad", "this vocabulary is cased, and the text is lowercased: {}--config.vocab.lowercase=False"
    elif not lowercase and in_vocabulary < 0.001 and unknown > 0.001:
        status, fix = "bad", "this vocabulary has no capitals: {}--config.vocab.lowercase=True"
    elif not lowercase and in_vocabulary > 0.05 and used < 0.005:
        status = "warn"
        fix = "the text was lowercased before: take an uncased vocabulary, {}--config.vocab.lowercase=True"
    return [
        Check(
            "letter_case",
            status,
            f"{percent(in_vocabulary)} of pieces and {percent(used)} of tokens have capitals;"
            f" text is {'lowercased' if lowercase else 'kept as it is'}",
            fix.format("learn another with --config.vocab.path= " if says else ""),
            {"pieces_with_capitals": in_vocabulary, "tokens_with_capitals": used, "lowercase": lowercase},
        )
    ]


def accents(manifest: Mapping[str, Any], tokenizer: Tokenizer) -> list[Check]:
    """Return a warning if the vocabulary's rules take a part of many letters of the text, as the build counted them."""
    counts = manifest["text_hits"].get("losses")
    if not counts or not (line := tokenizer.losses(Losses(*counts))):
        return []
    fix = "learn a vocabulary that keeps them: --config.vocab.path= --config.vocab.strip_accents=False"
    return [Check("accents", "warn", line, fix, Losses(*counts)._asdict())]


def markup(texts: Sequence[str]) -> Check:
    """Check how many of the sampled sentences still have a closing tag of HTML, XML or WikiExtractor."""
    share = ratio(sum(CLOSING.search(text) is not None for text in texts), len(texts))
    return Check(
        "markup",
        grade(share, 0.005, 0.1),
        f"{percent(share)} of sentences have a closing tag, such as </p>",
        "take the text out of the HTML or XML first; of a wiki's dump --config.corpus.source=mediawiki does, and of"
        " WikiExtractor's files --config.corpus.source=text_files",
        {"share": share},
    )


def coverage(scan: Scan) -> Check:
    """Check how much of the vocabulary the text uses."""
    counts = np.sort(scan.token_counts)[::-1]
    unused, rare, often = float((counts == 0).mean()), float((counts < 5).mean()), int((counts >= 5).sum())
    share = np.cumsum(counts) / max(int(counts.sum()), 1)
    status, size, first = grade(rare, 0.5, 0.9), _round_up(often), min(1000, len(share))
    smaller = f"learn a smaller one: --config.vocab.path= --config.vocab.size={size}"
    other = smaller if size < len(counts) else "add text"
    return Check(
        "vocabulary_use",
        "warn" if status == "bad" else status,  # a small text with a published vocabulary is not a mistake
        f"{percent(unused)} of pieces never occur, {percent(rare)} fewer than 5 times; {first:,} pieces make"
        f" {percent(float(share[first - 1]))} of tokens",
        f"few pieces will be learned; keep a vocabulary that came with a model, otherwise {other}",
        {"unused": unused, "rare": rare},
    )


def few_heldout(tokens: int, fraction: float, build: str = "in a new build") -> str:
    """Return a line if the held-out text has too few ``tokens`` to evaluate on, else "".

    The line ends with a way to hold out more.

    Args:
      fraction: the share of the documents that is held out.
      build: where another share can be given.
    """
    if tokens >= _FEW_TOKENS:
        return ""
    more = min(0.3, round(fraction * _FEW_TOKENS / max(tokens, 1), 2))
    how = f"--config.corpus.heldout_fraction={more} holds out more" if more > fraction else "more text helps"
    return f"so little held-out text gives rough figures; {build}, {how}"


def _round_up(count: int) -> int:
    """Return ``count``, rounded up to a multiple of 1,000."""
    return max(1, -(-count // 1000)) * 1000


def vocabulary(manifest: Mapping[str, Any], tokenizer: Tokenizer | None, name: str) -> Check:
    """Check whether the corpus was made with the given vocabulary."""
    made_with = str(manifest["tokenizer_sha256"])
    facts = {"made_with": made_with, "found": tokenizer.sha256 if tokenizer else None}
    if tokenizer is None:
        return Check("vocabulary", "skip", "no vocabulary at hand", "name it with --vocab=vocab.txt", facts)
    if tokenizer.sha256 == made_with:
        return Check("vocabulary", "ok", f"{len(tokenizer.vocab):,} pieces, the vocabulary of the corpus", "", facts)
    figure = f"{name} is not the vocabulary of the corpus (sha256 {tokenizer.sha256[:12]}, not {made_with[:12]})"
    return Check(
        "vocabulary", "bad", figure, "name the one it was made with, or build again with --config.vocab.path", facts
    )


def encoding(hits: Mapping[str, int], text_bytes: int) -> Check:
    """Check for text that was read in another encoding than it was written in.

    Args:
      hits: the counts that the build made in the text itself (``corpora.hits``), because the tokenizer drops characters
        that cannot be shown.
      text_bytes: the size of the text in which the build counted.
    """
    hits = {name: count for name, count in hits.items() if name != CONTROL}  # ``control`` judges them
    rate = 1e6 * ratio(sum(hits.values()), text_bytes)
    counted = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in hits.items())
    return Check(
        "encoding",
        grade(rate, 5, 100),
        f"{rate:.3g} places in a million bytes look like text of another encoding: {counted}",
        "the files were decoded wrongly before: repair them (ftfy does) or fetch them again",
        {"places_a_million_bytes": rate, "text": dict(hits)},
    )


def control(hits: Mapping[str, int], text_bytes: int) -> Check:
    """Check for control characters. No encoding writes text with them, and WordPiece drops them."""
    count = hits.get(CONTROL, 0)
    rate = 1e6 * ratio(count, text_bytes)
    status: Status = "warn" if rate > _OFTEN_CONTROL else "ok"
    fix = "they mean nothing: tr -d '\\000-\\010\\013\\016-\\037\\177' < FILE > NEW drops control characters of ASCII"
    return Check(
        CONTROL,
        status,
        f"{count:,} control characters ({rate:.3g} a million bytes)",
        fix,
        {"places": count, "places_a_million_bytes": rate},
    )
