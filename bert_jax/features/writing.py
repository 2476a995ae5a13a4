"""Writes vectors to files, text by text, as safetensors (a file, or a folder of several) or parquet.

The output appears only when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.extract import TextFeatures
from bert_jax.features.layers import LAYERS
from bert_jax.storage import files

INDEX = "index.json"
STRINGS = ("id", "text", "pair")
GROUP_BYTES = 32 << 20  # size of a parquet row group, which is held in memory until it is written
SAFETENSORS_TYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "uint8": "U8"}


class Writer(Protocol):
    """Writes texts with their vectors, in order."""

    def add(self, features: TextFeatures) -> None: ...

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Complete the output; ``facts`` are metadata about all of it."""
        ...

    def close(self) -> None:
        """Close all files, whether or not the output was finished."""
        ...


@contextlib.contextmanager
def writer(output: str, shapes: Mapping[str, tuple[int, ...]], dtype: str, part_bytes: int) -> Iterator[Writer]:
    """Context manager: yield a writer of ``output``, which appears when the block ends without an error.

    ``output`` is ``*.safetensors``, ``*.parquet``, or a folder of safetensors files of about ``part_bytes`` each.

    Args:
      shapes: layer -> shape of one vector.

    Raises:
      UserError: ``output`` already exists, cannot be written, or has another ending.
    """
    ending = check_output(output)
    if ending == ".safetensors":
        with files.whole_file(output) as path:
            yield from _closed(SafetensorsFile(path, shapes, dtype))
    elif ending == ".parquet":
        with files.whole_file(output) as path:
            yield from _closed(ParquetFile(path, shapes, dtype))
    else:
        with files.whole_directory(output) as folder:
            yield from _closed(SafetensorsFolder(folder, shapes, dtype, part_bytes))


def _closed(target: Writer) -> Iterator[Writer]:
    try:
        yield target
    finally:
        target.close()


def check_output(output: str) -> str:
    """Return the ending of ``output``, which is "" for a folder.

    Raises ``UserError`` for any other ending, or if ``output`` already exists.
    """
    ending = os.path.splitext(output)[1]
    if ending not in ("", ".safetensors", ".parquet"):
        raise UserError(f"--output={output} ends in {ending}; .safetensors, .parquet or a folder is allowed")
    files.check_new(output)
    return ending


class SafetensorsFile:
    """A safetensors file whose tensors grow text by text.

    The tensors of tokens are ``input_ids``, ``token_type_ids``, ``word_ids`` [tokens] and ``offsets`` [tokens, 2]. Each
    layer is [tokens, ...] or [texts, D]. ``token_starts`` [texts + 1] says where the tokens of each text begin. The
    strings ``id``, ``text`` and ``pair`` are UTF-8 in ``<name>_bytes``, with ``<name>_starts`` [texts + 1].
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str):
        self._path = path
        self._spool = path.parent / f"{path.name}.spool"
        self._spool.mkdir()
        # The safetensors library needs all tensors in memory. So each tensor grows in a file of its own, and
        # ``finish`` writes the format itself: a header, then the plain numbers.
        self._files: dict[str, IO[bytes]] = {}
        self._types: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._rows: dict[str, int] = {}
        per_token = dict.fromkeys(("input_ids", "token_type_ids", "word_ids"), ("int32", ()))
        self._declare(per_token | {"offsets": ("int32", (2,))})
        self._declare({name: (dtype, shape) for name, shape in shapes.items()})
        self._declare({f"{name}_bytes": ("uint8", ()) for name in STRINGS})
        self._ends = dict.fromkeys(("token", *STRINGS), 0)
        self._declare({f"{name}_starts": ("int64", ()) for name in self._ends})
        for name in self._ends:
            self._append(f"{name}_starts", np.zeros(1, np.int64))
        self.num_texts = self.num_tokens = self.num_bytes = 0

    def _declare(self, types: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        for name, given in types.items():
            self._types[name], self._rows[name] = given, 0
            self._files[name] = open(self._spool / name, "wb")  # noqa: SIM115 - closed by finish

    def _append(self, name: str, rows: np.ndarray) -> None:
        dtype, shape = self._types[name]
        values = np.ascontiguousarray(rows, dtype).reshape(len(rows), *shape)
        self._files[name].write(values.tobytes())
        self._rows[name] += len(values)

    def add(self, features: TextFeatures) -> None:
        tokens, item = features.tokens, features.item
        for name in ("input_ids", "token_type_ids", "word_ids", "offsets"):
            self._append(name, getattr(tokens, name))
        for name, vectors in features.vectors.items():
            self._append(name, vectors[None] if LAYERS[name].is_sentence else vectors)
            self.num_bytes += vectors.nbytes
        sizes = {"token": len(tokens.input_ids)}
        for name in STRINGS:
            encoded = (getattr(item, name) or "").encode("utf-8")
            self._append(f"{name}_bytes", np.frombuffer(encoded, np.uint8))
            sizes[name] = len(encoded)
        for name, size in sizes.items():
            self._ends[name] += size
            self._append(f"{name}_starts", np.array([self._ends[name]]))
        self.num_texts, self.num_tokens = self.num_texts + 1, self.num_tokens + sizes["token"]

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write the file; ``facts`` become its metadata."""
        header: dict[str, Any] = {"__metadata__": {name: str(value) for name, value in facts.items()}}
        start = 0
        # Tensors of wide numbers come first, so that every tensor begins at a multiple of the size of its numbers.
        order = sorted(self._types, key=lambda name: (-np.dtype(self._types[name][0]).itemsize, name))
        for name in order:
            self._files[name].close()
            dtype, shape = self._types[name]
            end = start + (self._spool / name).stat().st_size
            header[name] = {
                "dtype": SAFETENSORS_TYPES[dtype],
                "shape": [self._rows[name], *shape],
                "data_offsets": [start, end],
            }
            start = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(self._path, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                with open(self._spool / name, "rb") as spooled:
                    shutil.copyfileobj(spooled, file, 1 << 20)
                (self._spool / name).unlink()  # so that at most one tensor is on the disk twice
        self._spool.rmdir()

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class SafetensorsFolder:
    """A folder of safetensors files, with an index file that lists them."""

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str, part_bytes: int):
        self._folder, self._shapes, self._dtype, self._part_bytes = folder, shapes, dtype, part_bytes
        self._part: SafetensorsFile | None = None
        self._index: list[dict[str, Any]] = []

    def add(self, features: TextFeatures) -> None:
        if self._part is None:
            name = f"part-{len(self._index):05d}.safetensors"
            self._part = SafetensorsFile(self._folder / name, self._shapes, self._dtype)
            self._index.append({"file": name})
        self._part.add(features)
        if self._part.num_bytes >= self._part_bytes:
            self._finish_part()

    def _finish_part(self) -> None:
        if self._part is not None:
            self._part.finish({})
            self._index[-1] |= {"texts": self._part.num_texts, "tokens": self._part.num_tokens}
            self._part = None

    def finish(self, facts: Mapping[str, Any]) -> None:
        self._finish_part()
        content = {**facts, "parts": self._index}
        (self._folder / INDEX).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def close(self) -> None:
        if self._part is not None:
            self._part.close()


