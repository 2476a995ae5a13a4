"""Repeats requests to an object store, at growing intervals, until temporary trouble has passed.

The stores' own clients do too little. gcsfs tries six times within about 35 s and raises errors that are not an
``OSError``; by default it waits forever for a store that does not answer. s3fs treats some answers with status 503 as
permanent errors. ``isdir`` and ``isfile`` of both clients return False if the store did not answer.

Temporary trouble never leaves this module as an ``OSError``, so that callers cannot mistake it for a missing or damaged
file.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import errno
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from bert_jax.errors import PassingError, UserError
from bert_jax.program import duration, warn

T = TypeVar("T")
SECONDS = "BERT_JAX_STORE_SECONDS"  # environment variable: for how many seconds requests are repeated
_DEFAULT_SECONDS = 600.0
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds between two tries; each wait is twice the wait before it
_QUIET_SECONDS = 60.0  # least seconds between two lines about the same store
# For so long after a store was given up, its requests fail at once; else a command that is ending would wait for each.
GIVEN_UP_SECONDS = 60.0
_PASSING = (errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN)
_PASSING_WORDS = ("UNAVAILABLE", "DEADLINE_EXCEEDED")  # in error messages of the libraries that write to stores
_PASSING_STATUS = (408, 429, 500, 502, 503, 504)  # HTTP status codes
_BUSY = (errno.EBUSY, errno.EREMOTEIO)  # s3fs raises these for 503, 409 (another request is under way) and 500
_TRANSPORTS = ("aiohttp", "requests", "urllib3")  # every error of these packages is a network error
_TRANSPORT_ERRORS = ("ConnectionError", "HTTPClientError", "ResponseParserError", "ChecksumError", "TransportError")
_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)  # errors of the local disk to which a copy is written


def is_passing(error: BaseException) -> bool:
    """Return whether an error means that a store or the network did not answer, so that a later try may succeed."""
    if isinstance(error, PassingError | ConnectionError | TimeoutError) or getattr(error, "errno", None) in _PASSING:
        return True
    return any(word in str(error) for word in _PASSING_WORDS)


def _is_trouble(error: Exception) -> bool:
    """Return whether an error that the client of a store has raised is temporary trouble; see ``is_passing``."""
    if (status := _status(error)) is not None:
        return status in _PASSING_STATUS
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__]
    transport = any(package in _TRANSPORTS or name in _TRANSPORT_ERRORS for package, name in kinds)
    return transport or is_passing(error) or getattr(error, "errno", None) in _BUSY


def _status(error: BaseException) -> int | None:
    """Return the HTTP status code in an error of a store's client; None if it has none."""
    answers = (getattr(one, "response", None) for one in (error, error.__cause__))  # botocore's errors have it
    statuses = [one.get("ResponseMetadata", {}).get("HTTPStatusCode") for one in answers if isinstance(one, dict)]
    for status in (getattr(error, "code", None), getattr(error, "status", None), *statuses):
        if isinstance(status, int | str) and str(status).isdecimal() and int(status) >= 400:
            return int(status)
    return None


@dataclasses.dataclass
class _Store:
    """The known state of a store. Times are in seconds of the monotonic clock."""

    since: float | None = None  # start of its present trouble; None if it answers
    reported: float = -math.inf  # when a line about the store was last printed
    answered: float = -math.inf  # when the store last answered
    given_up: float = -math.inf  # when the store was last given up, because it answered no request
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


_STORES: dict[str, _Store] = {}
_WAITS = contextvars.ContextVar("waits", default=True)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Context manager: inside the block, this thread's requests are not repeated.

    Use it for requests whose failure does not matter.
    """
    token = _WAITS.set(False)
    try:
        yield
    finally:
        _WAITS.reset(token)


def ask(url: str, request: Callable[[], T], raw: tuple[type[OSError], ...] = ()) -> T:
    """Call ``request``, repeatedly if the store does not answer, and return the store's answer.

    Args:
      url: the object or folder that the request is about.
      raw: classes of errors to raise unchanged.

    Raises:
      FileNotFoundError, FileExistsError: the store says that ``url`` does not exist, or exists already.
      PassingError: the store did not answer for ``BERT_JAX_STORE_SECONDS``.
      UserError: the store refuses the request.
    """
    store = _STORES.setdefault("/".join(url.split("/", 3)[:3]), _Store())
    start, wait, reported = time.monotonic(), FIRST_WAIT, False
    if start < store.given_up + GIVEN_UP_SECONDS:
        raise PassingError(f"{url}: the store does not answer; run the same command again to go on")
    while True:
        try:
            answer = request()
        except Exception as error:
            if not _is_trouble(error):
                store.since, store.answered = None, time.monotonic()
                raise _explained(url, error, raw) from error
            with store.lock:
                start = store.since = min(start, store.since or start)
            if not _WAITS.get():
                raise PassingError(f"{url}: the store does not answer ({_said(error)})") from error
            left = start + _patience() - time.monotonic()
            if left <= 0:
                if store.answered < start:
                    store.given_up = time.monotonic()
                raise PassingError(
                    f"{url}: the store has not answered for {duration(time.monotonic() - start)} ({_said(error)}); "
                    "what it holds is whole: run the same command again to go on"
                ) from error
            reported = reported or _tell(
                store, f"{url}: the store does not answer ({_said(error)}); trying again for {duration(left)}"
            )
            time.sleep(min(wait * random.uniform(0.5, 1), left))
            wait = min(2 * wait, LONGEST_WAIT)
        else:
            store.since, store.answered = None, time.monotonic()
            if reported:
                warn(f"{url}: the store answers again, after {duration(time.monotonic() - start)}")
            return answer


def _tell(store: _Store, line: str) -> bool:
    """Print ``line`` unless a line about this store was printed a moment ago; return True if ``line`` was printed.

    This avoids a flood of messages when many requests fail together.
    """
    with store.lock:
        if time.monotonic() - store.reported < _QUIET_SECONDS:
            return False
        store.reported = time.monotonic()
    warn(line)
    return True


def _explained(url: str, error: Exception, raw: tuple[type[OSError], ...]) -> Exception:
    """Return the exception to raise for an error that would recur if the request were repeated."""
    if isinstance(error, (UserError, *raw)) or getattr(error, "errno", None) in _LOCAL:
        return error
    if isinstance(error, FileNotFoundError | FileExistsError):
        code = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EEXIST
        return OSError(code, os.strerror(code), url)  # Python makes it an error of the same class
    return UserError(
        f"{url}: the store refuses ({_said(error)}); check that the bucket is there, and your rights to it"
    )


def _said(error: Exception) -> str:
    """Return the text of an error in one short line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def _patience() -> float:
    """Return for how many seconds requests are repeated while a store does not answer."""
    try:
        return float(os.environ.get(SECONDS) or _DEFAULT_SECONDS)
    except ValueError:
        raise UserError(f"{SECONDS} is {os.environ[SECONDS]!r}; a number of seconds is needed") from None
