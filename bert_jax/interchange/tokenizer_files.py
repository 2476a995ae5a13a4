"""Writes and reads the tokenizer's files in a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interchange.json_files import read_json, write_json
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import encoder_file
from bert_jax.storage import files, reading
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.tokenizer_json import FILE_NAME, flat
from bert_jax.text.vocab_txt import lines_of

MAX_SPARE = 1024  # spare rows, which let an embedding table be split over devices, must be fewer than this


def write_tokenizer(folder: Path, config: ModelConfig, tokenizer: Tokenizer) -> None:
    """Write our own tokenizer file, ``tokenizer.json``, and the two small JSON files that transformers needs."""
    tokenizer.save(folder / tokenizer.file_name)
    content = tokenizer.tokenizer_json()
    if not _has_types(config):
        content = _of_one_type(content)
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    settings = _tokenizer_config(config, tokenizer) | _space_before_text(content)
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "special_tokens_map.json", _special_tokens(tokenizer))


def _has_types(config: ModelConfig) -> bool:
    """Return whether the model tells the texts of a pair apart by token types."""
    reads = encoder_file(config.encoder).Encoder.reads
    return "token_type_ids" in reads and config.type_vocab_size > 1


def _of_one_type(tokenizer_json: str) -> str:
    """Return a ``tokenizer.json`` that gives both texts of a pair type 0, the only one of the model."""
    content = json.loads(tokenizer_json)
    for part in content["post_processor"]["pair"]:
        next(iter(part.values()))["type_id"] = 0
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def _space_before_text(tokenizer_json: str) -> dict[str, bool]:
    """Return ``add_prefix_space`` as the pre-tokenizer has it; transformers 4 takes false if no other file says it."""
    steps = flat(json.loads(tokenizer_json)["pre_tokenizer"], "pretokenizers")
    return {key: step[key] for step in steps for key in ("add_prefix_space",) if key in step}


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    t = tokenizer
    ids = {"unk": t.unk_id, "sep": t.sep_id, "pad": t.pad_id, "cls": t.cls_id, "mask": t.mask_id}
    return {f"{name}_token": t.vocab[i] for name, i in ids.items()}


def _tokenizer_config(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    has_types = _has_types(config)
    is_bert = has_types and tokenizer.file_name == "vocab.txt"  # that class makes token types of its own
    # PreTrainedTokenizerFast returns token types only if model_input_names lists them.
    names = {"model_input_names": ["input_ids", *["token_type_ids"] * has_types, "attention_mask"]}
    own = {"tokenize_chinese_chars": True, "strip_accents": None} if is_bert else names
    return {
        # Other tokenizer classes would ignore tokenizer.json and apply their own rules.
        "tokenizer_class": "BertTokenizer" if is_bert else "PreTrainedTokenizerFast",
        "do_lower_case": tokenizer.lowercase,
        "model_max_length": config.max_length,
        **own,
        **_special_tokens(tokenizer),
    }


def read_tokenizer(folder: Path, config: ModelConfig, where: str, lowercase: bool | None = None) -> Tokenizer:
    """Return the tokenizer in a model's folder.

    Args:
      where: the folder's name for error messages.
      lowercase: whether the tokenizer lower-cases text. If None, its files decide.

    Raises:
      UserError: the folder has no tokenizer, or two that differ, or one whose number of pieces does not fit the
        model's embeddings.
    """
    vocabulary = tokenizers.existing(folder)
    if vocabulary is None:
        raise UserError(
            f"{where} has no {' or '.join(tokenizers.FILE_NAMES)}; save the tokenizer's vocabulary there, one piece "
            "per line, or its sentencepiece model, or its tokenizer.json (WordPiece, Unigram or byte-level BPE)"
        )
    if lowercase is None and files.as_path(vocabulary).name != FILE_NAME:  # a tokenizer.json says it itself
        lowercase = _lowercase(folder)
    _check_same(folder, where)
    tokenizer = tokenizers.load(vocabulary, lowercase)
    if not is_padded(config.vocab_size, tokenizer.size) or tokenizer.size < len(_pieces_of_json(folder)):
        raise UserError(
            f"{vocabulary} has {tokenizer.size} pieces, the model {config.vocab_size} embeddings (special and added "
            "tokens are pieces too); copy the whole folder again"
        )
    return tokenizer


def tokenizer_of(source: str) -> Tokenizer:
    """Return the tokenizer of ``source``: a vocabulary's file, or the folder of one, of a model or of a run.

    Raises ``UserError`` if there is none.
    """
    folder = files.as_path(source)
    run = (reading.read_object(folder / "run.json") or {}) if folder.is_dir() else {}
    lowercase = run.get("facts", {}).get("lowercase")
    return tokenizers.load(source, _lowercase(folder) if folder.is_dir() and lowercase is None else lowercase)


def is_padded(num_embeddings: int, num_pieces: int) -> bool:
    """Return whether an embedding table fits a vocabulary of ``num_pieces``.

    It fits if it has one row per piece, or fewer than ``MAX_SPARE`` extra rows that make the number of rows divisible
    by 8.
    """
    spare = num_embeddings - num_pieces
    return spare == 0 or (0 < spare < MAX_SPARE and num_embeddings % 8 == 0)


def _pieces_of_json(folder: Path) -> dict[str, int] | list[Any]:
    """Return the pieces in ``tokenizer.json``; empty if the file or its vocabulary is missing."""
    path = folder / "tokenizer.json"
    model = read_json(path).get("model") if path.exists() else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    return vocabulary if isinstance(vocabulary, dict | list) else []


def _check_same(folder: Path, where: str) -> None:
    """Raise ``UserError`` if ``vocab.txt`` lacks pieces of the ``tokenizer.json`` beside it: it was cut short."""
    theirs, file = _pieces_of_json(folder), folder / "vocab.txt"
    if not (isinstance(theirs, dict) and file.exists()):
        return
    lines = lines_of(reading.read_bytes(file).decode("utf-8-sig", "replace"))
    for i, piece in enumerate(sorted(theirs, key=theirs.__getitem__)):
        if i >= len(lines) or lines[i] != piece:
            ours = f"{lines[i]!r} on line {i + 1:,}" if i < len(lines) else f"{len(lines):,} lines"
            raise UserError(
                f"{where}/{file.name} has {ours}, but {where}/tokenizer.json has {len(theirs):,} pieces, {piece!r} as "
                f"number {i + 1:,}: one of them was cut short or changed; copy the whole folder again"
            )


def _lowercase(folder: Any) -> bool | None:
    """Return whether the tokenizer's files say that it lower-cases text; None if they do not say."""
    for name in ("tokenizer_config.json", "config.json"):
        if (folder / name).exists() and "do_lower_case" in (content := read_json(folder / name)):
            return bool(content["do_lower_case"])
    return None
