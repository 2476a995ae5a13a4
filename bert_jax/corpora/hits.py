"""Counts e-mail addresses, telephone numbers and traces of wrong encodings, so that users know of them before training.

The UTF-8 bytes are scanned while a corpus is built, because the tokenizer drops some characters. The scans run at
memory speed. Hits are found by patterns: some hits are wrong, and some places are missed.
"""

from __future__ import annotations

import re

_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
# Control characters of ASCII, except tab, line feed, form feed and carriage return.
_CONTROL = bytes([*range(0x09), 0x0B, *range(0x0E, 0x20), 0x7F])

_DOMAIN = re.compile(rb"@[A-Za-z0-9][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")
_BEFORE_AT = re.compile(rb"[A-Za-z0-9_%+-]")
# (fixed string, pattern), for text in which every digit was replaced by 0. The pattern is searched only if the fixed
# string, which is found fast, occurs.
_PHONES = (
    (b"000-0000", re.compile(rb"(?<![0-])(?:\(000\) ?|000-)000-0000(?![0-])")),  # (555) 123-4567, 555-123-4567
    (b"000.000.0000", re.compile(rb"(?<![0.])000\.000\.0000(?![0.]0|0)")),
    (b"000 000 0000", re.compile(rb"(?<![0+] |.0)000 000 0000(?! ?0)")),
    (b"00 00 00 00 00", re.compile(rb"(?<!0)(?<!0 )00 00 00 00 00(?! ?0)")),  # 01 23 45 67 89
    (b"+0", re.compile(rb"\+0{1,3}[ .-]?(?:\(0{1,4}\)[ .-]?)?0{1,5}(?:[ .-]?0{2,5}){1,4}(?!0)")),  # +49 30 1234567
)
_CHINESE_MOBILE = re.compile(rb"1[3-9]\d{9}(?!\d)")

# "Ã©" for "é", "Ð²" for a Cyrillic letter, "â€" for a quotation mark, "å¤" for a part of an ideograph: UTF-8 that was
# read as Latin-1 or Windows-1252 and written as UTF-8. After the letters ÄÆÐâäåæçð, a space and the signs that good
# text has there (a quotation mark, a dot, ...) do not count.
_SIGN = rb"\xc2[\x80-\x9f\xa2-\xa6\xa8-\xaa\xac\xae-\xb6\xb8-\xba\xbc-\xbe]|\xe2\x82\xac"
_MOJIBAKE = re.compile(rb"\xc3(?:[\x82\x83]\xc2[\x80-\xbf]|[\x84\x86\x90\xa2\xa4-\xa7\xb0](?:" + _SIGN + rb"))")
_LOCKED = "锟斤拷".encode()  # replacement characters read as GBK
_REPLACEMENT = "\ufffd".encode()
_C1 = re.compile(rb"\xc2[\x80-\x84\x86-\x9f]")  # U+0085 is a line end


def text_hits(text: bytes) -> dict[str, dict[str, int]]:
    """Return the counts in UTF-8 ``text``, as the manifest has them: ``{"encoding": {...}, "private": {...}}``.

    Traces of a wrong encoding are ``control_characters``, ``mojibake`` (places where UTF-8 was read as Latin-1 or
    Windows-1252, or replacement characters as GBK) and ``replacement_characters`` (U+FFFD). Personal data are
    ``e-mail`` addresses and numbers of a ``phone``.
    """
    control = len(text) - len(text.translate(None, _CONTROL))
    mojibake = replacement = 0
    if not text.isascii():
        control += len(_C1.findall(text))
        mojibake = len(_MOJIBAKE.findall(text)) + text.count(_LOCKED)
        replacement = text.count(_REPLACEMENT)
    return {
        "encoding": {"control_characters": control, "mojibake": mojibake, "replacement_characters": replacement},
        "private": {"e-mail": _emails(text), "phone": _phones(text)},
    }


def add(total: dict[str, dict[str, int]], more: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the sum of two results of ``text_hits``."""
    return {
        group: {name: count + more[group][name] for name, count in counts.items()} for group, counts in total.items()
    }


def _emails(data: bytes) -> int:
    if b"@" not in data:
        return 0
    return sum(_BEFORE_AT.match(data, m.start() - 1) is not None for m in _DOMAIN.finditer(data) if m.start())


def _phones(data: bytes) -> int:
    flat = data.translate(_DIGITS_AS_ZERO)
    if b"00000" not in flat and b"00 00" not in flat and b"000-" not in flat and b"0.000" not in flat:
        return 0
    count = sum(len(pattern.findall(flat)) for sign, pattern in _PHONES if sign in flat)
    if b"00000000000" in flat:
        count += sum(not data[m.start() - 1 : m.start()].isdigit() for m in _CHINESE_MOBILE.finditer(data))
    return count
