"""The tokenizer: reading vocabularies, encoding for corpora and for single inputs, exports."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tokenizers

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text import json_engine
from bert_jax.text.tokenizer import Tokenizer, load, wordpiece

PIECES = ["the", "cat", "s", "##s", "sat", "mask", "[", "]", "un", "##afford", "##able", ".", "e", "à", "中"]
VOCAB = (*SPECIAL_TOKENS, *PIECES)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return wordpiece(VOCAB)


def ids(*pieces: str) -> list[int]:
    return [VOCAB.index(p) for p in pieces]


def test_ids_and_sizes(tokenizer):
    assert tokenizer.size == len(VOCAB)
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert tokenizer.is_continuation.tolist() == [p.startswith("##") for p in VOCAB]


def test_encode_batch_joins_words_and_keeps_special_tokens_plain(tokenizer):
    batch = tokenizer.encode_batch(["The cats sat.", "", "  unaffordable  ", "[MASK]", "the 中the dog"])
    expected = [
        ids("the", "cat", "##s", "sat", "."),
        [],
        ids("un", "##afford", "##able"),
        ids("[", "mask", "]"),
        ids("the", "中", "the", "[UNK]"),
    ]
    assert [b.tolist() for b in batch] == expected
    assert all(b.dtype == np.int32 for b in batch)


def test_word_cache_never_changes_the_ids(tokenizer, monkeypatch):
    texts = [f"the cat{'s' * (i % 3)} sat{'.' * (i % 2)} à\tunaffordable" for i in range(50)]
    expected = [e.ids for e in tokenizer._engine._library.encode_batch(texts, add_special_tokens=False)]
    monkeypatch.setattr(json_engine, "CACHED_WORDS", 3)  # forgets all the time
    for _ in range(2):
        assert [t.tolist() for t in tokenizer.encode_batch(texts)] == expected
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(tokenizer.encode_batch, [texts] * 20):
            assert [t.tolist() for t in result] == expected


def test_cased_vocabulary_keeps_accents_and_case():
    cased = wordpiece((*VOCAB, "The"), lowercase=False)
    assert cased.encode_batch(["The à"])[0].tolist() == [len(VOCAB), VOCAB.index("à")]
    assert wordpiece((*VOCAB, "a")).encode_batch(["À"])[0].tolist() == [len(VOCAB)]


def test_words_over_a_hundred_characters_are_unknown():
    tokenizer = wordpiece((*SPECIAL_TOKENS, "a", "##a"))
    assert len(tokenizer.encode_batch(["a" * 100])[0]) == 100
    assert tokenizer.encode_batch(["a" * 101])[0].tolist() == [tokenizer.unk_id]


def test_encode_pair_has_types_mask_offsets_and_word_starts(tokenizer):
    encoded = tokenizer.encode("the cats", "sat.", max_length=9)
    assert encoded.pieces == ("[CLS]", "the", "cat", "##s", "[SEP]", "sat", ".", "[SEP]", "[PAD]")
    assert encoded.input_ids == tuple(ids(*encoded.pieces))
    assert encoded.token_type_ids == (0, 0, 0, 0, 0, 1, 1, 1, 0)
    assert encoded.attention_mask == (1,) * 8 + (0,)
    assert encoded.offsets == ((0, 0), (0, 3), (4, 7), (7, 8), (0, 0), (0, 3), (3, 4), (0, 0), (0, 0))
    assert encoded.word_starts == (False, True, True, False, False, True, True, False, False)


def test_special_tokens_in_text_are_recognised_on_demand(tokenizer):
    assert tokenizer.encode("the [MASK].", special_tokens_in_text=True).pieces[2:4] == ("[MASK]", ".")
    assert tokenizer.encode("the [MASK].").pieces[2:5] == ("[", "mask", "]")


def test_decode_is_readable(tokenizer):
    encoded = tokenizer.encode("The cats sat.", max_length=12)
    assert tokenizer.decode(encoded.input_ids) == "the cats sat."


def test_the_case_and_the_pieces_are_the_identity(tokenizer):
    """``test_tokenizer`` saves, loads and pickles every kind."""
    assert wordpiece(VOCAB).sha256 == tokenizer.sha256
    assert tokenizer.sha256 not in (wordpiece(VOCAB, lowercase=False).sha256, wordpiece((*VOCAB, "more")).sha256)


def test_tokenizer_json_gives_the_same_ids(tokenizer):
    library = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json())
    encoding = library.encode("the cats", "Sat. à")
    ours = tokenizer.encode("the cats", "Sat. à")
    assert tuple(encoding.ids) == ours.input_ids
    assert tuple(encoding.type_ids) == ours.token_type_ids
    assert library.encode("[MASK]").tokens == ["[CLS]", "[MASK]", "[SEP]"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n", r"lacks the special token \[MASK\]; add"),
        (b"[pad]\n[unk]\n[CLS]\n[SEP]\n[MASK]\n", r"lacks the special tokens \[PAD\] \[UNK\]"),
        (b"[PAD]\n[UNK]\n\xff\n", "not UTF-8 at byte offset 12"),
    ],
)
def test_bad_vocabulary_files_are_explained(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load(path)


def test_line_ends_and_unusual_pieces(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\ufeff[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\n\u2028\r\n##\u2028\r\n\u0085".encode())
    assert load(path).vocab == (*SPECIAL_TOKENS, "\u2028", "##\u2028", "\u0085")


def test_published_cased_vocabulary(shared_data):
    tokenizer = load(shared_data("vocab") / "bert-base-cased-vocab.txt", lowercase=False)
    encoded = tokenizer.encode("I will watch Memento tonight", max_length=10)
    assert encoded.input_ids == (101, 146, 1209, 2824, 2508, 26173, 3568, 102, 0, 0)


@pytest.mark.parametrize(("name", "size"), [("base-uncased", 30522), ("base-chinese", 21128)])
def test_published_vocabularies_load(shared_data, name, size):
    tokenizer = load(shared_data("vocab") / f"bert-{name}-vocab.txt")
    assert tokenizer.size == size
    assert tokenizer.special_ids == (0, 100, 101, 102, 103)
