"""How a process and process 0 prove to each other that they are of one job, when the process connects.

Process 0 speaks first, with a challenge; the process answers it and challenges in turn; process 0 answers that. So
neither talks to a stranger. What follows on that connection is not signed: who can change the packets of others can
change it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import BinaryIO

from bert_jax.cluster.job_key import Key, NoKeyError, fresh_nonce, read_key
from bert_jax.cluster.messages import (
    PROOF_BYTES,
    BadMessage,
    Challenge,
    Full,
    Join,
    Message,
    Welcome,
    as_line,
    parse,
    read_line,
)
from bert_jax.cluster.rendezvous import Rendezvous, split_address

PROOF_SECONDS = 10.0  # for all of it
MEMBER, FIRST = "member", "process 0"  # a proof is for one of them, so that none can be sent back to who made it


class StrangerError(Exception):
    """What listens at the address is not process 0 of this job."""


class FullError(Exception):
    """All processes of the job have come."""


def join(meeting: Rendezvous, seconds: float = PROOF_SECONDS) -> tuple[socket.socket, BinaryIO]:
    """Return the line to process 0, and the file to read it by, once both have proved who they are.

    Args:
      seconds: to wait for each answer.

    Raises:
      OSError: no connection, or it broke.
      NoKeyError: the workdir does not have the key that process 0 asks for.
      StrangerError, FullError: as they say.
    """
    line = socket.create_connection(split_address(meeting.address), timeout=seconds)
    try:
        lines = line.makefile("rb")
        challenge = _next(lines)
        if not isinstance(challenge, Challenge):
            raise StrangerError
        key, nonce = read_key(meeting.workdir), fresh_nonce()
        if key.name != challenge.key:
            raise NoKeyError("the file holds the key of another start")
        proof = key.proof(MEMBER, challenge.nonce, nonce)
        line.sendall(
            as_line(Join(meeting.process_id, meeting.num_processes, socket.gethostname(), os.getpid(), nonce, proof))
        )
        welcome = _next(lines)
        if not isinstance(welcome, Welcome) or not key.proves(welcome.proof, FIRST, nonce, challenge.nonce):
            raise StrangerError
        line.settimeout(None)
    except BaseException:
        line.close()
        raise
    return line, lines


def _next(lines: BinaryIO) -> Message:
    text = lines.readline(PROOF_BYTES)
    if not text:
        raise ConnectionAbortedError("process 0 hung up")
    try:
        message = parse(text)
    except BadMessage:
        raise StrangerError from None
    if isinstance(message, Full):
        raise FullError
    return message


async def admit(key: Key, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Join:
    """Return how a process that connects names itself, once both have proved who they are; the part of process 0.

    Raises:
      BadMessage: it is a stranger; says what it did.
      OSError: it went.
      TimeoutError: it took its time.
    """
    async with asyncio.timeout(PROOF_SECONDS):
        challenge = fresh_nonce()
        writer.write(as_line(Challenge(challenge, key.name)))
        line = await read_line(reader, PROOF_BYTES)
        if not line:
            raise BadMessage("nothing, and hung up")
        answer = parse(line)
        if not isinstance(answer, Join):
            raise BadMessage("no proof")
        if not key.proves(answer.proof, MEMBER, challenge, answer.nonce):
            raise BadMessage("a wrong proof")
        writer.write(as_line(Welcome(key.proof(FIRST, answer.nonce, challenge))))
        return answer
