"""Small byte-level tokenizers in the forms in which published ones come."""

from typing import Any

from bert_jax.text.marks import ALPHABET

MERGES = (
    "Ġ t",
    "h e",
    "Ġt he",
    "c a",
    "ca t",
    "# #",
    "i n",
    "o r",
    "Ġ w",
    "Ġw or",
    "l d",
    "H e",
    "l l",
    "He ll",
    "Ã ©",
)
PIECES = (*sorted(ALPHABET), *(merge.replace(" ", "") for merge in MERGES))
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def roberta() -> dict[str, Any]:
    """Return RoBERTa's form: merges as strings, its own post-processor, special tokens in the vocabulary."""
    vocab = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *PIECES, "<mask>"])}
    special = [{"id": vocab[t], "content": t, "lstrip": t == "<mask>", "special": True} for t in vocab if t in SPECIAL]
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [{"single_word": False, "rstrip": False, "normalized": False, **entry} for entry in special],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ["</s>", 2],
            "cls": ["<s>", 0],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "fuse_unk": False, "vocab": vocab, "merges": list(MERGES)},
    }


SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def modern_bert() -> dict[str, Any]:
    """Return ModernBERT's form: NFC, merges as pairs, runs of spaces and special tokens added after the vocabulary."""
    vocab = {piece: i for i, piece in enumerate(PIECES)}
    added = ["  ", "   ", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    entries = [
        {
            "id": len(vocab) + i,
            "content": token,
            "single_word": False,
            "lstrip": token == "[MASK]",
            "rstrip": False,
            "normalized": not token.strip(),
            "special": bool(token.strip()),
        }
        for i, token in enumerate(added)
    ]
    ids = {entry["content"]: entry["id"] for entry in entries}
    cls, sep = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("[CLS]", "[SEP]"))
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": entries,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [cls, first, sep],
            "pair": [cls, first, sep, second, sep],
            "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in ("[CLS]", "[SEP]")},
        },
        "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "vocab": vocab, "merges": [merge.split(" ") for merge in MERGES]},
    }
