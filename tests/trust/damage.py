"""What the attacks of ``make test-trust`` share: the seed, the counts, and damages to files.

``BERT_JAX_TRUST_SEED`` repeats a run of them, ``BERT_JAX_TRUST_COUNT`` scales how many there are (0.1: a tenth).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

PAGE = 4096  # bytes


def generator(name: str) -> random.Random:
    """Return the randomness of the part ``name``; what repeats it is printed."""
    seed = os.environ.get("BERT_JAX_TRUST_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"\n{name}: BERT_JAX_TRUST_SEED={seed}")
    return random.Random(f"{seed}/{name}")


def scaled(count: int) -> int:
    """Return how many of ``count`` attacks to make: at least one."""
    return max(round(count * float(os.environ.get("BERT_JAX_TRUST_COUNT") or 1)), 1)


Damage = Callable[[bytes, random.Random], bytes | None]  # a file's bytes -> those it has then; None: it is gone


def flip_bit(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def swap_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return ``data`` with two of its bytes exchanged."""
    first, second = sorted(rng.randrange(len(data)) for _ in range(2))
    swapped = bytearray(data)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    return bytes(swapped)


def zero_page(data: bytes, rng: random.Random) -> bytes:
    """Return ``data`` with one of its pages, as a disk has them, zeroed."""
    start = rng.randrange(0, len(data), PAGE)
    end = min(start + PAGE, len(data))
    return data[:start] + bytes(end - start) + data[end:]


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def append(data: bytes, rng: random.Random) -> bytes:
    return data + rng.randbytes(rng.randint(1, 64))


def remove(data: bytes, rng: random.Random) -> None:
    return None


DAMAGES: Mapping[str, Damage] = MappingProxyType(
    {damage.__name__: damage for damage in (flip_bit, swap_bytes, zero_page, truncate, append, remove)}
)


def damage(path: Path, kind: str, rng: random.Random) -> bool:
    """Damage the file in place of a new one, so that hard links to it stay whole; return whether anything changed.

    Two bytes that are swapped may be equal, a page may be zero already, and of an empty file little can be changed.
    """
    data = path.read_bytes()
    changed = DAMAGES[kind](data, rng) if data else data
    if changed == data:
        return False
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)
    return True


def damage_one(
    folder: Path,
    rng: random.Random,
    kinds: Mapping[str, Damage] = DAMAGES,
    among: Callable[[Path], bool] = Path.is_file,
) -> str:
    """Damage one file below ``folder``, of those that ``among`` takes; return what was done to which.

    Raises:
        IndexError: No file of ``among`` is there.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and among(path))
    while True:
        path, kind = rng.choice(paths), rng.choice(sorted(kinds))
        if damage(path, kind, rng):
            return f"{kind} {path.relative_to(folder)}"
