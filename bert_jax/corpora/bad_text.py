"""Defines the error for unreadable text. A source raises it, or skips and counts the text if ``bad_text`` is "skip"."""

from __future__ import annotations

from typing import Literal, TypeAlias

from bert_jax.corpora.source import Skipped, below, display_path
from bert_jax.errors import UserError

BadText: TypeAlias = Literal["error", "skip"]  # the option ``bad_text`` of a source
_ODD = ("\ufffd", *(chr(i) for i in range(32) if chr(i) not in "\t\n\x0b\x0c\r"))
_SKIP_HINT = "or --config.corpus.options.bad_text=skip leaves such text out and counts it"


class BadTextError(UserError):
    """Raised if a source holds something that is not text.

    Args:
      where: the file with the byte offset or record, which becomes the place of a ``Skipped`` entry.
      reason: one of a small fixed set, such as "not UTF-8".
      message: one line that says what was found and what to do.
    """

    def __init__(self, where: str, reason: str, message: str) -> None:
        super().__init__(where, reason, message)  # all three, so that a worker process can pickle the error
        self.without_hint = display_path(message)  # for readers that do not have the option ``bad_text``
        self._skipped = Skipped(below(where), reason)

    def __str__(self) -> str:
        return f"{self.without_hint}, {_SKIP_HINT}"

    def skip_or_raise(self, bad_text: BadText, where: str = "") -> Skipped:
        """Return a ``Skipped`` entry if ``bad_text`` is "skip"; otherwise raise this error.

        Args:
          where: if given, the place to name in the entry instead of the error's place.
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
    if (nul := raw.find(b"\0")) >= 0:
        raise _error(path, offset + nul, "NUL byte", "has a NUL byte", "it is UTF-16, binary or damaged", "UTF-16")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{raw[error.start]:02x}"
        raise _error(path, offset + error.start, "not UTF-8", "is not UTF-8", byte) from None
    return text.removeprefix("\ufeff") if offset == 0 else text


def _error(path: str, offset: int, reason: str, found: str, detail: str, code: str = "WINDOWS-1252") -> BadTextError:
    advice = f"convert it (such as with: iconv -f {code} -t UTF-8 FILE > NEW), or leave it out of"
    message = f"{path} {found} at byte offset {offset} ({detail}); {advice} config.corpus.options.paths"
    return BadTextError(f"{path}@{offset}", reason, message)


def is_foreign(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is binary or entirely in another encoding; it is then skipped.

    It is foreign if more than one character in ten is a control character or not UTF-8. So a few bad letters do not
    make it foreign.
    """
    text = head.decode("utf-8", "replace")
    return 10 * sum(map(text.count, _ODD)) > len(text)
