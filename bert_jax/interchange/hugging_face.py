"""Hugging Face directories, out and in, without torch or transformers."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
from safetensors.numpy import save_file

from bert_jax import configuration, files
from bert_jax.errors import UserError
from bert_jax.interchange import names
from bert_jax.models.bert import BertForPreTraining, fresh_params
from bert_jax.models.config import ModelConfig
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.wordpiece import WordPiece

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
PICKLE_HINT = (
    "; pytorch_model.bin is a pickle, which can run code: load it with transformers where you trust it, then "
    "model.save_pretrained(folder)"
)
# config.json's name of each number of a ModelConfig, and what older files leave out.
_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
    "max_position_embeddings": "max_length",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
    "layer_norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
_DEFAULTS = {
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
}
TOLERANCE = 1e-5  # of the probe, relative to the largest output


@dataclasses.dataclass(frozen=True)
class Imported:
    """What a Hugging Face directory holds."""

    params: dict[str, Any]  # unrolled, float32; without the missing parts
    config: ModelConfig
    tokenizer: Tokenizer
    missing: tuple[str, ...]  # their names of tensors that are not there: heads, pooler
    unused: tuple[str, ...]  # tensors of theirs that BERT pretraining has no place for


# ---- Out ---------------------------------------------------------------------------------------------------------


def export_model(
    params: Any, config: ModelConfig, tokenizer: Tokenizer, output: str | os.PathLike[str], card: str
) -> None:
    """Write config.json, model.safetensors, the tokenizer's files and the model card, all or nothing.

    Before the folder appears it is read again and must give the same outputs.

    Args:
      params: unrolled tree of ``BertForPreTraining(config)``.

    Raises:
      UserError: ``output`` is there already, the disk is full, or the numerical probe fails.
    """
    config = dataclasses.replace(config, layers="unrolled")
    with files.whole_directory(output) as folder:
        leaves = {e: np.asarray(_leaf(params, e.ours), np.float32) for e in names.entries(config.num_layers)}
        _write_tensors(folder / WEIGHTS, {e.theirs: names.to_theirs(x, e) for e, x in leaves.items()}, output)
        _write_json(folder / "config.json", hf_config(config, tokenizer))
        shutil.copymode(folder / "config.json", folder / WEIGHTS)  # safetensors leaves it to its owner alone
        tokenizer.save(folder / tokenizer.file_name)
        (folder / "tokenizer.json").write_text(tokenizer.tokenizer_json(), encoding="utf-8")
        _write_json(folder / "tokenizer_config.json", _tokenizer_config(config, tokenizer))
        _write_json(folder / "special_tokens_map.json", _special_tokens(tokenizer))
        (folder / "README.md").write_text(card, encoding="utf-8")
        _probe(params, config, import_model(folder))


def _write_tensors(path: Path, tensors: dict[str, np.ndarray], output: str | os.PathLike[str]) -> None:
    try:
        save_file(tensors, path, {"format": "pt"})
    except safetensors.SafetensorError as error:  # what a full disk is here: no OSError
        raise UserError(f"cannot write {output}: {error}; free some space or choose another place") from error


def hf_config(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """``config.json`` of a ``BertForPreTraining``."""
    return {
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        **{theirs: getattr(config, ours) for theirs, ours in _FIELDS.items()},
        "hidden_act": ACTIVATIONS[config.activation],
        "pad_token_id": tokenizer.pad_id,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    t = tokenizer
    ids = {"unk": t.unk_id, "sep": t.sep_id, "pad": t.pad_id, "cls": t.cls_id, "mask": t.mask_id}
    return {f"{name}_token": t.vocab[i] for name, i in ids.items()}


def _tokenizer_config(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    is_wordpiece = tokenizer.file_name == WordPiece.file_name
    # A class for any tokenizer.json leaves the types of a pair out, unless it is told.
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    own = {"tokenize_chinese_chars": True, "strip_accents": None} if is_wordpiece else names
    return {
        # Any other class than these would go by its own rules and not by tokenizer.json.
        "tokenizer_class": "BertTokenizer" if is_wordpiece else "PreTrainedTokenizerFast",
        "do_lower_case": tokenizer.lowercase,
        "model_max_length": config.max_length,
        **own,
        **_special_tokens(tokenizer),
    }


def _probe(params: Any, config: ModelConfig, written: Imported) -> None:
    """Outputs of the folder just written, on fixed random tokens, against those of the model in memory."""
    rng = np.random.default_rng(0)
    length = min(16, config.max_length)
    batch = {
        "input_ids": rng.integers(0, config.vocab_size, (2, length), np.int32),
        "token_type_ids": rng.integers(0, config.type_vocab_size, (2, length), np.int32),
        "attention_mask": np.ones((2, length), np.int32),
        "masked_positions": np.tile(np.arange(length, dtype=np.int32), (2, 1)),
        "cls_positions": np.zeros((2, 1), np.int32),
    }
    model = BertForPreTraining(dataclasses.replace(config, dtype="float32"))
    apply = jax.jit(model.apply)
    expected, found = (apply({"params": p}, **batch) for p in (params, written.params))
    for name, value in expected.items():
        scale, error = np.abs(value).max(), np.abs(np.asarray(value) - np.asarray(found[name])).max()
        if not error <= TOLERANCE * max(scale, 1.0):
            raise UserError(
                f"the exported model differs from the trained one ({name} by {error:.1e}); nothing was written"
            )


# ---- In ----------------------------------------------------------------------------------------------------------


def import_model(directory: str | os.PathLike[str]) -> Imported:
    """Read a BERT with any of its heads.

    Raises:
      UserError: no BERT, weights only as a pickle, a truncated file, tensors that do not fit the config.
    """
    with files.downloaded(directory) as folder:
        return _import_local(folder, str(directory))


def _import_local(folder: Path, directory: str) -> Imported:
    config = model_config(_read_json(folder / "config.json"), directory)
    tokenizer = _read_tokenizer(folder, config, directory)
    tensors = _tied(_read_tensors(folder), directory)
    params: dict[str, Any] = {}
    missing, problems = [], []
    shapes = jax.tree.map(lambda x: x.shape, jax.eval_shape(lambda: fresh_params(config)))
    for entry in names.entries(config.num_layers):
        if entry.theirs not in tensors:
            missing.append(entry.theirs)
            continue
        array, shape = tensors.pop(entry.theirs), _leaf(shapes, entry.ours)
        wanted = names.to_theirs(np.broadcast_to(np.float32(0), shape), entry).shape
        if array.shape != wanted:
            problems.append(f"{entry.theirs} is {list(array.shape)}, config.json says {list(wanted)}")
        else:
            _put(params, entry.ours, names.to_ours(array, entry, shape))
    essential = [name for name in missing if name.startswith(("bert.embeddings.", "bert.encoder."))]
    if essential:
        problems.append(f"{len(essential)} tensors of the encoder are missing, such as {essential[0]}")
    if problems:
        raise UserError(f"{directory} does not fit together: {'; '.join(problems[:5])}; copy the whole folder again")
    return Imported(params, config, tokenizer, tuple(missing), tuple(sorted(tensors)))


def _read_tokenizer(folder: Path, config: ModelConfig, directory: str) -> Tokenizer:
    vocabulary = tokenizers.existing(folder)
    if vocabulary is None:
        raise UserError(
            f"{directory} has no {' or '.join(tokenizers.FILE_NAMES)}; save the tokenizer's vocabulary there, one piece"
            " a line, or its sentencepiece model"
        )
    tokenizer = tokenizers.load(vocabulary, _lowercase(folder))
    if tokenizer.size > config.vocab_size:  # fewer are fine: embeddings are padded to a round number
        raise UserError(
            f"{directory}/{tokenizer.file_name} has {tokenizer.size} pieces, the model {config.vocab_size} embeddings; "
            "copy the whole folder again"
        )
    return tokenizer


def model_config(theirs: Mapping[str, Any], where: str) -> ModelConfig:
    """``config.json`` -> ours. Raises ``UserError`` for another architecture than BERT."""
    if theirs.get("model_type", "bert") != "bert":
        raise UserError(f"{where} is a {theirs['model_type']!r} model; only model_type 'bert' can be read")
    if theirs.get("position_embedding_type", "absolute") != "absolute":
        raise UserError(f"{where} has {theirs['position_embedding_type']} positions; only absolute ones can be read")
    activations = {name: ours for ours, name in ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu_tanh"}
    activation = str(theirs.get("hidden_act", "gelu"))
    if activation not in activations:
        raise UserError(f"{where} has hidden_act {activation!r}; known: {', '.join(activations)}")
    missing = [name for name in _FIELDS if name not in theirs and name not in _DEFAULTS]
    if missing:
        raise UserError(f"{where}/config.json has no {', '.join(missing)}: it is not a BERT's")
    values = {ours: theirs.get(name, _DEFAULTS.get(name)) for name, ours in _FIELDS.items()}
    try:
        return configuration.build(ModelConfig, values | {"activation": activations[activation]}, "config")
    except UserError as error:
        raise UserError(f"{where}/config.json does not describe a BERT: {error}") from error


def _read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor by its present name, as float32."""
    if (folder / INDEX).exists():
        shards = sorted(set(_read_json(folder / INDEX).get("weight_map", {}).values()))
    elif (folder / WEIGHTS).exists():
        shards = [WEIGHTS]
    else:
        pickled = (folder / "pytorch_model.bin").exists()
        raise UserError(f"{folder} has no {WEIGHTS}" + (PICKLE_HINT if pickled else "; is it a model's folder?"))
    return {names.modern(name): array for shard in shards for name, array in _read_shard(folder / shard)}


