"""Reads a TensorFlow checkpoint (``NAME.index``, ``NAME.data-*``) without TensorFlow.

The index is an uncompressed LevelDB table, which maps tensor names to ``BundleEntryProto`` messages. The data files
hold the values, little-endian. Sources of the layout: tensorflow/core/util/tensor_bundle, tensorflow/core/lib/io/table,
and LevelDB's doc/table_format.md. The format has not changed since TensorFlow 0.12 (2016).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tensorstore as ts

from bert_jax.errors import UserError
from bert_jax.storage import reading

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
# Values of the enum DataType in tensorflow/core/framework/types.proto.
_DTYPES = {1: np.float32, 2: np.float64, 3: np.int32, 9: np.int64, 14: ml_dtypes.bfloat16, 19: np.float16}


@dataclasses.dataclass(frozen=True)
class _Entry:
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    is_sliced: bool


class _Damaged(Exception):
    """Raised if the index is damaged or is not a LevelDB table."""


def read_bundle(prefix: Path) -> dict[str, np.ndarray]:
    """Return all numeric tensors by name. Floats of any width become float32; integers stay as they are.

    Args:
      prefix: the path of the checkpoint without ".index".

    Raises:
      UserError: a file is missing, cut short or damaged (checksums cover all data), or a tensor is stored in slices.
    """
    index = prefix.with_name(f"{prefix.name}.index")
    try:
        table = reading.read_bytes(index)
        entries = {key.decode(errors="surrogateescape"): value for key, value in _table(table)}
        num_shards = dict(_fields(entries.pop("", b""))).get(1, 1)
        tensors = {name: _entry(value) for name, value in entries.items()}
    except (_Damaged, ValueError, IndexError, TypeError) as error:
        raise UserError(
            f"{index} is damaged or not the index of a TensorFlow checkpoint ({error}); copy it again"
        ) from error
    sliced = [name for name, entry in tensors.items() if entry.is_sliced]
    if sliced:
        raise UserError(f"{index}: {sliced[0]} is stored in slices; save the checkpoint again without partitions")
    shards = [prefix.with_name(f"{prefix.name}.data-{i:05}-of-{num_shards:05}") for i in range(num_shards)]
    return {name: _read(entry, shards, name) for name, entry in tensors.items() if entry.dtype in _DTYPES}


def _read(entry: _Entry, shards: list[Path], name: str) -> np.ndarray:
    dtype, count = np.dtype(_DTYPES[entry.dtype]), int(np.prod(entry.shape, dtype=np.int64))
    path = shards[entry.shard] if entry.shard < len(shards) else shards[-1].with_name(f"shard {entry.shard}")
    try:
        reading.check_plain(path)
        size = path.stat().st_size
    except FileNotFoundError:
        raise UserError(f"{path.parent} has no {path.name}, which holds {name}; copy the whole checkpoint") from None
    if entry.size != count * dtype.itemsize or entry.offset + entry.size > size:
        raise UserError(
            f"{path} is too short for {name} or belongs to another checkpoint; copy the whole checkpoint again"
        )
    array = np.fromfile(path, dtype, count, offset=entry.offset).reshape(entry.shape)
    if _masked_crc32c(array) != entry.checksum:
        raise UserError(f"{path} is damaged: the checksum of {name} does not match; copy the whole checkpoint again")
    return array.astype(np.float32) if dtype.kind != "i" else array


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a LevelDB table, in order."""
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise _Damaged("it does not end as a table does")
    footer = data[-_FOOTER:]
    _, at = _varint(footer, 0)  # skip offset and size of the meta index
    _, at = _varint(footer, at)
    for _, handle in _block(data, *_handle(footer[at:])):
        yield from _block(data, *_handle(handle))


def _handle(data: bytes) -> tuple[int, int]:
    offset, at = _varint(data, 0)
    return offset, _varint(data, at)[0]


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block.

    A stored key leaves out the prefix that it shares with the key before it.
    """
    block, trailer = data[offset : offset + size], data[offset + size : offset + size + 5]
    if len(block) < 4 or len(trailer) < 5:
        raise _Damaged("a block lies beyond the end of the file")
    if trailer[0]:
        raise _Damaged("its blocks are compressed")
    if _masked_crc32c(block + trailer[:1]) != int.from_bytes(trailer[1:], "little"):
        raise _Damaged("a checksum does not match")
    end = size - 4 - 4 * int.from_bytes(block[-4:], "little")  # the entries end before the restart points
    key, at = b"", 0
    while at < end:
        shared, at = _varint(block, at)
        fresh, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + fresh]
        yield key, block[at + fresh : at + fresh + length]
        at += fresh + length


def _entry(message: bytes) -> _Entry:
    """Return the content of a ``BundleEntryProto`` (tensorflow/core/protobuf/tensor_bundle.proto) as an ``_Entry``."""
    values = list(_fields(message))
    known = dict(values)
    shape = tuple(dict(_fields(dim)).get(1, 0) for kind, dim in _fields(known.get(2, b"")) if kind == 2)
    checksum = int.from_bytes(known.get(6, b""), "little")
    is_sliced = any(kind == 7 for kind, _ in values)
    return _Entry(known.get(1, 0), shape, known.get(3, 0), known.get(4, 0), known.get(5, 0), checksum, is_sliced)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of each field of a protocol buffer message. A value is an integer or raw bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
        else:
            if kind not in (1, 2, 5):
                raise _Damaged("a message has a field of unknown kind")
            length, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            yield tag >> 3, message[at : at + length]
            at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


# ---- Checksums ----------------------------------------------------------------------------------------------------


def _masked_crc32c(data: bytes | np.ndarray) -> int:
    """Return the CRC-32C of bytes, or of the bytes of an array, masked as files store it (LevelDB, util/crc32c.h)."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes | np.ndarray) -> int:
    """Return the CRC-32C of bytes, or of the bytes of an array.

    tensorstore computes it: a chunk of a zarr array with the codec ``crc32c`` ends with the checksum of its bytes.
    """
    message = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1).view(np.uint8)
    if not len(message):
        return 0
    metadata = {
        "shape": [len(message)],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [len(message)]}},
        "codecs": [{"name": "bytes"}, {"name": "crc32c"}],
    }
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata, "store_data_equal_to_fill_value": True}
    context = ts.Context()  # with memory of its own
    ts.open(spec, create=True, context=context).result().write(message).result()
    chunk = ts.KvStore.open("memory://", context=context).result().read("c/0").result().value
    return int.from_bytes(chunk[-4:], "little")
