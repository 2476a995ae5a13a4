"""Waits out passing trouble of an object store: the request is repeated, at growing intervals.

The stores' own clients do too little. gcsfs tries six times within about 35 s and raises errors that are not an
``OSError``; by default it waits for ever for a store that is silent. s3fs takes some answers of status 503 for lasting
errors; and ``isdir`` and ``isfile`` of both answer False if the store did not answer.

Trouble never leaves this module as an ``OSError``, so nobody can take it for a file that is missing or damaged.
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
SECONDS = "BERT_JAX_STORE_SECONDS"  # the environment variable with the seconds for which trouble is waited out
DEFAULT_SECONDS = 600.0
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds from one try to the next; each is twice the one before
QUIET_SECONDS = 60.0  # from one line about a store to the next
GIVEN_UP_SECONDS = 60.0  # no request to a store for so long after it was given up, or an ending command waits at each
PASSING = (errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN)
PASSING_WORDS = ("UNAVAILABLE", "DEADLINE_EXCEEDED")  # as the libraries that write to stores have it
PASSING_STATUS = (408, 429, 500, 502, 503, 504)  # of HTTP
BUSY = (errno.EBUSY, errno.EREMOTEIO)  # s3fs raises these for 503, 409 (another request is under way) and 500
TRANSPORTS = ("aiohttp", "requests", "urllib3")  # every error of these packages is one of the network
TRANSPORT_ERRORS = ("ConnectionError", "HTTPClientError", "ResponseParserError", "ChecksumError", "TransportError")
LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)  # of the disk that a copy goes to


def is_passing(error: BaseException) -> bool:
    """Return whether a store, or the network to it, did not answer, so that the same may go well later."""
    if isinstance(error, PassingError | ConnectionError | TimeoutError) or getattr(error, "errno", None) in PASSING:
        return True
    return any(word in str(error) for word in PASSING_WORDS)


def _is_trouble(error: Exception) -> bool:
    """Return ``is_passing`` of an error that the client of a store has raised."""
    if (status := _status(error)) is not None:
        return status in PASSING_STATUS
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__]
    transport = any(package in TRANSPORTS or name in TRANSPORT_ERRORS for package, name in kinds)
    return transport or is_passing(error) or getattr(error, "errno", None) in BUSY


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error of a client was made of; None if it has none."""
    answers = (getattr(one, "response", None) for one in (error, error.__cause__))  # of botocore
    statuses = [one.get("ResponseMetadata", {}).get("HTTPStatusCode") for one in answers if isinstance(one, dict)]
    for status in (getattr(error, "code", None), getattr(error, "status", None), *statuses):
        if isinstance(status, int | str) and str(status).isdecimal() and int(status) >= 400:
            return int(status)
    return None


@dataclasses.dataclass
class _Store:
    """The state of a store, as far as it is known; times are in seconds of the monotonic clock."""

    since: float | None = None  # start of its trouble; None: it answers
    reported: float = -math.inf  # when a line about it was last printed
    answered: float = -math.inf  # when it last answered
    given_up: float = -math.inf  # when it was given up, not having answered any request
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


_STORES: dict[str, _Store] = {}
_WAITS = contextvars.ContextVar("waits", default=True)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Make each request of this thread in the block only once, for requests that may as well fail."""
    token = _WAITS.set(False)
    try:
        yield
    finally:
        _WAITS.reset(token)


def asked(url: str, request: Callable[[], T], raw: tuple[type[OSError], ...] = ()) -> T:
    """Return what a store answers to ``request``, which may be made again and again.

    Args:
      url: what the request is about.
      raw: errors to pass on as they are.

    Raises:
      FileNotFoundError, FileExistsError: the store says so.
      PassingError: the store did not answer for ``BERT_JAX_STORE_SECONDS``.
      UserError: the store refuses the request.
    """
    store = _STORES.setdefault("/".join(url.split("/", 3)[:3]), _Store())
    begun, wait, reported = time.monotonic(), FIRST_WAIT, False
    if begun < store.given_up + GIVEN_UP_SECONDS:
        raise PassingError(f"{url}: the store does not answer; run the same command again to go on")
    while True:
        try:
            answer = request()
        except Exception as error:
            if not _is_trouble(error):
                store.since, store.answered = None, time.monotonic()
                raise _explained(url, error, raw) from error
            with store.lock:
                begun = store.since = min(begun, store.since or begun)
            if not _WAITS.get():
                raise PassingError(f"{url}: the store does not answer ({_said(error)})") from error
            left = begun + _patience() - time.monotonic()
            if left <= 0:
                if store.answered < begun:
                    store.given_up = time.monotonic()
                raise PassingError(
                    f"{url}: the store has not answered for {duration(time.monotonic() - begun)} ({_said(error)}); "
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
                warn(f"{url}: the store answers again, after {duration(time.monotonic() - begun)}")
            return answer


def _tell(store: _Store, line: str) -> bool:
    """Print ``line`` unless one about this store was just printed; return whether it was. Many requests fail
    together."""
    with store.lock:
        if time.monotonic() - store.reported < QUIET_SECONDS:
            return False
        store.reported = time.monotonic()
    warn(line)
    return True


def _explained(url: str, error: Exception, raw: tuple[type[OSError], ...]) -> Exception:
    """Return the exception to raise for an error that would stay the same."""
    if isinstance(error, (UserError, *raw)) or getattr(error, "errno", None) in LOCAL:
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
    """Return the seconds for which trouble is waited out."""
    try:
        return float(os.environ.get(SECONDS) or DEFAULT_SECONDS)
    except ValueError:
        raise UserError(f"{SECONDS} is {os.environ[SECONDS]!r}; a number of seconds is needed") from None
