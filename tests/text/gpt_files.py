"""Small tokenizers in the forms of GPT-2 and GPT-1, as published: a vocabulary and its merges, or a tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.text.byte_level_files import BYTE_LEVEL, MERGES, pieces_of

END = "<|endoftext|>"
_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": True}
_WORDS = ("t h", "th e</w>", "c a", "ca t</w>", "c a</w>", "1 2</w>", ". .", "é t", "ét é</w>", "中 中</w>")


def gpt2_files(merges: tuple[str, ...] = MERGES) -> tuple[dict[str, int], list[str]]:
    """Return vocab and merges: the bytes, a piece for each merge, and the end token as the last piece."""
    return {piece: i for i, piece in enumerate((*pieces_of(merges), END))}, list(merges)


def gpt_files() -> tuple[dict[str, int], list[str]]:
    """Return vocab and merges of GPT-1's form: <unk>, letters, letters that end words, a piece for each merge."""
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789.,!'\"-?#é中"]
    pieces = ["<unk>", *letters, *(f"{c}</w>" for c in letters), *(m.replace(" ", "") for m in _WORDS)]
    return {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, list(_WORDS)


def write(folder: Path, files: tuple[dict[str, int], list[str]], **config: Any) -> Path:
    """Write vocab.json, merges.txt and, if ``config`` says anything, tokenizer_config.json."""
    vocab, merges = files
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def gpt2() -> dict[str, Any]:
    """Return the tokenizer.json of GPT-2's form, as transformers saved it."""
    vocab, merges = gpt2_files()
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocab[END], "content": END, **_FLAGS}],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
        "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocab, "merges": merges},
    }


def gpt() -> dict[str, Any]:
    """Return the tokenizer.json of GPT-1's form, as transformers saved it."""
    vocab, merges = gpt_files()
    clean = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": "<unk>", **_FLAGS}],
        "normalizer": {"type": "BertNormalizer", **clean},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "BPEDecoder", "suffix": "</w>"},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "</w>",
            "fuse_unk": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


FORMS: dict[str, Any] = {"gpt2": (gpt2, gpt2_files), "gpt": (gpt, gpt_files)}
