"""Proves a process and process 0 to each other as members of one job, when the process connects.

Process 0 speaks first, with a challenge. The process answers it and sends a challenge of its own, which process 0
answers. So neither talks to a stranger. What follows on the connection is not signed: whoever can change the packets of
others can change it.
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

PROOF_SECONDS = 10.0  # for the whole handshake
MEMBER, FIRST = "member", "process 0"  # a proof holds for one role only, so that it cannot be sent back to its maker


class StrangerError(Exception):
    """The listener at the address is not process 0 of this job."""


class FullError(Exception):
    """All processes of the job have arrived."""


def join(meeting: Rendezvous, seconds: float = PROOF_SECONDS) -> tuple[socket.socket, BinaryIO]:
    """Return the socket to process 0, and the file to read it by, once both have proved who they are.

    Args:
      seconds: longest wait for each answer.

    Raises:
      OSError: the connection failed or broke.
      NoKeyError: the workdir does not have the key that process 0 asks for.
      StrangerError: what listens there is not process 0 of this job.
      FullError: all processes of the job have arrived.
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
    """Return the ``Join`` of a process that connects, once both have proved who they are. Process 0 calls this.

    Raises:
      BadMessage: it is a stranger; says what it did.
      OSError: it hung up.
      TimeoutError: it took too long.
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
