"""The annotator ``leading_phrases``: the class of the phrase that begins a sentence, such as a connective.

A line of the file of phrases is ``PHRASE<TAB>CLASS``. Classes are numbered in the order in which the file names them.
The package has three files. ``connectives_en`` and ``connectives_zh`` list connectives that relate a sentence to the
sentence before it, by the four senses at the top of the Penn Discourse Treebank (Prasad et al. 2008): comparison,
contingency, expansion, temporal. ``relevance`` lists the three labels of the objective ``ir_relevance``.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_jax.corpora.phrases import SPACED
from bert_jax.errors import UserError
from bert_jax.storage import files, reading
from bert_jax.text.sentences import one_space

VERSION = 1  # raise this number whenever the same text gets other values
PIECES = 256  # a value is this number times the pieces of the phrase, plus the number of its class from 1 on
_COMMA = r"\s*[,，、]?"  # what follows the phrase is left out with it


@dataclasses.dataclass(frozen=True)
class Annotator:
    """Gives a sentence's first piece the class and the number of pieces of the phrase that begins the sentence.

    The longest phrase counts, whatever its case; a comma after it belongs to it. All other pieces have the value 0.
    """

    phrases: str = "connectives_en"  # or "connectives_zh", "relevance", or a file of lines PHRASE<TAB>CLASS
    dtype: ClassVar[str] = "uint16"

    def __post_init__(self) -> None:
        if not self.phrases:
            raise UserError("an annotator 'leading_phrases' of config.corpus.columns has no phrases; name a file")

    def identity(self) -> dict[str, Any]:
        """Return all that the values depend on: version and phrases with classes, but not the path of the file."""
        lines = "\n".join(f"{phrase}\t{name}" for phrase, name in _classes(self.phrases).items())
        names = list(dict.fromkeys(_classes(self.phrases).values()))
        return {"version": VERSION, "sha256": hashlib.sha256(lines.encode("utf-8")).hexdigest(), "classes": names}

    def annotate(self, sentences: Sequence[str], spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [self._values(text, places) for text, places in zip(sentences, spans, strict=True)]

    def _values(self, text: str, places: np.ndarray) -> np.ndarray:
        values, (pattern, numbers) = np.zeros(len(places), np.uint16), _pattern(self.phrases)
        if found := pattern.match(text):
            pieces = int(np.searchsorted(places[:, 0], found.end()))
            if 0 < pieces < PIECES:
                values[0] = PIECES * pieces + numbers.get(found[1].casefold(), -PIECES * pieces)
        return values


@functools.lru_cache(maxsize=8)
def _classes(phrases: str) -> dict[str, str]:
    """Return phrase, whatever its case -> class. Raises ``UserError`` if a line is not ``PHRASE<TAB>CLASS``."""
    own = Path(__file__).parent / f"{phrases}.txt"
    source = files.as_path(own if phrases.isidentifier() and own.is_file() else phrases)
    if not source.is_file():
        raise UserError(f"no file of phrases {phrases}; name a text file of lines PHRASE<TAB>CLASS, or connectives_en")
    lines = [line for line in reading.utf8_text(source, phrases, "file of phrases").splitlines() if line.strip()]
    pairs = [tuple(map(one_space, line.split("\t"))) for line in lines]
    if wrong := [line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2 or not all(pair)]:
        raise UserError(f"{phrases} has the line {wrong[0]!r}; PHRASE<TAB>CLASS is needed")
    if not 1 < len({name for _, name in pairs}) < PIECES:
        raise UserError(f"{phrases} has {len({name for _, name in pairs})} classes; 2 to {PIECES - 1} are needed")
    return {phrase.casefold(): name for phrase, name in pairs}


@functools.lru_cache(maxsize=8)
def _pattern(phrases: str) -> tuple[re.Pattern[str], dict[str, int]]:
    """Return what matches a phrase, with a comma, at the begin of a text, and the number of each phrase's class."""
    classes = _classes(phrases)
    names = list(dict.fromkeys(classes.values()))
    ends = {phrase: rf"(?![-'’]|{SPACED.pattern})" if SPACED.match(phrase[-1]) else "" for phrase in classes}
    longest = "|".join(re.escape(one) + ends[one] for one in sorted(classes, key=len, reverse=True))
    pattern = re.compile(rf"\s*({longest}){_COMMA}", re.IGNORECASE)
    return pattern, {phrase: 1 + names.index(name) for phrase, name in classes.items()}
