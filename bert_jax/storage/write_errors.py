"""Explains failed writes to the user: what failed, and what can be done about it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from etils import epath

from bert_jax.errors import PassingError, UserError, first_line
from bert_jax.storage.reading import NotPlainError
from bert_jax.storage.retries import is_passing

FULL = (errno.ENOSPC, errno.EDQUOT)
FEW = (errno.EMFILE, errno.ENFILE)  # too many files are open; nothing is wrong with the file that was to be opened
_TAKEN = (errno.EISDIR, errno.EEXIST, errno.ENOTDIR, errno.ENOTEMPTY)
DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, *FEW)
REMEDIES = {  # errno -> what the user can do about the failed write
    **dict.fromkeys(FULL, "free some space"),
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
    **dict.fromkeys(FEW, "raise the limit on open files (ulimit -n)"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make it writable"),
}


@contextlib.contextmanager
def explain(target: epath.Path, only: tuple[int, ...] = ()) -> Iterator[None]:
    """Context manager that turns an ``OSError`` into a ``UserError`` that explains why ``target`` cannot be written.

    Args:
      only: the ``errno`` values of the errors to turn; if empty, every ``OSError`` is turned.
    """
    try:
        yield
    except OSError as error:
        if only and error.errno not in only:
            raise
        if isinstance(error, NotPlainError):
            raise UserError(f"cannot write {error.filename}: {error.strerror}; remove it") from error
        kind = PassingError if is_passing(error) else UserError
        raise kind(f"cannot write {target}: {error.strerror or error}; {write_advice(error)}") from error


def number_of(error: BaseException) -> int | None:
    """Return the ``errno`` of an error, or None if the error has no number.

    Errors of C++ libraries have the system's words for the number in their text.
    """
    if (number := getattr(error, "errno", None)) is not None:
        return int(number)
    text = str(error).lower()
    return next((number for number in REMEDIES if os.strerror(number).lower() in text), None)


def reason(error: BaseException) -> str:
    """Return the text of a write error in one line: its first line, or the system's words for ``errno``.

    The words for ``errno`` are used if the first line does not contain them.
    """
    line, number = first_line(error), number_of(error)
    return os.strerror(number) if number and os.strerror(number) not in line else line


def write_advice(error: BaseException) -> str:
    """Return what the user can do about a write error. Freeing space is advised only if the disk is full."""
    code = number_of(error)
    if code in _TAKEN:
        return "something else has that name: move it away or choose another place"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a place that you may write to"
    if code in FEW:
        return REMEDIES[code]  # another place would not help
    return f"{REMEDIES[code]} or choose another place" if code in REMEDIES else "choose another place"
