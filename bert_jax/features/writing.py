"""Writes vectors of texts as safetensors (a file, or a folder of several) or parquet.

The output appears only when it is complete, and its vectors need not fit into memory.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.extract import TextFeatures
from bert_jax.features.layers import LAYERS
from bert_jax.storage import files
from bert_jax.storage.tensors import save_tensors

INDEX = "index.json"
STRINGS = ("id", "text", "pair")
TOKENS = ("input_ids", "token_type_ids", "word_ids", "offsets")
GROUP_BYTES = 32 << 20  # size of the vectors that are written together
Groups = Iterable[Iterable[TextFeatures]]
Facts = Callable[[], Mapping[str, Any]]  # metadata of the whole output, known when all texts are read


def write(output: str, features: Iterable[TextFeatures], facts: Facts, part_bytes: int) -> None:
    """Write ``output``: ``*.safetensors``, ``*.parquet``, or a folder of safetensors files of about ``part_bytes``.

    Raises:
      UserError: ``output`` already exists, cannot be written, or has another ending.
    """
    ending = check_output(output)
    if ending == ".parquet":
        with files.whole_file(output) as path:
            _write_parquet(path, grouped(features), facts)
    elif ending:
        with files.whole_file(output) as path:
            _write_safetensors(path, grouped(features), facts, output)
    else:
        with files.whole_directory(output) as folder:
            _write_folder(folder, features, facts, part_bytes, output)


def check_output(output: str) -> str:
    """Return the ending of ``output``, which is "" for a folder.

    Raises ``UserError`` for any other ending, or if ``output`` already exists.
    """
    ending = os.path.splitext(output)[1]
    if ending not in ("", ".safetensors", ".parquet"):
        raise UserError(f"--output={output} ends in {ending}; .safetensors, .parquet or a folder is allowed")
    files.check_new(output)
    return ending


def grouped(features: Iterable[TextFeatures], group_bytes: int = GROUP_BYTES) -> Iterator[Iterator[TextFeatures]]:
    """Yield the texts in groups whose vectors have about ``group_bytes``. Each group is read before the next."""
    before = 0

    def group(one: TextFeatures) -> int:
        nonlocal before
        number, before = before // group_bytes, before + sum(vectors.nbytes for vectors in one.vectors.values())
        return number

    return (texts for _, texts in itertools.groupby(features, group))


def columns(texts: Sequence[TextFeatures]) -> dict[str, np.ndarray]:
    """Return what ``texts`` have for each token, [tokens, ...], and for each text, [texts, D], by name."""
    found = {name: np.concatenate([getattr(one.tokens, name) for one in texts]) for name in TOKENS}
    for name in texts[0].vectors:
        join = np.stack if LAYERS[name].is_sentence else np.concatenate
        found[name] = join([one.vectors[name] for one in texts])
    return found


def _write_safetensors(path: Path, groups: Groups, facts: Facts, output: str) -> dict[str, int]:
    """Write a safetensors file and return how many texts and tokens it has.

    The tensors of tokens are ``input_ids``, ``token_type_ids``, ``word_ids`` [tokens] and ``offsets`` [tokens, 2]. Each
    layer is [tokens, ...] or [texts, D]. ``token_starts`` [texts + 1] says where the tokens of each text begin. The
    strings ``id``, ``text`` and ``pair`` are UTF-8 in ``<name>_bytes``, with ``<name>_starts`` [texts + 1].
    """
    spool = path.parent / f"{path.name}.spool"  # each tensor grows in a file of its own
    spool.mkdir()
    types: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    lengths: dict[str, list[int]] = defaultdict(list)
    for texts in map(list, groups):
        found = columns(texts)
        lengths["token"] += [len(one.tokens.input_ids) for one in texts]
        for name in STRINGS:
            encoded = [(getattr(one.item, name) or "").encode("utf-8") for one in texts]
            lengths[name] += map(len, encoded)
            found[f"{name}_bytes"] = np.frombuffer(b"".join(encoded), np.uint8)
        for name, values in found.items():
            types[name] = (values.dtype, values.shape[1:])
            with open(spool / name, "ab") as file:
                np.ascontiguousarray(values).tofile(file)

    def grown(name: str) -> np.ndarray:
        dtype, shape = types[name]
        if not (spool / name).stat().st_size:  # an empty file cannot be mapped
            return np.zeros((0, *shape), dtype)
        return np.memmap(spool / name, dtype, "r").reshape(-1, *shape)

    tensors = {name: grown(name) for name in types}
    tensors |= {f"{name}_starts": np.cumsum([0, *counts], dtype=np.int64) for name, counts in lengths.items()}
    save_tensors(path, tensors, {name: str(value) for name, value in facts().items()}, output)
    shutil.rmtree(spool)
    return {"texts": len(lengths["token"]), "tokens": sum(lengths["token"])}


def _write_folder(folder: Path, features: Iterable[TextFeatures], facts: Facts, part_bytes: int, output: str) -> None:
    parts: list[dict[str, Any]] = []
    for texts in grouped(features, part_bytes):
        name = f"part-{len(parts):05d}.safetensors"
        parts.append({"file": name, **_write_safetensors(folder / name, grouped(texts), dict, output)})
    content = {**facts(), "parts": parts}
    (folder / INDEX).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _write_parquet(path: Path, groups: Groups, facts: Facts) -> None:
    """Write a parquet file with one row for each text. A layer is a list of vectors of fixed size, or one vector."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as stack:
        writer: Any = None
        for texts in map(list, groups):
            starts = pa.array(np.cumsum([0, *(len(one.tokens.input_ids) for one in texts)]), pa.int32())
            table: dict[str, Any] = {
                name: pa.array([getattr(one.item, name) or "" for one in texts]) for name in STRINGS
            }
            for name, values in columns(texts).items():
                flat = pa.array(values.reshape(-1))
                if values.ndim > 1:
                    flat = pa.FixedSizeListArray.from_arrays(flat, values[0].size)
                is_sentence = name in LAYERS and LAYERS[name].is_sentence
                table[name] = flat if is_sentence else pa.ListArray.from_arrays(starts, flat)
            rows = pa.table(table)
            if writer is None:
                how = {"compression": "zstd", "use_dictionary": False}
                writer = stack.enter_context(pq.ParquetWriter(path, rows.schema, **how))
            writer.write_table(rows)
        writer.add_key_value_metadata({name: str(value) for name, value in facts().items()})
