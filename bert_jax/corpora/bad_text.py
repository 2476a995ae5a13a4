"""Defines the error for unreadable text. A source raises it, or skips and counts the text if ``bad_text`` is "skip"."""

from __future__ import annotations

from typing import Literal, TypeAlias

from bert_jax.corpora.source import Skipped, below, shown
from bert_jax.errors import UserError

BadText: TypeAlias = Literal["error", "skip"]  # the option ``bad_text`` of a source
ODD = ("\ufffd", *(chr(i) for i in range(32) if chr(i) not in "\t\n\x0b\x0c\r"))
SKIP_HINT = "or leave out and count such text with config.corpus.options.bad_text='skip'"


class BadTextError(UserError):
    """Raised if a source holds something that is not text.

    Args:
      where: the file with the byte offset or record, which becomes the place of a ``Skipped`` entry.
      reason: one of a small fixed set, such as "not UTF-8".
      message: one line that says what was found and what to do.
    """

    def __init__(self, where: str, reason: str, message: str) -> None:
        self.without_hint = shown(message)  # for readers that do not have the option ``bad_text``
        super().__init__(f"{self.without_hint}, {SKIP_HINT}")
        self._made_of = (where, reason, message)
        self._skipped = Skipped(below(where), reason)

    def __reduce__(self) -> tuple[type[BadTextError], tuple[str, str, str]]:
        """Return how to pickle the error, so that a worker process can send it to the main process."""
        return type(self), self._made_of

    def counted(self, bad_text: BadText, where: str = "") -> Skipped:
        """Return a ``Skipped`` entry if ``bad_text`` is "skip"; otherwise raise this error.

        Args:
          where: if given, the place to name in the entry instead of the error's own.
        """
        if bad_text == "error":
            raise self
        return self._skipped._replace(where=where) if where else self._skipped


def decode(raw: bytes, path: str, offset: int) -> str:
    """Return ``raw`` as text, without a byte order mark at the start.

    Args:
      raw: the bytes found at byte ``offset`` of the unpacked file ``path``.

    Raises:
      BadTextError: there is a NUL byte, or bytes are not UTF-8; the error has the offset of the first such byte.
    """
    nul = raw.find(b"\0")
    if nul >= 0:
        raise BadTextError(
            f"{path}@{offset + nul}",
            "NUL byte",
            f"{path} has a NUL byte at byte offset {offset + nul}: {_guess(raw, offset)}; convert it, leave it out of"
            " config.corpus.options.paths",
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = offset + error.start
        raise BadTextError(
            f"{path}@{at}",
            "not UTF-8",
            f"{path} is not UTF-8 at byte offset {at} (byte 0x{raw[error.start]:02x}): {_guess(raw, offset)};"
            " convert it to UTF-8, leave it out of config.corpus.options.paths",
        ) from None
    return text.removeprefix("\ufeff") if offset == 0 else text


def foreign(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is binary or entirely in another encoding; it is then skipped.

    True if more than one character in ten is a control character or not UTF-8. Text with a few bad letters is kept.
    """
    text = head.decode("utf-8", "replace")
    return 10 * sum(map(text.count, ODD)) > len(text)


def _guess(raw: bytes, offset: int) -> str:
    """Return text for a message: the likely encoding of ``raw`` and a command to convert it, or that none was found."""
    encoding = None
    if offset == 0 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "UTF-16"
    elif len(raw) >= 4 and raw.count(0) > 0.2 * len(raw):
        even, odd = raw[offset % 2 :: 2].count(0), raw[1 - offset % 2 :: 2].count(0)
        encoding = "UTF-16LE" if odd > 10 * even else "UTF-16BE" if even > 10 * odd else None
    elif b"\0" not in raw:
        encoding = _single_bytes(raw)
    if encoding is None:
        return "it is binary, damaged or in another encoding"
    return f"it looks like {encoding} (iconv -f {encoding} -t UTF-8 FILE > NEW)"


def _single_bytes(raw: bytes) -> str | None:
    """Return "WINDOWS-1252" if over 90% of the non-ASCII bytes are common letters or marks of that encoding, else None.

    Latin-1 text is recognised too, because its letters have the same bytes in Windows-1252.
    """
    try:
        odd = [c for c in raw.decode("cp1252") if ord(c) > 127]
    except UnicodeDecodeError:
        return None
    western = sum(c in "àáâãäåæçèéêëìíîïñòóôõöøùúûüýœßÀÁÄÅÆÇÈÉÊÑÒÓÔÖØÚÜ‘’“”–—…•€£«»°©®\xa0" for c in odd)
    return "WINDOWS-1252" if western > 0.9 * len(odd) and len(odd) < 0.3 * len(raw) else None
