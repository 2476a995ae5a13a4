"""Mutual authentication: when a process connects to process 0, each proves to the other that it belongs to the job.

Process 0 sends a challenge first. The connecting process answers it and sends a challenge of its own, which process 0
answers. So neither side talks to a stranger. Later messages on the connection are not signed: anyone who can change
network packets can change them.
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

PROOF_SECONDS = 10.0  # the longest duration of the whole handshake
MEMBER, FIRST = "member", "process 0"  # a proof is for one role only, so it cannot be sent back to its maker


class StrangerError(Exception):
    """The program that listens at the address is not process 0 of this job."""


class FullError(Exception):
    """All processes of the job have already arrived, so no further process can join."""


def join(meeting: Rendezvous, seconds: float = PROOF_SECONDS) -> tuple[socket.socket, BinaryIO]:
    """Connect to process 0; after both sides have proved who they are, return the socket and a file to read from it.

    Args:
      seconds: the longest wait for each answer.

    Raises:
      OSError: the connection failed or broke.
      NoKeyError: the workdir does not have the key that process 0 asks for.
      StrangerError: the program that listens at the address is not process 0 of this job.
      FullError: all processes of the job have already arrived.
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
    """Let a process join that has connected to process 0; return its ``Join`` after both have proved who they are.

    Raises:
      BadMessage: the sender is a stranger; the text says what it sent.
      OSError: the other side closed the connection.
      TimeoutError: the handshake took too long.
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
