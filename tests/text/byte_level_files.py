"""Small byte-level tokenizers in the forms of published tokenizers."""

from collections.abc import Iterable, Sequence
from typing import Any

from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.marks import ALPHABET

MERGES = (
    *("Ġ t", "h e", "Ġt he", "c a", "ca t", "# #", "i n", "o r", "Ġ w", "Ġw or", "l d", "H e", "l l", "He ll"),
    "Ã ©",
)


def pieces_of(merges: Sequence[str]) -> tuple[str, ...]:
    return (*sorted(ALPHABET), *(merge.replace(" ", "") for merge in merges))


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def roberta() -> dict[str, Any]:
    """Return RoBERTa's form: merges as strings, its own post-processor, special tokens in the vocabulary."""
    vocab = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces_of(MERGES), "<mask>"])}
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


def modern_bert(
    merges: Sequence[str] = MERGES,
    first: Sequence[str] = (),
    plain: Sequence[str] = ("  ", "   "),
    unused: Sequence[str] = (),
) -> dict[str, Any]:
    """Return ModernBERT's form: NFC, merges as pairs, runs of spaces and special tokens added after the vocabulary."""
    vocab = {piece: i for i, piece in enumerate([*first, *pieces_of(merges)])}
    added = [*first, *plain, "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *unused]
    entries = [
        {
            "id": vocab.get(token, len(vocab) + i - len(first)),
            "content": token,
            "single_word": False,
            "lstrip": token == "[MASK]",
            "rstrip": False,
            "normalized": token in (*first[:1], *plain, *unused),
            "special": token not in (*first[:1], *plain, *unused),
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
        "model": {"type": "BPE", "vocab": vocab, "merges": [merge.split(" ") for merge in merges]},
    }


def released(merges: Sequence[str] = MERGES) -> dict[str, Any]:
    """Return ModernBERT's form with every kind of added token that the released file has, such as 2 to 24 spaces."""
    plain = [*(" " * n for n in range(24, 1, -1)), "|||EMAIL_ADDRESS|||"]
    return modern_bert(merges, ["|||IP_ADDRESS|||", "<|padding|>"], plain, [f"[unused{i}]" for i in range(5)])


def released_for(texts: Iterable[str], size: int = 400) -> dict[str, Any]:
    """Return the same with merges that ``texts`` teach; added tokens come on top of ``size``."""
    return released([" ".join(merge) for merge in learn_byte_bpe(texts, size)._engine.content["model"]["merges"]])
