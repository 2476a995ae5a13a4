"""Counts traces of wrong encodings, so that users know of them before training.

The UTF-8 bytes are scanned while a corpus is built, because the tokenizer drops some characters. The scans run at
memory speed. Hits are found by patterns: some hits are wrong, and some places are missed.
"""

from __future__ import annotations

import collections
import re

# Control characters of ASCII, except tab, line feed, form feed and carriage return.
_CONTROL = bytes([*range(0x09), 0x0B, *range(0x0E, 0x20), 0x7F])

# "Ã©" for "é", "Ð²" for a Cyrillic letter, "â€" for a quotation mark, "å¤" for a part of an ideograph: UTF-8 that was
# read as Latin-1 or Windows-1252 and written as UTF-8. After the letters ÄÆÐâäåæçð, a space and the signs that good
# text has there (a quotation mark, a dot, ...) do not count.
_SIGN = rb"\xc2[\x80-\x9f\xa2-\xa6\xa8-\xaa\xac\xae-\xb6\xb8-\xba\xbc-\xbe]|\xe2\x82\xac"
_MOJIBAKE = re.compile(rb"\xc3(?:[\x82\x83]\xc2[\x80-\xbf]|[\x84\x86\x90\xa2\xa4-\xa7\xb0](?:" + _SIGN + rb"))")
_LOCKED = "锟斤拷".encode()  # replacement characters read as GBK
_REPLACEMENT = "\ufffd".encode()
_C1 = re.compile(rb"\xc2[\x80-\x84\x86-\x9f]")  # U+0085 is a line end


def text_hits(text: bytes) -> collections.Counter[str]:
    """Return the counts in UTF-8 ``text``.

    They are ``control_characters``, ``mojibake`` (places where UTF-8 was read as Latin-1 or Windows-1252, or
    replacement characters as GBK) and ``replacement_characters`` (U+FFFD).
    """
    control = len(text) - len(text.translate(None, _CONTROL))
    mojibake = replacement = 0
    if not text.isascii():
        control += len(_C1.findall(text))
        mojibake = len(_MOJIBAKE.findall(text)) + text.count(_LOCKED)
        replacement = text.count(_REPLACEMENT)
    return collections.Counter(control_characters=control, mojibake=mojibake, replacement_characters=replacement)
