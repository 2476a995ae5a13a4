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

# "Ã©" for "é", "â€" for a quotation mark: UTF-8 that was read as Latin-1 or Windows-1252 and written as UTF-8.
_MOJIBAKE = re.compile(rb"\xc3(?:[\x82\x83]\xc2[\x80-\xbf]|\xa2(?:\xe2\x82\xac|\xc2\x80))")
_LOCKED = "锟斤拷".encode()  # replacement characters read as GBK
_REPLACEMENT = "\ufffd".encode()
_C1 = re.compile(rb"\xc2[\x80-\x84\x86-\x9f]")  # U+0085 is a line end


def private_hits(text: bytes | str) -> dict[str, int]:
    """Return the number of e-mail addresses and telephone numbers in ``text``: ``{"e-mail": n, "phone": n}``."""
    data = _bytes(text)
    emails = 0
    if b"@" in data:
        emails = sum(
            _BEFORE_AT.match(data, match.start() - 1) is not None for match in _DOMAIN.finditer(data) if match.start()
        )
    return {"e-mail": emails, "phone": _phones(data)}


def _phones(data: bytes) -> int:
    flat = data.translate(_DIGITS_AS_ZERO)
    if b"00000" not in flat and b"00 00" not in flat and b"000-" not in flat and b"0.000" not in flat:
        return 0
    count = sum(len(pattern.findall(flat)) for sign, pattern in _PHONES if sign in flat)
    if b"00000000000" in flat:
        count += sum(not data[m.start() - 1 : m.start()].isdigit() for m in _CHINESE_MOBILE.finditer(data))
    return count


def encoding_hits(text: bytes | str) -> dict[str, int]:
    """Return the number of traces of a wrong encoding in ``text``, by kind.

    The kinds are ``replacement_characters`` (U+FFFD), ``control_characters`` and ``mojibake`` (places where UTF-8 was
    read as Latin-1 or Windows-1252, or replacement characters as GBK).
    """
    data = _bytes(text)
    control = len(data) - len(data.translate(None, _CONTROL))
    if data.isascii():
        return {"replacement_characters": 0, "control_characters": control, "mojibake": 0}
    return {
        "replacement_characters": data.count(_REPLACEMENT),
        "control_characters": control + len(_C1.findall(data)),
        "mojibake": len(_MOJIBAKE.findall(data)) + data.count(_LOCKED),
    }


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "replace")


def text_hits(text: bytes | str) -> dict[str, dict[str, int]]:
    """Return the counts of ``private_hits`` and ``encoding_hits``: ``{"private": {...}, "encoding": {...}}``.

    The manifest's entry ``text_hits`` has this form.
    """
    data = _bytes(text)
    return {"private": private_hits(data), "encoding": encoding_hits(data)}


def add(total: dict[str, dict[str, int]], more: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the sum of two results of ``text_hits``; ``{}`` counts as all zeros."""
    groups = total.keys() | more.keys()
    return {
        group: {
            name: total.get(group, {}).get(name, 0) + more.get(group, {}).get(name, 0)
            for name in sorted(total.get(group, {}).keys() | more.get(group, {}).keys())
        }
        for group in sorted(groups)
    }
