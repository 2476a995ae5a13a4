"""The key by which the processes of a job prove to each other that they belong to it.

At every start, process 0 writes a new key into the workdir, which all processes of the job can read and a stranger
cannot. The key itself is never sent over the network: each side answers a challenge of the other side with an HMAC. The
file is removed when all processes have arrived.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import os
import secrets
import stat

from bert_jax.errors import UserError, first_line
from bert_jax.storage import files, write_errors

KEY_FILE = ".heartbeat_key"
KEY_BYTES = 32
OTHERS = stat.S_IRWXG | stat.S_IRWXO


class NoKeyError(Exception):
    """There is no key in the workdir that can be trusted; the message says why."""


@dataclasses.dataclass(frozen=True)
class Key:
    """The secret key of one start of a job."""

    secret: bytes = dataclasses.field(repr=False)

    @property
    def name(self) -> str:
        """A name that differs from the name of every other start's key. It reveals nothing of the secret."""
        return self.proof("name", "", "")[:16]

    def proof(self, role: str, challenge: str, nonce: str) -> str:
        """Return the HMAC that answers ``challenge`` in the role ``role``.

        ``nonce`` is the challenge that the answering side has sent or will send.
        """
        return hmac.new(self.secret, _bytes("\0".join((role, challenge, nonce))), hashlib.sha256).hexdigest()

    def proves(self, proof: str, role: str, challenge: str, nonce: str) -> bool:
        return hmac.compare_digest(_bytes(proof), _bytes(self.proof(role, challenge, nonce)))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a stranger's text may be anything


def fresh_nonce() -> str:
    return secrets.token_hex(16)


class KeyFile:
    """The file with the key of this start, which only process 0 writes. It replaces a key left by an earlier start."""

    def __init__(self, workdir: str):
        """Write the file. Raises ``UserError`` if the file cannot be made readable by its owner alone."""
        self.key = Key(secrets.token_bytes(KEY_BYTES))
        self._folder = files.as_path(workdir)
        self._made: list[os.PathLike[str]] = []  # the folders made for the file, the innermost first
        text = self.key.secret.hex().encode()
        with write_errors.explained(self._folder / KEY_FILE):
            if files.is_remote(workdir):
                (self._folder / KEY_FILE).write_bytes(text)
                return
            self._made = [folder for folder in (self._folder, *self._folder.parents) if not folder.exists()]
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / KEY_FILE).unlink(missing_ok=True)
            file = os.open(self._folder / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with write_errors.explained(self._folder / KEY_FILE), os.fdopen(file, "wb") as writer:
            mode = os.fstat(file).st_mode
            if mode & OTHERS:
                (self._folder / KEY_FILE).unlink()
                self._remove_folders()
                raise UserError(
                    f"a file made for its owner alone has mode {stat.S_IMODE(mode):o} in {workdir}; mount that file "
                    "system so that files have mode 600, or give a bucket (gs://) as --workdir"
                )
            writer.write(text)

    def remove(self) -> None:
        """Remove the file, and the folders that were made for it if they are empty."""
        with contextlib.suppress(Exception):  # also a store's own errors; the next start replaces the key
            if read_key(self._folder) == self.key:
                (self._folder / KEY_FILE).unlink()
        self._remove_folders()

    def _remove_folders(self) -> None:
        with contextlib.suppress(OSError):
            for folder in self._made:
                os.rmdir(folder)
        self._made = []


def read_key(workdir: str | os.PathLike[str]) -> Key:
    """Return the key in ``workdir``.

    Raises:
      NoKeyError: there is no key. In a local folder, also if the file belongs neither to this user nor to the folder's
        owner (who could replace it anyway), or if others may read or write it.
    """
    path = files.as_path(workdir) / KEY_FILE
    try:
        data = path.read_bytes() if files.is_remote(workdir) else _read_own(os.fspath(path))
        secret = bytes.fromhex(data.decode("ascii"))
    except FileNotFoundError:
        raise NoKeyError("the file is not there") from None
    except ValueError:
        secret = b""
    except (NoKeyError, UserError):
        raise
    except Exception as error:  # libraries of stores raise errors of their own
        raise NoKeyError(getattr(error, "strerror", None) or first_line(error)) from error
    if len(secret) != KEY_BYTES:
        raise NoKeyError("the file does not hold a key")
    return Key(secret)


def _read_own(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # O_NONBLOCK: opening a pipe would wait
    with os.fdopen(file, "rb") as reader:
        found, folder = os.fstat(file), os.stat(os.path.dirname(path))
        if not stat.S_ISREG(found.st_mode):
            raise NoKeyError("it is not a plain file")
        if found.st_uid not in (os.geteuid(), folder.st_uid):
            raise NoKeyError(f"the file belongs to user {found.st_uid}, not to this user or the folder's owner")
        if found.st_mode & OTHERS:
            raise NoKeyError(f"the file has mode {stat.S_IMODE(found.st_mode):o}, so others may have read or made it")
        return reader.read(4 * KEY_BYTES)
