"""What a user is told of a write to a disk that failed, and what can be done about it."""

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
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "have it writable"),
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
    """What the user should know of a write that failed."""
    return f"cannot write {target}: {error.strerror or error}; {write_advice(error)}"


def number_of(error: BaseException) -> int | None:
    """The ``errno`` of an error, also of one that says it in words alone, as those of C++ libraries do."""
    if (number := getattr(error, "errno", None)) is not None:
        return int(number)
    text = str(error).lower()
    return next((number for number in REMEDIES if os.strerror(number).lower() in text), None)


def reason(error: BaseException) -> str:
    """What an error of writing says, in a line; it has the words of its ``errno``, however long the line was."""
    line, number = first_line(error), number_of(error)
    return os.strerror(number) if number and os.strerror(number) not in line else line


def write_advice(error: BaseException) -> str:
    """What to do about an error of writing: to free space helps only where there is none."""
    code = number_of(error)
    if code in TAKEN:
        return "something else has that name: move it away or choose another place"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a place that you may write to"
    if code in FEW:
        return REMEDIES[code]  # whatever the place
    return f"{REMEDIES[code]} or choose another place" if code in REMEDIES else "choose another place"
