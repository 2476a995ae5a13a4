"""The start of a job: its processes meet in the workdir, and what must be the same on all of them is compared.

They meet before any of them connects to JAX's coordination service, which cannot do this itself: it ends a running job
if a process that has a number already connects once more, it does not say in one line who has not come, and no process
can ask it anything before all have connected.

In the folder ``.arrival`` of the workdir, process 0 writes a file with a random id of this start. Every other process
looks for that file, checks that it can reach the address of process 0, and answers with a card: its number, and the
values that must be the same on all. Process 0 compares the cards. Then it writes which cards belong to the job, or why
there is no job. A process that has read this removes its card. It connects only if its own card is named, so a process
that was started twice, or that belongs to an earlier start, never connects. Process 0 removes the folder when all
processes have connected, or have read why there is no job.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.cluster.differences import difference
from bert_jax.cluster.exit_codes import BAD_INPUT, INTERRUPTED, PEER_LOST, PREEMPTED
from bert_jax.cluster.processes import Processes, unreachable
from bert_jax.errors import Interrupted, PeerLostError, Preempted, UserError
from bert_jax.program import say
from bert_jax.storage import files, reading, write_errors
from bert_jax.storage.remote import RemotePath

FOLDER = ".arrival"
FIRST = "0"  # the file of process 0
CARD = re.compile(r"[1-9]\d*-[0-9a-f]{32}")
LOOK_SECONDS, REMOTE_LOOK_SECONDS = 0.2, 1.0  # time from one look at the folder to the next
REACH_SECONDS = 3.0  # the longest try to reach process 0
SAY_SECONDS = 20.0  # time from one line about the wait to the next
READ_SECONDS = 10.0  # how long process 0, which ends, waits for the others to read why


class Arrival:
    """The arrival of one process.

    Args:
      workdir: a folder that all processes of the job can read and write.
      same: the values that must be the same on all processes, by name.
    """

    def __init__(self, processes: Processes, workdir: str, same: Mapping[str, str]):
        self._processes, self._folder = processes, files.as_path(workdir) / FOLDER
        self._look = REMOTE_LOOK_SECONDS if files.is_remote(workdir) else LOOK_SECONDS
        self._id = uuid.uuid4().hex
        number, count = processes.process_id, processes.num_processes
        place = {"number": number, "of": count, "host": socket.gethostname(), "pid": os.getpid()}
        self._card: dict[str, Any] = {**place, "id": self._id, "same": dict(same)}
        self._made: list[Any] = []  # the folders made for the arrival, the innermost first
        self._is_open = False  # whether this is process 0, and its file is there
        self._said = time.monotonic()  # when it was last said for whom this process waits
        self._last_answer: Mapping[str, Any] = {}  # what process 0 has answered
        self._has_verdict = False  # whether process 0 has said which processes belong to the job, or why there is none

    def wait(self, still: Callable[[], Any] = lambda: None) -> list[str]:
        """Wait until all processes have come; return the host of each, by number.

        Args:
          still: is called by process 0 at each look; an error that it raises ends the wait.

        Raises:
          PeerLostError: a process does not come in time, or process 0 cannot be reached.
          UserError: two processes have one number, or what must be the same differs.
        """
        with write_errors.explain(self._folder):
            return self._gather(still) if self._processes.is_first else self._follow()

    def fail(self, error: str, code: int) -> None:
        """Tell the other processes that this process ends because of ``error``, with exit code ``code``."""
        with contextlib.suppress(Exception):
            if "to" in self._card and not self._has_verdict:
                self._write(self._name(), {**self._card, "failed": error, "code": code})
            elif self._is_open:
                if not self._has_verdict:
                    self._answer({"reason": f"{_called(self._card)} has failed: {error}", "code": shared_code(code)})
                self._wait_for_readers()
        self.close()

    def close(self) -> None:
        """Remove the folder, if this is process 0."""
        if not self._is_open:
            return
        with contextlib.suppress(Exception):  # the next start removes what is left
            self._empty()
            if not files.is_remote(self._folder):
                for folder in (self._folder, *self._made):
                    os.rmdir(folder)

    # ---- Process 0 ---------------------------------------------------------------------------------------------------

    def _gather(self, still: Callable[[], Any]) -> list[str]:
        if not files.is_remote(self._folder):
            self._made = [one for one in (self._folder.parent, *self._folder.parent.parents) if not one.exists()]
        self._empty()
        self._write(FIRST, self._card)
        self._is_open = True
        count, deadline = self._processes.num_processes, time.monotonic() + self._processes.arrival_seconds
        while True:
            cards = self._cards()
            if ended := self._fault(cards) or (self._absent(cards) if time.monotonic() > deadline else None):
                self._answer({"reason": ended[0], "code": ended[1]}, cards)
                raise _error(*ended)
            if len(cards) == count:
                hosts = [card["host"] for card in sorted(cards.values(), key=lambda card: card["number"])]
                self._answer({"hosts": hosts}, cards)
                return hosts
            still()
            self._say(lambda: f"process 0 waits for processes {self._others(cards)} of {count}", deadline)  # noqa: B023
            time.sleep(self._look)

    def _fault(self, cards: Mapping[str, dict[str, Any]]) -> tuple[str, int] | None:
        """Return why there is no job, and the exit code; None if nothing is wrong."""
        count = self._processes.num_processes
        number_of: dict[int, dict[str, Any]] = {}
        for card in cards.values():
            if failed := card.get("failed"):
                return f"{_called(card)} has failed: {failed}", shared_code(card["code"])
            if other := number_of.get(card["number"]):
                pids = f"pid {other['pid']} on {other['host']} and pid {card['pid']} on {card['host']}"
                numbers = f"number them from 0 to {count - 1}"
                return f"two processes have --process_id={card['number']}: {pids}; {numbers}", BAD_INPUT
            if card["of"] != count or card["number"] >= count:
                of_both = f"{_called(card)} expects {card['of']} processes, process 0 {count}"
                return f"{of_both}; start all alike", BAD_INPUT
            number_of[card["number"]] = card
        if len(cards) < count:
            return None
        hosts = {number: card["host"] for number, card in number_of.items()}
        for name in self._card["same"]:
            values = {number: card["same"].get(name, "absent") for number, card in sorted(number_of.items())}
            if line := difference(f"the {name}", values, hosts):
                return line, BAD_INPUT
        return None

    def _absent(self, cards: Mapping[str, dict[str, Any]]) -> tuple[str, int]:
        job, absent = self._processes, self._others(cards)
        return (
            f"after {job.arrival_seconds:.0f} s processes {absent} of {job.num_processes} have not arrived in "
            f"{self._folder}; start them with the same --workdir, on a shared mount or a bucket, and let the network "
            f"through to {job.coordinator}"
        ), PEER_LOST

    def _cards(self, first: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
        """Return the cards for this start, by id. The first card is of process 0: ``first``, or this process's card."""
        of_first = dict(first or self._card)
        cards = {of_first["id"]: of_first}
        remote = isinstance(self._folder, RemotePath)
        names = self._folder.names() if remote else [path.name for path in self._folder.iterdir()]
        for name in sorted(filter(CARD.fullmatch, names)):
            card = self._read(name)
            if card is not None and card.get("to") == of_first["id"]:
                cards[card["id"]] = card
        return cards

    def _answer(self, answer: Mapping[str, Any], cards: Mapping[str, Any] | None = None) -> None:
        self._write(FIRST, {**self._card, **answer, "ids": list(self._cards() if cards is None else cards)})
        self._last_answer, self._has_verdict = answer, True

    def _wait_for_readers(self) -> None:
        """Wait until every other process has removed its card: then it has read the answer."""
        deadline = time.monotonic() + READ_SECONDS
        while time.monotonic() < deadline:
            cards = self._cards()
            if all(one == self._id or "failed" in card for one, card in cards.items()):
                return
            self._answer(self._last_answer, cards)  # some may have come after the first answer
            time.sleep(self._look)

    def _empty(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for path in list(self._folder.iterdir()):
                path.unlink(missing_ok=True)

    # ---- Other processes ---------------------------------------------------------------------------------------------

    def _follow(self) -> list[str]:
        job, deadline = self._processes, time.monotonic() + self._processes.arrival_seconds
        error = None
        while time.monotonic() < deadline:
            first = self._read(FIRST)
            if first is not None and self._id in first.get("ids", ()):
                self._has_verdict = True
                (self._folder / self._name()).unlink(missing_ok=True)
                if "reason" in first:
                    raise _error(first["reason"], first["code"])
                return list(first["hosts"])
            if first is not None and "ids" not in first and first["id"] != self._card.get("to"):
                error = unreachable(job.coordinator, REACH_SECONDS)
                if error is None:
                    self._card["to"] = first["id"]
                    self._write(self._name(), self._card)
            self._say(lambda: self._whom(first, error), deadline)  # noqa: B023
            time.sleep(self._look)
        tried = f"after {job.arrival_seconds:.0f} s of trying"
        if error is not None:
            raise PeerLostError(
                f"process {job.process_id} cannot reach process 0 at {job.coordinator} ({error.strerror or error}) "
                f"{tried}; check that process 0 runs, --coordinator, and that the network lets that port through"
            )
        raise PeerLostError(
            f"process {job.process_id} finds no process 0 that waits for it in {self._folder} {tried}; start "
            "process 0 with the same --workdir, on a shared mount or a bucket; a job whose processes have all "
            "arrived takes no other"
        )

    def _whom(self, first: Mapping[str, Any] | None, error: OSError | None) -> str:
        """Return for whom this process, which is not process 0, waits. Process 0 has written ``first``."""
        own = f"process {self._processes.process_id}"
        if first is None or "ids" in first:  # what lies there is of another start
            return f"{own} waits for process 0"
        if error is not None:
            return f"{own} cannot reach process 0 at {self._processes.coordinator} yet ({error.strerror or error})"
        with contextlib.suppress(FileNotFoundError):  # process 0 has just removed the folder
            if others := self._others(self._cards(first)):
                return f"{own} waits with process 0 for processes {others}"
        return f"{own} waits for the answer of process 0"

    def _name(self) -> str:
        return f"{self._processes.process_id}-{self._id}"

    # ---- All ---------------------------------------------------------------------------------------------------------

    def _say(self, whom: Callable[[], str], deadline: float) -> None:
        """Say for ``whom`` this process waits, and where, if it has not been said for ``SAY_SECONDS``."""
        if (now := time.monotonic()) - self._said >= SAY_SECONDS:
            self._said = now
            say(f"{whom()}, in {self._folder}, for {max(0.0, deadline - now):.0f} s more")

    def _others(self, cards: Mapping[str, Mapping[str, Any]]) -> str:
        """Return the numbers of the processes of the job that have no card, for a message."""
        there = {card["number"] for card in cards.values()}
        return ", ".join(str(number) for number in range(self._processes.num_processes) if number not in there)

    def _read(self, name: str) -> dict[str, Any] | None:
        """Return what a file holds; None if it is not there or not whole."""
        try:
            content = reading.parse_object((self._folder / name).read_bytes())
        except FileNotFoundError:
            return None
        return content if content is not None and "id" in content else None

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        files.write_text(self._folder / name, json.dumps(content))


def shared_code(code: int) -> int:
    """Return the exit code of the other processes of a job if one of them ends with ``code``."""
    return code if code in (BAD_INPUT, PREEMPTED, INTERRUPTED) else PEER_LOST


def _error(reason: str, code: int) -> BaseException:
    kinds = {BAD_INPUT: UserError, PREEMPTED: Preempted, INTERRUPTED: Interrupted}
    return kinds.get(code, PeerLostError)(reason)


def _called(card: Mapping[str, Any]) -> str:
    return f"process {card['number']} on {card['host']}"
