"""Explains failed writes to a disk: what a user reads, and what can be done."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from etils import epath

from bert_jax.errors import PassingError, UserError, first_line
from bert_jax.storage.retries import is_passing

FULL = (errno.ENOSPC, errno.EDQUOT)
FEW = (errno.EMFILE, errno.ENFILE)  # of open files: nothing is wrong with the one that was asked for
TAKEN = (errno.EISDIR, errno.EEXIST, errno.ENOTDIR, errno.ENOTEMPTY)
DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, *FEW)
REMEDIES = {  # what the user can do about an error of writing to a place
    **dict.fromkeys(FULL, "free some space"),
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
    **dict.fromkeys(FEW, "raise the limit on open files (ulimit -n)"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make it writable"),
}


@contextlib.contextmanager
def explained(target: epath.Path, only: tuple[int, ...] = ()) -> Iterator[None]:
    """Turn an ``OSError`` of writing ``target`` (of the kinds ``only``, if given) into a ``UserError``."""
    try:
        yield
    except OSError as error:
        if only and error.errno not in only:
            raise
        raise (PassingError if is_passing(error) else UserError)(cannot_write(target, error)) from error


def cannot_write(target: str | os.PathLike[str], error: OSError) -> str:
    """Return the message for a failed write: the path, the error, what to do."""
    return f"cannot write {target}: {error.strerror or error}; {write_advice(error)}"


def number_of(error: BaseException) -> int | None:
    """Return the ``errno`` of an error, also if only its text names it, as with errors of C++ libraries; else None."""
    if (number := getattr(error, "errno", None)) is not None:
        return int(number)
    text = str(error).lower()
    return next((number for number in REMEDIES if os.strerror(number).lower() in text), None)


def reason(error: BaseException) -> str:
    """Return a write error's text in one line; it contains the words of its ``errno``, however long the text is."""
    line, number = first_line(error), number_of(error)
    return os.strerror(number) if number and os.strerror(number) not in line else line


def write_advice(error: BaseException) -> str:
    """Return what to do about a write error. To free space is the advice only if space is what is missing."""
    code = number_of(error)
    if code in TAKEN:
        return "something else has that name: move it away or choose another place"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a place that you may write to"
    if code in FEW:
        return REMEDIES[code]  # whatever the place
    return f"{REMEDIES[code]} or choose another place" if code in REMEDIES else "choose another place"
