"""The start of a job: every process tells process 0 that it has come, and learns who has not come.

JAX's coordination service cannot do this: it does not say who is missing, it aborts the processes that wait, and a
process that is started twice ends the job. So process 0 first listens itself at the port that JAX will use. Every other
process connects and sends a card with its number. When all have come, process 0 closes the port and answers with the
host of each, or with the reason why there is no job. Only then do they connect to JAX. A process that comes later finds
JAX at the port, which answers no card, so this process never disturbs the job.

The connections stay open as long as the processes live: if they end, process 0 is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from bert_jax.cluster.exit_codes import BAD_INPUT, INTERRUPTED, PEER_LOST, PREEMPTED, of_others
from bert_jax.cluster.processes import Processes, is_own, split_address, unreachable
from bert_jax.errors import Interrupted, PeerLostError, Preempted, UserError
from bert_jax.program import say
from bert_jax.storage import reading

PORT_SECONDS = 10.0  # how long to wait for the port, which process 0 of an earlier start may still hold
SAY_SECONDS = 20.0  # time from one line about the wait to the next
_LOOK_SECONDS = 0.2
_REACH_SECONDS = 3.0  # the longest try to reach process 0, and the longest wait of process 0 for a card
_KEEP_SECONDS = 60  # silence after which the system shows the network that a connection is used
_LONGEST_LINE = 10_000  # bytes; a stranger may send more
_CARD = {"number": int, "of": int, "host": str, "pid": int}


class Arrival:
    """The arrival of this process."""

    def __init__(self, processes: Processes):
        self._processes = processes
        place = {"number": processes.process_id, "of": processes.num_processes}
        self._card: dict[str, Any] = {**place, "host": socket.gethostname(), "pid": os.getpid()}
        self._deadline = time.monotonic() + processes.arrival_seconds
        self._said = time.monotonic()  # when it was last said for whom this process waits
        self._cards: dict[socket.socket, dict[str, Any]] = {}  # in process 0, the other processes
        self._to_first: socket.socket | None = None  # in every other process
        self._failure: Mapping[str, Any] | None = None  # the last line of a process that ended while it waited

    def wait(self) -> list[str]:
        """Wait until all processes have come; return the host of each, by number.

        Raises:
          PeerLostError: a process does not come in time, or process 0 cannot be reached.
          UserError: two processes have one number, other numbers are expected, or the port of process 0 is taken.
        """
        answer = self._gather() if self._processes.is_first else self._knock()
        if "reason" in answer:
            kinds = {BAD_INPUT: UserError, PREEMPTED: Preempted, INTERRUPTED: Interrupted}
            raise kinds.get(answer["code"], PeerLostError)(answer["reason"])
        return list(answer["hosts"])

    def fail(self, error: str, code: int) -> None:
        """Tell the processes that wait that this process ends because of ``error``, with exit code ``code``."""
        self._tell({"reason": f"{_called(self._card)} has failed: {error}", "code": of_others(code)})

    def first_is_gone(self) -> bool:
        """Return whether process 0 has ended, after waiting until the connection to process 0 ends."""
        assert self._to_first is not None
        with contextlib.suppress(OSError):
            self._to_first.recv(1)
        for _ in range(100):  # the system closes one connection after the other
            if isinstance(unreachable(self._processes.coordinator, _REACH_SECONDS), ConnectionRefusedError):
                return True
            time.sleep(0.01)
        return False

    # ---- Process 0 ---------------------------------------------------------------------------------------------------

    def _gather(self) -> dict[str, Any]:
        with _listen(self._processes.coordinator) as server:
            server.settimeout(_LOOK_SECONDS)
            while (answer := self._answer()) is None:
                with contextlib.suppress(OSError):  # nobody has come, or too many files are open
                    connection, _ = server.accept()
                    threading.Thread(target=self._hear, args=(connection,), daemon=True, name="arrival").start()
                absent = self._absent()
                if self._say(f"process 0 waits for processes {absent} of {self._processes.num_processes}"):
                    self._tell({"absent": absent})
        self._tell(answer)
        return answer

    def _hear(self, connection: socket.socket) -> None:
        """Take the card of a process, and keep the connection until the process ends."""
        connection.settimeout(_REACH_SECONDS)
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            card = _read(lines)
            if card is None or not all(isinstance(card.get(name), kind) for name, kind in _CARD.items()):
                return  # a stranger
            connection.settimeout(None)
            self._cards[connection] = card
            with contextlib.suppress(OSError):
                last = _read(lines)
                self._failure = self._failure or last
            del self._cards[connection]

    def _answer(self) -> dict[str, Any] | None:
        """Return the hosts of all processes, or the reason why there is no job; None while processes are missing."""
        job, number_of = self._processes, {0: self._card}
        if self._failure is not None and {"reason", "code"} <= self._failure.keys():
            return dict(self._failure)
        for card in list(self._cards.values()):
            if other := number_of.get(card["number"]):
                pids = f"pid {other['pid']} on {other['host']} and pid {card['pid']} on {card['host']}"
                numbers = f"number them from 0 to {job.num_processes - 1}"
                return _no_job(f"two processes have --process_id={card['number']}: {pids}; {numbers}", BAD_INPUT)
            if card["of"] != job.num_processes or not 0 <= card["number"] < job.num_processes:
                both = f"{_called(card)} expects {card['of']} processes, process 0 {job.num_processes}"
                return _no_job(f"{both}; start all alike", BAD_INPUT)
            number_of[card["number"]] = card
        if len(number_of) == job.num_processes:
            return {"hosts": [number_of[number]["host"] for number in range(job.num_processes)]}
        if time.monotonic() < self._deadline:
            return None
        return _no_job(
            f"after {job.arrival_seconds:.0f} s processes {self._absent()} of {job.num_processes} have not arrived at "
            f"{job.coordinator}; start them with the same --coordinator, and let the network through to it",
            PEER_LOST,
        )

    def _absent(self) -> str:
        """Return the numbers of the processes that have not come, for a message."""
        there = {0, *(card["number"] for card in list(self._cards.values()))}
        return ", ".join(str(number) for number in range(self._processes.num_processes) if number not in there)

    # ---- Other processes ---------------------------------------------------------------------------------------------

    def _knock(self) -> dict[str, Any]:
        job, error = self._processes, None
        name = f"process {job.process_id}"
        while time.monotonic() < self._deadline:
            try:
                connection = socket.create_connection(split_address(job.coordinator), timeout=_REACH_SECONDS)
                if (answer := self._ask(connection)) is not None:
                    return answer
                error = None
            except OSError as caught:
                error = caught
            self._say(f"{name} waits for process 0" + (f" ({error.strerror or error})" if error else ""))
            time.sleep(_LOOK_SECONDS)
        tried = f"after {job.arrival_seconds:.0f} s of trying"
        if error is not None:
            raise PeerLostError(
                f"{name} cannot reach process 0 at {job.coordinator} ({error.strerror or error}) {tried}; check that "
                "process 0 runs, --coordinator, and that the network lets that port through"
            )
        raise PeerLostError(
            f"{name} finds no process 0 that waits for it at {job.coordinator} {tried}; start process 0 with the same "
            "--coordinator; a job whose processes have all arrived takes no other"
        )

    def _ask(self, connection: socket.socket) -> dict[str, Any] | None:
        """Return the answer of process 0, or None if whoever listens there is no process 0 that waits for others."""
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # firewalls forget silent connections
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_SECONDS)
            connection.settimeout(max(0.0, self._deadline - time.monotonic()) + _REACH_SECONDS)
            self._to_first = connection
            self._tell(self._card)
            lines = connection.makefile("rb")
            while (answer := _read(lines)) is not None:
                if "absent" not in answer:
                    connection.settimeout(None)
                    return answer
                name = f"process {self._processes.process_id}"
                self._say(f"{name} waits with process 0 for processes {answer['absent']}", now=True)
        self._to_first = None
        connection.close()
        return None

    # ---- All ---------------------------------------------------------------------------------------------------------

    def _say(self, whom: str, now: bool = False) -> bool:
        """Say for ``whom`` this process waits, if it was not said for ``SAY_SECONDS``; return whether it was said."""
        moment = time.monotonic()
        if now or moment - self._said >= SAY_SECONDS:
            self._said = moment
            say(f"{whom}, at {self._processes.coordinator}, for {max(0.0, self._deadline - moment):.0f} s more")
            return True
        return False

    def _tell(self, content: Mapping[str, Any]) -> None:
        """Send a line to process 0, or from process 0 to all others that have come."""
        for connection in [self._to_first, *list(self._cards)]:
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.sendall(json.dumps(content).encode() + b"\n")


def _listen(coordinator: str) -> socket.socket:
    """Return a socket that listens where JAX will.

    JAX itself would share the port with another program that listens there. An earlier process 0 gets
    ``PORT_SECONDS`` to leave it.
    """
    host, port = split_address(coordinator)
    both = not is_own(host) and socket.has_dualstack_ipv6()
    deadline = time.monotonic() + PORT_SECONDS
    while True:
        try:
            if both:
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0] if is_own(host) else socket.AF_INET
            return socket.create_server((host if is_own(host) else "", port), family=family)
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"cannot listen at {coordinator} ({os.strerror(error.errno or 0)}); wait until what listens there "
                    "has ended, such as process 0 of another job, or give --coordinator another port"
                ) from None
        time.sleep(_LOOK_SECONDS)


def _read(lines: BinaryIO) -> dict[str, Any] | None:
    """Return the JSON object of the next line; None if the connection has ended, or the line is something else."""
    return reading.parse_object(lines.readline(_LONGEST_LINE))


def _no_job(reason: str, code: int) -> dict[str, Any]:
    return {"reason": reason, "code": code}


def _called(card: Mapping[str, Any]) -> str:
    return f"process {card['number']} on {card['host']}"
