"""The errors that are written for the user."""


class UserError(Exception):
    """Bad input, found early. The message is one line: what was found, what is allowed, what to do.

    Commands print it as ``error: <message>``, without a traceback, and exit with code 2. Some subclasses have another
    code (``exit_codes.of_user_error``).
    """


class Preempted(BaseException):
    """The process was told to leave its machine. Everything is saved; the same command goes on
    (``exit_codes.PREEMPTED``).

    Like ``KeyboardInterrupt`` it is not an ``Exception``: it may be raised anywhere, and nothing may catch it and go
    on.
    """


class Interrupted(Preempted):
    """Like ``Preempted``, but by Ctrl-C: nothing starts the run again by itself (``exit_codes.INTERRUPTED``)."""


class RepeatingError(UserError):
    """The run ended in a way that the same command would only repeat: it must not be resumed as it is."""


class PeerLostError(UserError):
    """Another process of the job is lost. All have to be started again (``exit_codes.PEER_LOST``)."""


class PassingError(UserError):
    """The same command is likely to work later: a store or a network did not answer (exit code 1)."""


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, short enough to stand in one of our messages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
