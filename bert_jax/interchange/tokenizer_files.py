"""Writes and reads the tokenizer's files in a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interchange.json_files import write_json
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import encoder_file
from bert_jax.storage import files, hub, reading
from bert_jax.text import folders, roles
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.case import NOT_SAID, Case
from bert_jax.text.settings import END
from bert_jax.text.tokenizer import Tokenizer

_MAX_SPARE = 1024  # spare rows, which let an embedding table be split over devices, must be fewer than this


def write_tokenizer(folder: Path, config: ModelConfig, tokenizer: Tokenizer, continues: bool = False) -> None:
    """Write our own tokenizer file, ``tokenizer.json``, and the two small JSON files that transformers needs.

    ``continues``: whether the model's class continues a text. Then the tokenizer of a GPT puts no end token after it.
    """
    is_bert = tokenizer.has_bert_rules
    tokenizer.save(folder / ("vocab.txt" if is_bert else tokenizer.file_name))
    content = tokenizer.tokenizer_json()
    if END in tokenizer.role_ids and not continues:
        content = json.dumps(roles.with_end(json.loads(content)), ensure_ascii=False, indent=1) + "\n"
    if not _has_types(config):
        content = _of_one_type(content)
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    write_json(folder / "tokenizer_config.json", _tokenizer_config(config, tokenizer, is_bert and _has_types(config)))
    write_json(folder / "special_tokens_map.json", _special_tokens(tokenizer))


def _has_types(config: ModelConfig) -> bool:
    """Return whether the model tells the texts of a pair apart by token types."""
    reads = encoder_file(config.encoder).Encoder.reads
    return "token_type_ids" in reads and config.type_vocab_size > 1


def _of_one_type(tokenizer_json: str) -> str:
    """Return a ``tokenizer.json`` that gives both texts of a pair type 0, the only one of the model."""
    content = json.loads(tokenizer_json)
    for part in (*content["post_processor"]["single"], *content["post_processor"]["pair"]):
        next(iter(part.values()))["type_id"] = 0
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    ids = tokenizer.role_ids
    named: dict[str, int] = {role: ids[role] for role in ("unk", "sep", "pad", "cls", "mask") if role in ids}
    if END in ids:  # transformers pads with it too, if it is said
        named |= {"bos": ids[END], "eos": ids[END], "pad": tokenizer.pad_id}
    return {f"{name}_token": tokenizer.vocab[i] for name, i in named.items()}


def _tokenizer_config(config: ModelConfig, tokenizer: Tokenizer, is_bert: bool) -> dict[str, Any]:
    """Return the content of ``tokenizer_config.json``; ``is_bert``: with BERT's class, which makes token types."""
    # The classes of an XLNet classify a text by the last position of its row, which must not be padding.
    reads_last = config.summary == "last" and not config.causal
    # PreTrainedTokenizerFast returns token types only if model_input_names lists them.
    names = {"model_input_names": ["input_ids", *["token_type_ids"] * _has_types(config), "attention_mask"]}
    return {
        # Other tokenizer classes would ignore tokenizer.json and apply their own rules.
        "tokenizer_class": "BertTokenizer" if is_bert else "PreTrainedTokenizerFast",
        "do_lower_case": tokenizer.lowercase,
        "model_max_length": config.max_length,
        **({} if is_bert else names),
        **({"padding_side": "left"} if reads_last else {}),
        **tokenizer.switches,
        **_special_tokens(tokenizer),
    }


def read_tokenizer(folder: Path, config: ModelConfig, where: str, given: Case = NOT_SAID) -> Tokenizer:
    """Return the tokenizer in a model's folder.

    Args:
      where: the folder's name for error messages.
      given: the case of its text, if its files do not say it.

    Raises:
      UserError: the folder has no tokenizer, two tokenizers that differ, or a tokenizer whose number of pieces does not
        fit the model's embeddings.
    """
    vocabulary = tokenizers.existing(folder)
    if vocabulary is None:
        raise UserError(
            f"{where} has no {' or '.join(tokenizers.FILE_NAMES)}; save the tokenizer's vocabulary there, one piece "
            "per line, or its sentencepiece model, or its tokenizer.json (WordPiece, Unigram or byte-level BPE)"
        )
    tokenizer = tokenizers.load(folder, *given, rows=config.vocab_size)
    folders.check_layout(files.as_path(vocabulary), tokenizer.vocab, tokenizer.role_ids)
    if tokenizer.size > config.vocab_size:
        raise UserError(
            f"{vocabulary} has {tokenizer.size} pieces, the model {config.vocab_size} embeddings (special and added "
            "tokens are pieces too); copy the whole folder again"
        )
    return tokenizer


def tokenizer_of(source: str, given: Case = NOT_SAID) -> Tokenizer:
    """Return the tokenizer of ``source``: a vocabulary's file, or the folder of a vocabulary, a model or a run.

    ``given``: the case of its text, if its files do not say it.

    Raises ``UserError`` if there is no vocabulary.
    """
    source = hub.pinned(source)
    folder = files.as_path(source)
    run = (reading.read_object(folder / "run.json") or {}) if folder.is_dir() else {}
    facts = run.get("facts", {})
    given = Case(facts["lowercase"], facts.get("strip_accents")) if "lowercase" in facts else given
    return tokenizers.load(source, *given)


def is_padded(num_embeddings: int, num_pieces: int) -> bool:
    """Return whether an embedding table fits a vocabulary of ``num_pieces``.

    It fits if it has one row per piece, or fewer than ``_MAX_SPARE`` extra rows that make the number of rows divisible
    by 8.
    """
    spare = num_embeddings - num_pieces
    return spare == 0 or (0 < spare < _MAX_SPARE and num_embeddings % 8 == 0)