def _tied(tensors: dict[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """The tensors without the copies of a tied decoder. Raises ``UserError`` where it is not tied."""
    kept = {name: array for name, array in tensors.items() if name not in names.REDUNDANT}
    decoder, words = (
        tensors.get(f"{n}.weight") for n in ("cls.predictions.decoder", "bert.embeddings.word_embeddings")
    )
    if decoder is not None and words is not None and not np.array_equal(decoder, words):
        raise UserError(f"{where} has an MLM decoder that is not its word embeddings; only tied ones can be read")
    if "cls.predictions.decoder.bias" in tensors:
        kept.setdefault("cls.predictions.bias", tensors["cls.predictions.decoder.bias"])
    return kept


def _read_shard(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    try:
        with safetensors.safe_open(path, framework="flax") as file:  # its bfloat16 needs jax's dtypes
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                yield name, np.asarray(file.get_tensor(name)).astype(np.float32)
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}); it may be cut short: copy it again") from error


def _lowercase(folder: Path) -> bool | None:
    """What the tokenizer's files say, if anything."""
    for name in ("tokenizer_config.json", "config.json"):
        if (folder / name).exists() and "do_lower_case" in (content := _read_json(folder / name)):
            return bool(content["do_lower_case"])
    return None


def _leaf(tree: Any, path: str) -> Any:
    for name in path.split("/"):
        tree = tree[name]
    return tree


def _put(tree: dict[str, Any], path: str, value: np.ndarray) -> None:
    *folders, last = path.split("/")
    for name in folders:
        tree = tree.setdefault(name, {})
    tree[last] = value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} has no {path.name}; is it a Hugging Face model's folder?") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); copy it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is a JSON {type(content).__name__}, not an object; copy it again")
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
