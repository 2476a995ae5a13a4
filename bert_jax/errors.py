"""The errors that a user is meant to read."""


class UserError(Exception):
    """Bad input, found early. The message is one line: what was found, what is allowed, what to do.

    Commands print it as ``error: <message>``, without a traceback, and exit with code 2 (of some kinds another:
    ``exit_codes.of_user_error``).
    """


class Preempted(BaseException):
    """The machine is wanted elsewhere. Everything is saved; the same command goes on (``exit_codes.PREEMPTED``).

    As ``KeyboardInterrupt`` no ``Exception``: it may come anywhere, and nothing is to go on after it.
    """


class Interrupted(Preempted):
    """As ``Preempted``, by Ctrl-C: nothing starts it again by itself (``exit_codes.INTERRUPTED``)."""


class RepeatingError(UserError):
    """A run ended in a way that the same command, started again, would only repeat: nothing is to be resumed."""


class PeerLostError(UserError):
    """Another process of the job is not to be had. It may be once all are started again (``exit_codes.PEER_LOST``)."""


class PassingError(UserError):
    """What is likely to go well when it is tried again: a store or a network that did not answer (exit code 1)."""


def first_line(error: BaseException) -> str:
    """What a library's error says, short enough to stand in one of ours."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
