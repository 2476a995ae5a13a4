"""The exit codes of a command, by which a launcher decides whether to start it again."""

from __future__ import annotations

from bert_jax.errors import Interrupted, PassingError, PeerLostError, Preempted, UserError
from bert_jax.storage import write_errors

DONE = 0
CRASHED = 1
BAD_INPUT = 2  # the same command would fail again
PREEMPTED = 75  # ended on request, after a save: start the command again (EX_TEMPFAIL)
PEER_LOST = 76  # another process of the job is lost: start all processes again
INTERRUPTED = 130  # ended by Ctrl-C, in training after a save: do not start the command again
FINAL = (DONE, BAD_INPUT, INTERRUPTED)  # after these codes the command is not started again


def of(error: UserError | Preempted) -> int:
    """Return the exit code of a command that ends with ``error``."""
    codes = {Interrupted: INTERRUPTED, Preempted: PREEMPTED, PeerLostError: PEER_LOST, PassingError: CRASHED}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), BAD_INPUT)


def of_others(code: int) -> int:
    """Return the exit code of the other processes of a job if one process ends with ``code``."""
    return code if code in (BAD_INPUT, PREEMPTED, INTERRUPTED) else PEER_LOST


def of_several(error: BaseException, code: int) -> int:
    """Return the exit code of a job of several processes that ``error`` ends; a single process would end with ``code``.

    If too many files are open, return ``CRASHED`` instead of ``BAD_INPUT``, so that launchers start the command again.
    The cause may be a stranger who holds many connections to JAX's port, which asks for no password; then the same
    command is likely to work later.
    """
    cause: BaseException | None = error
    while cause is not None:
        if code == BAD_INPUT and write_errors.number_of(cause) in write_errors.FEW:
            return CRASHED
        cause = cause.__cause__
    return code
