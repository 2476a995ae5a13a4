"""Reads and writes named tensors in one or more safetensors files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save_file

from bert_jax.errors import UserError
from bert_jax.interchange.family import Family
from bert_jax.interchange.json_files import read_json, write_json
from bert_jax.storage import hub, reading, write_errors

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000  # the same limit as in transformers
_PICKLE_HINT = (
    "; pytorch_model.bin is a pickle, which can run code: if you trust it, load it with transformers and run "
    "model.save_pretrained(folder)"
)
_FLOATS = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
# The dtypes that are read; integers stand only in buffers without effect.
_DTYPES = ("F64", "F32", "F16", "BF16", "BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")


def read_tensors(folder: Path, where: str) -> dict[str, np.ndarray]:
    """Return all tensors by their names in the files. Floats of any width become float32; others stay as they are.

    Args:
      where: the folder's name for error messages.

    Raises:
      UserError: there is no safetensors file, a file is damaged, or a value is not finite.
    """
    places: dict[str, str] = {}
    if (folder / WEIGHTS).exists():  # transformers too ignores an index beside it, which belongs to older weights
        shards = [WEIGHTS]
    elif (folder / INDEX).exists():
        places = read_json(folder / INDEX).get("weight_map") or {}
        if not (places and isinstance(places, dict)) or not all(
            isinstance(p, str) and p == Path(p).name for p in places.values()
        ):
            raise UserError(f"{where}/{INDEX} has no weight_map of names and files; copy it again")
        shards = sorted({*places.values()})
    else:
        names = hub.file_names(where) if hub.is_model(where) else [path.name for path in folder.glob("*.bin")]
        pickled = any(re.fullmatch(r"pytorch_model.*\.bin", name) for name in names)
        raise UserError(f"{where} has no {WEIGHTS}" + (_PICKLE_HINT if pickled else "; is it a model's folder?"))
    found = ((shard, *tensor) for shard in shards for tensor in _read_shard(folder / shard))
    tensors = {name: array for shard, name, array in found if places.get(name, shard) == shard}
    if lost := sorted(places.keys() - tensors.keys()):
        raise UserError(
            f"{where}/{INDEX} has {lost[0]} in {places[lost[0]]}, which lacks it; copy the whole folder again"
        )
    check_finite(tensors, where)
    return tensors


def check_finite(tensors: Mapping[str, np.ndarray], where: str) -> None:
    """Raise ``UserError`` if any value is not a finite number."""
    if damaged := not_finite(tensors):
        raise UserError(
            f"{where} is damaged: {len(damaged)} tensors hold values that are not finite numbers, such as "
            f"{damaged[0]}; copy it again"
        )


def not_finite(tensors: Mapping[str, np.ndarray]) -> list[str]:
    """Return the names of the tensors that hold a value that is not a finite number."""
    return [name for name, array in tensors.items() if not np.isfinite(array).all()]


def _read_shard(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    try:
        reading.check_plain(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - ``file`` is not a dict
                if (dtype := file.get_slice(name).get_dtype()) not in _DTYPES:
                    raise quantized(path, name, dtype)
                array = file.get_tensor(name)
                yield name, array.astype(np.float32) if array.dtype in _FLOATS else array
    except reading.NotPlainError:
        raise
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        if unknown := re.search("unknown variant `(.*?)`", str(error)):  # safetensors does not know the dtype
            raise quantized(path, "a tensor", unknown[1]) from error
        raise UserError(f"{path} cannot be read ({error}); it may be cut short: copy it again") from error


def quantized(where: object, name: str, dtype: object) -> UserError:
    """Return the error for a tensor that holds other numbers than floats of 16 bits or more."""
    return UserError(
        f"{where}: {name} holds {dtype} numbers; a quantized model cannot be read: give one with float32, float16 or "
        "bfloat16 weights"
    )


def current_names(family: Family, tensors: Mapping[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """Return the tensors under their current names; a bias of the MLM decoder also under ``decoder_bias``.

    Args:
      tensors: the tensors of a file, some of which may have outdated names.
      where: the folder's name for error messages.

    Raises:
      UserError: the decoder differs from the word embeddings, the file has two output biases that differ, or two names
        in the file mean the same tensor.
    """
    current: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        if family.current_name(name) in current:
            raise UserError(
                f"{where} has {family.current_name(name)} twice, once under an older name; copy the whole folder again"
            )
        current[family.current_name(name)] = array
    decoder, words = (current.get(name) for name in (f"{family.decoder}.weight", family.word_embeddings))
    if decoder is not None and words is not None and not np.array_equal(decoder, words):
        raise UserError(f"{where} has an MLM decoder that is not its word embeddings; only tied ones can be read")
    bias = current.get(f"{family.decoder}.bias")
    if bias is not None and not np.array_equal(bias, current.setdefault(family.decoder_bias, bias)):
        raise UserError(
            f"{where} has {family.decoder}.bias and {family.decoder_bias}, which differ; keep the one with which the "
            "model was trained"
        )
    return current


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray], output: str | os.PathLike[str]) -> None:
    """Write the tensors to one file or, if they need more than ``MAX_SHARD_BYTES``, to several such files and an index.

    Args:
      output: the folder's name for error messages.

    Raises:
      UserError: a file cannot be written.
    """
    shards: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name, array in tensors.items():
        if shards[-1] and size + array.nbytes > MAX_SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = array
        size += array.nbytes
    places: dict[str, str] = {}
    for i, shard in enumerate(shards):
        path = folder / (WEIGHTS if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors")
        places |= dict.fromkeys(shard, path.name)
        _save(path, shard, output)
    if len(shards) > 1:
        total = sum(array.nbytes for array in tensors.values())
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def _save(path: Path, tensors: dict[str, np.ndarray], output: str | os.PathLike[str]) -> None:
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, {"format": "pt"})
    except safetensors.SafetensorError as error:  # raised instead of OSError if the disk is full
        raise UserError(f"cannot write {output}: {error}; {write_errors.write_advice(error)}") from error
    path.chmod(mode)  # safetensors makes files that only the owner can read
