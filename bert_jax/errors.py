"""The errors whose messages are written for the user."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Sequence
from typing import Any

OF_MACHINE = {  # words in an error of a library that the machine or its settings cause -> what to do
    "Unable to initialize backend": "set JAX_PLATFORMS to a platform that is there, such as cpu, or unset it",
    "RESOURCE_EXHAUSTED": "bert-jax plan says how much memory a recipe needs; more config.training.micro_batches need "
    "less, and other programs on the same devices (nvidia-smi) leave less",
    "can't start new thread": "raise the limits on memory and processes (ulimit -v, ulimit -u), or free memory",
}


class _ShownInOneLine(BaseException):
    """An error of which a notebook shows the message alone; with ``BERT_JAX_TRACEBACK=1`` also where it was raised."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines to show. IPython calls this method by its name."""
        if os.environ.get("BERT_JAX_TRACEBACK") == "1":
            return traceback.format_exception(self)
        return [f"{'error: ' * isinstance(self, Exception)}{self}"]


class UserError(_ShownInOneLine, Exception):
    """The input is wrong. The message is one line that says what was found, what is allowed and what to do.

    Commands print it as ``error: <message>``, without a traceback, and exit with code 2. Some subclasses have another
    exit code (see ``exit_codes.of``).
    """


class Preempted(_ShownInOneLine):
    """The process was told to end. Everything is saved; the same command continues (``exit_codes.PREEMPTED``).

    Like ``KeyboardInterrupt`` it is not an ``Exception``: it may be raised anywhere, and no code may catch it and
    continue.
    """


class Interrupted(Preempted):
    """The process was told to end by Ctrl-C. Unlike after ``Preempted``, no launcher starts the run again.

    The exit code is ``exit_codes.INTERRUPTED``.
    """


class RepeatingError(UserError):
    """The run ended in a way that the same command would only repeat, so it must not be resumed unchanged."""


class PeerLostError(UserError):
    """Another process of the job is lost. All processes have to be started again (``exit_codes.PEER_LOST``)."""


class PassingError(UserError):
    """The same command is likely to work later: a store or a network did not answer (exit code 1)."""


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message, shortened so that it fits into one of our messages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def optional_library(name: str, user: str) -> Any:
    """Import and return a library that not every installation has. Raises ``UserError`` if it is missing.

    Args:
      user: the name, for the message, of the feature that needs the library.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UserError(f"{user} needs the package {package}; install it with: pip install {package}") from error


def few(items: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """Return the first ``most`` items and the number of the others, for a message: "a, b and 3 more"."""
    others = f"{separator.strip(', ')} and {len(items) - most:,} more" if len(items) > most else ""
    return separator.join(items[:most]) + others