class ParquetFile:
    """A parquet file with one row for each text. A layer is a list of vectors of fixed size, or one vector."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str):
        import pyarrow as pa
        import pyarrow.parquet as pq

        number = pa.float16() if dtype == "float16" else pa.float32()
        vector = {name: pa.list_(number, math.prod(shape)) for name, shape in shapes.items()}
        fields = [(name, pa.string()) for name in STRINGS]
        fields += [(name, pa.list_(pa.int32())) for name in ("input_ids", "token_type_ids", "word_ids")]
        fields += [("offsets", pa.list_(pa.list_(pa.int32(), 2)))]
        fields += [(name, kind if LAYERS[name].is_sentence else pa.list_(kind)) for name, kind in vector.items()]
        self._schema = pa.schema(fields)
        self._vector = vector
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", use_dictionary=False)
        self._held: list[TextFeatures] = []
        self._num_bytes = 0

    def add(self, features: TextFeatures) -> None:
        self._held.append(features)
        self._num_bytes += sum(vectors.nbytes for vectors in features.vectors.values())
        if self._num_bytes >= GROUP_BYTES:
            self._flush()

    def finish(self, facts: Mapping[str, Any]) -> None:
        self._flush()
        self._writer.add_key_value_metadata({name: str(value) for name, value in facts.items()})

    def close(self) -> None:
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._held:
            return
        held, self._held, self._num_bytes = self._held, [], 0
        lengths = [len(features.tokens.input_ids) for features in held]
        starts = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        columns: dict[str, Any] = {
            name: pa.array([getattr(features.item, name) or "" for features in held]) for name in STRINGS
        }
        for name in ("input_ids", "token_type_ids", "word_ids", "offsets"):
            flat = np.concatenate([getattr(features.tokens, name) for features in held])
            values = pa.array(flat.reshape(-1))
            values = pa.FixedSizeListArray.from_arrays(values, 2) if name == "offsets" else values
            columns[name] = pa.ListArray.from_arrays(starts, values)
        for name, kind in self._vector.items():
            flat = np.concatenate([np.ravel(features.vectors[name]) for features in held])
            values = pa.FixedSizeListArray.from_arrays(pa.array(flat), type=kind)
            columns[name] = values if LAYERS[name].is_sentence else pa.ListArray.from_arrays(starts, values)
        self._writer.write_table(pa.table([columns[name] for name in self._schema.names], schema=self._schema))
