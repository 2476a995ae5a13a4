"""The exit codes of a command, for whoever started it."""

from __future__ import annotations

from bert_jax.errors import Interrupted, PassingError, PeerLostError, Preempted, UserError
from bert_jax.storage import write_errors

DONE = 0
CRASHED = 1
BAD_INPUT = 2  # the same command would fail again
PREEMPTED = 75  # ended on request, after a save: start it again (EX_TEMPFAIL)
PEER_LOST = 76  # another process of the job is lost: start all of them again
INTERRUPTED = 130  # ended by Ctrl-C; in training after a save too. Nothing starts it again
FINAL = (DONE, BAD_INPUT, INTERRUPTED)  # nothing is started again after these


def of_preempted(ended: Preempted) -> int:
    """Return the exit code of a command that was told to end."""
    return INTERRUPTED if isinstance(ended, Interrupted) else PREEMPTED


def of_user_error(error: UserError) -> int:
    """Return the exit code of a command that ends with this error."""
    if isinstance(error, PeerLostError):
        return PEER_LOST
    return CRASHED if isinstance(error, PassingError) else BAD_INPUT


def of_several(error: BaseException, code: int) -> int:
    """Return the exit code with which ``error`` ends a job of several processes; ``code``: that of one process alone.

    Too many open files may be the work of a stranger who holds connections to JAX's port, which knows no password: the
    same command is likely to work later, so launchers start it again.
    """
    found: BaseException | None = error
    while found is not None:
        if code == BAD_INPUT and write_errors.number_of(found) in write_errors.FEW:
            return CRASHED
        found = found.__cause__
    return code
