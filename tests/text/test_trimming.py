"""A trimmed tokenizer cuts its texts as before, whatever its kind, and still knows every character."""

import random

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.tokenizer import Tokenizer, of_json, sentencepiece, wordpiece
from tests.text.byte_level_files import released_for
from tests.toy import learn_wordpiece

KINDS = (
    *("wordpiece", "wordpiece_json", "byte_bpe", "modern_bert"),
    *("unigram", "unigram_json", "unigram_bytes", "bpe", "bpe_json"),
)


def words(rng: random.Random) -> str:
    syllables = [a + b for a in "bcdfgklmnprst" for b in ("a", "e", "io", "u")]
    return " ".join("".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(rng.randint(3, 12)))


TEXTS = [words(random.Random(seed)) + random.Random(seed).choice([".", ", é!", " -- ×", ""]) for seed in range(400)]
USED, OTHERS = TEXTS[:40], TEXTS[40:]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request) -> Tokenizer:
    kind, _, form = request.param.partition("_")
    if request.param == "modern_bert":
        return of_json(released_for(TEXTS, 600))
    if request.param == "byte_bpe":
        return learn_byte_bpe(TEXTS, 600)
    if kind == "wordpiece":
        found = wordpiece(learn_wordpiece(TEXTS, 300), lowercase=True)
    else:
        found = sentencepiece(learn_sentencepiece(TEXTS, 600, kind, lowercase=False, byte_fallback=form == "bytes"))
    return found.with_added([{"content": "<e1>"}]) if form == "json" else found


def test_the_texts_keep_their_pieces(tokenizer, tmp_path):
    smaller, old = tokenizer.trimmed(USED)
    assert smaller.size == len(old) < tokenizer.size
    assert smaller.vocab == tuple(tokenizer.vocab[i] for i in old)
    assert [old[i] for i in smaller.special_ids] == list(tokenizer.special_ids)
    smaller.save(tmp_path / smaller.file_name)
    assert smaller.file_name == tokenizer.file_name
    for again in (smaller, tokenizers.load(tmp_path, tokenizer.lowercase), of_json(smaller._engine.as_json.content)):
        for text in USED:
            assert again.encode(text).pieces == tokenizer.encode(text).pieces
        assert again.vocab == smaller.vocab


def test_other_texts_are_as_known_as_before(tokenizer):
    smaller, _ = tokenizer.trimmed(USED[:5])
    changed = 0
    for text in [*OTHERS, "<e1> kabio<e1>", "une Æsop", "日本 ka"]:
        before, after = tokenizer.encode(text), smaller.encode(text)
        assert after.pieces.count(smaller.vocab[smaller.unk_id]) <= before.pieces.count(
            tokenizer.vocab[tokenizer.unk_id]
        )
        assert ("<e1>" in after.pieces) == ("<e1>" in before.pieces)
        changed += after.pieces != before.pieces
    assert changed > 100, "pieces that only the other texts use are gone"


def test_rare_pieces_go_with_a_least_count(tokenizer):
    often, _ = tokenizer.trimmed(USED, min_count=3)
    every, old = tokenizer.trimmed(USED)
    counts = np.bincount(np.concatenate(tokenizer.encode_batch(USED)), minlength=tokenizer.size)
    gone = {*every.vocab} - {*often.vocab}
    assert gone
    assert often.size < every.size
    assert all(counts[i] < 3 for i in old if tokenizer.vocab[i] in gone)


def test_a_word_that_fails_keeps_the_pieces_of_the_try():
    """Greedy "ab" leads nowhere; without it, "a" and "##bx", which another word uses, would be found."""
    tokenizer = wordpiece((*SPECIAL_TOKENS, "ab", "a", "##bx", "c", "d", "dd"))
    assert tokenizer.encode("abx cbx").pieces == ("[CLS]", "[UNK]", "c", "##bx", "[SEP]")
    smaller, _ = tokenizer.trimmed(["abx cbx"])
    assert smaller.encode("abx cbx").pieces == ("[CLS]", "[UNK]", "c", "##bx", "[SEP]")
    assert "dd" not in smaller.vocab


def test_a_word_that_is_too_long_is_unknown_at_once():
    """Its pieces are not tried: 50,000 characters of base64 would need all their parts."""
    tokenizer = wordpiece((*SPECIAL_TOKENS, "the", "a", "aa", "##aa", "##a"))
    text = f"the {'a' * 100} {'a' * 50_000}"
    assert tokenizer.encode(text).pieces.count("[UNK]") == 1
    smaller, _ = tokenizer.trimmed([f"the {'a' * 50_000}"])
    assert smaller.vocab == (*SPECIAL_TOKENS, "the", "a", "##a")
    assert tokenizer.trimmed([text])[0].vocab == (*SPECIAL_TOKENS, "the", "a", "aa", "##aa", "##a")


def test_a_piece_of_thousands_of_characters_is_followed_merge_by_merge():
    """Text of a few repeated letters has such pieces; each merge must not look at the whole piece."""
    tokenizer = learn_byte_bpe(["a" * 30_000] * 3, 400)
    assert max(map(len, tokenizer.vocab)) > 30_000
    smaller, _ = tokenizer.trimmed(["a" * 30_000])
    assert smaller.size < tokenizer.size + 1
    assert smaller.encode_batch(["a" * 30_000])[0].size == 1


def test_bpe_keeps_the_merges_on_the_way_and_no_others():
    tokenizer = learn_byte_bpe(["xabcd"] * 5 + ["cdcd", "zz"] * 4, 300)
    smaller, _ = tokenizer.trimmed(["xabcd"])
    assert smaller.encode_batch(["xabcd"])[0].size == 1
    assert {*smaller.vocab} - {*tokenizer.vocab} == set()
    merges = [tuple(merge) for merge in smaller._engine.content["model"]["merges"]]
    assert all({a, b, a + b} <= {*smaller.vocab} for a, b in merges)
    assert {a + b for a, b in merges} == {piece for piece in smaller.vocab if len(piece) > 1 and piece[0] != "<"}
    assert not {"zz", "cdcd"} & {*smaller.vocab}
    assert {"zz", "cdcd"} & {piece.lstrip("Ġ") for piece in tokenizer.vocab}


@pytest.mark.parametrize("tokenizer", ["unigram", "unigram_json"], indirect=True)
def test_unknown_characters_cost_a_unigram_model_what_they_cost_before(tokenizer):
    """The penalty follows the lowest score of all pieces."""
    smaller, _ = tokenizer.trimmed(USED[:1])
    before, after = (dict(t._engine.as_json.content["model"]["vocab"]).values() for t in (tokenizer, smaller))
    assert (min(before), max(before)) == (min(after), max(after))


@pytest.mark.parametrize(("texts", "count"), [([], 1), (["", " "], 1), (USED[:3], 999)])
def test_nothing_to_keep_is_an_error(texts, count):
    with pytest.raises(UserError, match=f"no piece occurs {count} times in the texts"):
        wordpiece((*SPECIAL_TOKENS, *"abcdefgh"), lowercase=True).trimmed(texts, count)


def test_a_strange_bpe_is_refused():
    tokenizer = learn_byte_bpe(TEXTS[:20], 300)
    tokenizer._engine.content["model"]["end_of_word_suffix"] = "</w>"
    with pytest.raises(UserError, match="cannot be trimmed; byte-level BPE can"):
        tokenizer.trimmed(TEXTS[:2])
