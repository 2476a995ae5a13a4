"""Computes CRC-32C (Castagnoli), the checksum in TensorFlow's files, with numpy operations on whole arrays.

The remainder of a message is linear in the message's bits, and leading zeros do not change it. So a message is cut into
lanes of equal width, whose remainders are computed side by side, one byte per step. Neighbouring lanes A and B are then
joined: the remainder of AB is the remainder of (A followed by len(B) zeros) XOR the remainder of B.
"""

from __future__ import annotations

import numpy as np

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_MAX_LANES = 1 << 14


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_TABLE = _byte_table()


def crc32c(data: bytes | np.ndarray) -> int:
    """Return the CRC-32C of bytes, or of the bytes of an array."""
    message = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1).view(np.uint8)
    lanes = min(_MAX_LANES, 1 << (len(message) // 64).bit_length())
    width = max(4, -(-len(message) // lanes))
    padded = np.zeros(lanes * width, np.uint8)
    start = len(padded) - len(message)
    padded[start:] = message
    if len(message) >= 4:  # same effect as a CRC register that starts with 32 ones
        padded[start : start + 4] ^= 0xFF
    else:
        return _short(message)
    rest = np.zeros(lanes, np.uint32)
    for column in np.ascontiguousarray(padded.reshape(lanes, width).T):
        rest = _TABLE[(rest ^ column) & 0xFF] ^ rest >> 8
    shift = _zeros(width)
    while len(rest) > 1:
        rest = _apply(shift, rest[::2]) ^ rest[1::2]
        shift = _apply(shift, shift)
    return int(rest[0]) ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """Return a checksum in the masked form in which files store it (LevelDB, util/crc32c.h).

    Masking is needed because checksums over data that itself contains plain checksums are problematic.
    """
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _short(message: np.ndarray) -> int:
    crc = 0xFFFFFFFF
    for byte in message.tolist():
        crc = int(_TABLE[(crc ^ byte) & 0xFF]) ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _zeros(count: int) -> np.ndarray:
    """Return a GF(2) matrix, uint32 [32]: it maps a remainder to the remainder after ``count`` more zero bytes.

    Column i is the result for a remainder in which only bit i is set.
    """
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(count):
        bits = _TABLE[bits & 0xFF] ^ bits >> 8
    return bits


def _apply(shift: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the products over GF(2) of each of ``values`` with the matrix whose columns are ``shift``."""
    found = np.zeros_like(values)
    for i, column in enumerate(shift):
        found ^= np.where(values >> np.uint32(i) & 1, column, np.uint32(0))
    return found
