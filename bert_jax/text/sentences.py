"""Splits running text into sentences."""

from __future__ import annotations

from collections.abc import Iterator

import sentencex

from bert_jax.errors import UserError

# Characters split at a time, since the splitter takes quadratic time on Chinese and on quotes that never close.
WINDOW = 1 << 12
_LONGEST = 1 << 16  # the most characters of a sentence in text that is already split into sentences
# ISO 639-1, with the few that it has withdrawn and that are still in use
LANGUAGES = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo
es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg
ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn
no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw
ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""


def check_language(code: str, where: str) -> None:
    """Raise ``UserError`` unless ``code``, the value of the config key ``where``, is one of ``LANGUAGES``."""
    if code not in LANGUAGES.split():
        raise UserError(f"{where} is {code!r}; an ISO 639-1 code of two letters is needed, such as 'en' or 'zh'")


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Return the sentences of ``text`` in order, without empty sentences; runs of white space become one space.

    A line break is treated like any other white space, so hard-wrapped prose is joined before it is split. Callers that
    know the paragraphs pass each separately. ``language`` is an ISO 639-1 code; a language without its own rules gets
    the rules of a related language, or general rules. If no sentence ends within ``WINDOW`` characters, the text is cut
    there, at white space if there is some.
    """
    if len(text) <= WINDOW:
        return _split(text, language)
    sentences: list[str] = []
    rest = ""  # the last sentence of a window may continue in the next
    for window in windows(text, WINDOW):
        sentences += _split(rest + window, language)
        rest = sentences.pop() if len(sentences) and len(sentences[-1]) < WINDOW // 2 else ""
        if rest and window[-1].isspace():
            rest += " "
    return [*sentences, rest.strip()] if rest.strip() else sentences


def one_space(text: str) -> str:
    """Return ``text`` with one space for each run of white space, and none at its ends."""
    joined = text.replace("\r\n", " ").replace("\n", " ").strip()
    if "  " in joined or not joined.isprintable():  # faster than splitting; a space is the only printable white space
        return " ".join(text.split())
    return joined


def windows(text: str, size: int = _LONGEST) -> Iterator[str]:
    """Yield ``text`` in parts of ``size`` characters or a little less, cut after white space if there is some."""
    start = 0
    while len(text) - start > size:
        head = text[start : start + size]
        word = max(head.rfind(" "), head.rfind("\n")) + 1
        stop = start + (word if word > size // 2 else size)
        yield text[start:stop]
        start = stop
    yield text[start:]


def _split(text: str, language: str) -> list[str]:
    joined = one_space(text)
    return [s for s in map(str.strip, sentencex.segment(language, joined)) if s] if joined else []
