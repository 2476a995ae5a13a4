"""Counts into how many pieces a tokenizer cuts the words of a text, so that vocabularies can be compared.

Rust et al. 2021 (arXiv 2012.15613, section 3) define fertility and the share of words that stay whole. A word is the
text between two spaces, without the marks at its ends. Text in a script without spaces is counted by characters.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.corpora.store import CorpusSplit
from bert_jax.inspection.check import percent, ratio
from bert_jax.text.encoded import places_of_text
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.words import is_spaced

_SENTENCES, _LONGEST = 4_096, 512  # of a corpus; tokens of a sentence
SPOILED = 0.001  # a smaller share of spoiled units is not mentioned
_BYTES = re.compile("(<0x[0-9A-F]{2}>)+")


@dataclasses.dataclass(frozen=True)
class Fertility:
    """The counts of a text that a tokenizer has cut."""

    unit: str  # "word", or "character" if most of the text is in a script without spaces
    units: int
    unit_pieces: int  # pieces that begin in a unit: marks around words are left out
    whole: int  # units that are not cut
    kept: int  # units that are neither cut nor changed by stripped accents
    spoiled: int  # units that stripped accents change
    pieces: int
    unknown: int  # pieces that are [UNK]
    bytes: int  # pieces that are parts of characters
    lossy: int = 0  # 1 if stripped accents had changed the text before

    @property
    def value(self) -> float:
        return ratio(self.unit_pieces, self.units)

    @property
    def facts(self) -> dict[str, str | float]:
        shares = {"unknown_share": ratio(self.unknown, self.pieces), "byte_share": ratio(self.bytes, self.pieces)}
        units = {"whole_share": ratio(self.kept, self.units), "spoiled_share": ratio(self.spoiled, self.units)}
        return {"unit": self.unit, "fertility": self.value, **units, **shares}

    def __str__(self) -> str:
        lost, what = (self.bytes, "parts of characters") if self.bytes else (self.unknown, "[UNK]")
        left = ", as stripped accents leave them," if self.lossy else ""
        whole = f"{percent(ratio(self.kept, self.units))} of {self.unit}s{left} stay whole"
        if self.spoiled > SPOILED * self.units:
            whole += f", {percent(ratio(self.spoiled, self.units))} are changed by stripped accents"
        return (
            f"{self.value:.2f} pieces a {self.unit}, {whole}, {percent(ratio(lost, self.pieces))} of pieces are {what}"
        )


def measure_fertility(tokenizer: Tokenizer, texts: Sequence[str], special_tokens_in_text: bool = False) -> Fertility:
    """Return the fertility of ``tokenizer`` on ``texts``, which are sentences."""
    by_character = not is_spaced(texts)
    in_bytes = np.array([bool(_BYTES.fullmatch(text)) for text, _ in tokenizer.surfaces])
    totals = np.zeros(8, np.int64)
    for text in texts:
        text = text if by_character else tokenizer.joiner + text  # a sentence in running text
        encoded = tokenizer.encode(text, special_tokens_in_text=special_tokens_in_text)
        inner = places_of_text(encoded, tokenizer.around)
        ids = np.array(encoded.input_ids[inner], np.int64)
        begins = np.array([start for start, _ in encoded.offsets[inner]], np.int64)
        spans = [match.span() for match in re.finditer(r"\S", text)] if by_character else list(_words(text))
        starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
        counts = np.searchsorted(begins, stops) - np.searchsorted(begins, starts)  # pieces that begin in each unit
        spoiled = np.array([tokenizer.spoils(text[start:stop]) for start, stop in spans], bool)
        whole = counts <= 1
        of_units = (len(spans), counts.sum(), whole.sum(), (whole & ~spoiled).sum(), spoiled.sum())
        totals += np.array([*of_units, len(ids), (ids == tokenizer.unk_id).sum(), in_bytes[ids].sum()], np.int64)
    return Fertility("character" if by_character else "word", *totals.tolist())


def compare_fertility(new: Fertility, old: Fertility) -> tuple[float, str]:
    """Return the tokens of ``new`` over the tokens of ``old``, both of the same text, and a line that says it."""
    times = ratio(new.pieces, old.pieces)
    return times, f"{times:.2f} times the tokens that the vocabulary of --init makes of the text: {old}"


def decoded_sentences(split: CorpusSplit, tokenizer: Tokenizer) -> list[str]:
    """Return sentences from all over ``split``, at most ``_SENTENCES``, as ``tokenizer`` decodes them."""
    numbers = np.unique(np.linspace(0, split.num_sentences - 1, _SENTENCES).astype(np.int64))
    starts = np.asarray(split.sentence_offsets)[numbers]
    lengths = np.minimum(np.asarray(split.sentence_offsets)[numbers + 1] - starts, _LONGEST)
    return [tokenizer.decode(ids) for ids in np.split(split.read(starts, lengths), np.cumsum(lengths)[:-1])]


def _words(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each word of ``text`` that has a letter or a digit."""
    for match in re.finditer(r"\S+", text):
        kept = [i for i in range(*match.span()) if unicodedata.category(text[i])[0] in "LNM"]
        if any(text[i].isalnum() for i in kept):
            yield kept[0], kept[-1] + 1
