"""Says what a piece stands for: each kind of tokenizer has its own marks for the pieces that begin a word.

``space`` is how a piece shows the space before a word, "" if it does not. ``surface`` returns the text of a piece
without a mark, and whether the mark says that the piece continues a word. ``continues`` returns whether a piece belongs
to the word of the piece before it.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata

SPACE = "\u2581"  # stands for a space in the pieces of sentencepiece
_NOT_WHITE = "\x1c\x1d\x1e\x1f"  # white space for Python, but not for Unicode
BYTE = re.compile("<0x[0-9A-F]{2}>")  # a piece of sentencepiece that stands for a byte


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A prefix, ``##`` in WordPiece, marks the pieces that continue a word."""

    prefix: str = "##"
    space = ""

    def surface(self, piece: str) -> tuple[str, bool]:
        text = piece.removeprefix(self.prefix)
        return (text, True) if 0 < len(text) < len(piece) else (piece, False)

    def continues(self, piece: str) -> bool:
        return self.surface(piece)[1]


@dataclasses.dataclass(frozen=True)
class Underline:
    """U+2581 stands for the space before a word (sentencepiece).

    A piece also begins a word if it begins with an ideograph, or with a character that is neither letter nor digit, as
    in WordPiece.
    """

    space = SPACE

    def surface(self, piece: str) -> tuple[str, bool]:
        return piece.removeprefix(SPACE), not piece.startswith(SPACE)

    def continues(self, piece: str) -> bool:
        is_ideograph = piece != "" and unicodedata.name(piece[0], "").startswith("CJK ")
        return bool(BYTE.fullmatch(piece)) or (piece[:1].isalnum() and not is_ideograph)


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Each character of a piece stands for a byte of text, with the space before a word (byte-level BPE).

    A piece begins a word if it begins with white space, so punctuation belongs to the word that it touches.
    """

    @property
    def space(self) -> str:
        return ALPHABET[ord(" ")]

    def surface(self, piece: str) -> tuple[str, bool]:
        """Return the text and whether it continues a word. A part of a character is shown as bytes, such as <0xE2>."""
        data = _bytes(piece)
        stem = data.removeprefix(b" ")
        try:
            text = stem.decode()
        except UnicodeDecodeError:
            text = "".join(f"<0x{byte:02X}>" for byte in stem)
        return text, len(stem) == len(data)

    def continues(self, piece: str) -> bool:
        return not is_white(_bytes(piece).decode(errors="replace")[:1])


@dataclasses.dataclass(frozen=True)
class Suffix:
    """A suffix, ``</w>`` in GPT-1, marks the pieces that end a word. So a piece begins a word if it follows one.

    Every piece counts as a continuation. The surface of a piece with the suffix begins a word, as it often is a word.
    """

    suffix: str = "</w>"
    space = ""

    def surface(self, piece: str) -> tuple[str, bool]:
        text = piece.removesuffix(self.suffix)
        return (text, False) if 0 < len(text) < len(piece) else (piece, True)

    def continues(self, piece: str) -> bool:
        return True

    def ends(self, piece: str) -> bool:
        return not self.surface(piece)[1]


Marks = Prefix | Underline | Bytes | Suffix


def is_white(character: str) -> bool:
    """Return whether ``character`` is white space for Unicode."""
    return character.isspace() and character not in _NOT_WHITE


def printable(text: str) -> str:
    """Return ``text`` with line breaks and other control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _alphabet() -> tuple[str, ...]:
    """Return the printable character that stands for each byte (Radford et al. 2019, ``bytes_to_unicode``)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


ALPHABET = _alphabet()  # byte -> character
_BYTE_OF = {character: byte for byte, character in enumerate(ALPHABET)}


def _bytes(piece: str) -> bytes:
    """Return the bytes that ``piece`` stands for; its own UTF-8 bytes if one of its characters stands for no byte."""
    return bytes(_BYTE_OF[c] for c in piece) if _BYTE_OF.keys() >= set(piece) else piece.encode()
