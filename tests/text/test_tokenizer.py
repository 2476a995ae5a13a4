"""Finding and reading a tokenizer, whichever its kind."""

import json
import pickle

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.learn import learn_wordpiece
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.sentencepiece import SentencePiece
from bert_jax.text.tokenizer import Tokenizer, check_name, existing, file_name, find, load
from bert_jax.text.wordpiece import WordPiece

TEXTS = ["the cats run to the river", "The dog runs, and the cat sees it."] * 20


@pytest.fixture(scope="module", params=["wordpiece", "unigram", "bpe", "byte_bpe"])
def tokenizer(request) -> Tokenizer:
    if request.param == "wordpiece":
        return WordPiece((*SPECIAL_TOKENS, "the", "cat", "##s", "run", "to", "river", ",", "."))
    if request.param == "byte_bpe":
        return learn_byte_bpe(TEXTS, 300)
    return SentencePiece(learn_sentencepiece(TEXTS, 45, request.param, lowercase=False))


def test_what_every_tokenizer_offers(tokenizer, tmp_path):
    t = tokenizer
    assert tokenizer.special_ids == (t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id)
    assert tokenizer.pair_separators == 1
    assert (tokenizer.size, len(tokenizer.is_continuation)) == (len(tokenizer.vocab), len(tokenizer.vocab))
    assert [tokenizer.surfaces[i] for i in tokenizer.special_ids] == [(token, None) for token in SPECIAL_TOKENS]
    assert len(set(tokenizer.surfaces)) == tokenizer.size
    [ids] = tokenizer.encode_batch(["the cats run"])
    encoded = tokenizer.encode("the cats run", "to", max_length=20)
    assert encoded.input_ids[1 : 1 + len(ids)] == tuple(ids.tolist())
    assert (len(encoded.input_ids), encoded.input_ids[0], encoded.input_ids[-1]) == (20, t.cls_id, t.pad_id)
    assert tokenizer.decode(ids) == "the cats run"
    words = np.split(np.arange(len(ids)), np.flatnonzero(~tokenizer.is_continuation[ids])[1:])
    assert [tokenizer.decode(ids[word]).replace("##", "") for word in words] == ["the", "cats", "run"]
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert (copy.sha256, copy.lowercase) == (tokenizer.sha256, tokenizer.lowercase)
    tokenizer.save(tmp_path / tokenizer.file_name)
    for place in (tmp_path, tmp_path / tokenizer.file_name, str(tmp_path)):
        found = load(place, tokenizer.lowercase)
        assert (type(found), found.sha256) == (type(tokenizer), tokenizer.sha256)
    assert find(tmp_path) == existing(tmp_path) == tmp_path / tokenizer.file_name


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_tokenizer_json_of_wordpiece_is_read(tmp_path, lowercase):
    """As transformers writes it, with a token that was added after the vocabulary."""
    whole = WordPiece((*SPECIAL_TOKENS, "the", "cat", "##s", "Run", "[NEW]"), lowercase)
    content = json.loads(WordPiece(whole.vocab[:-1], lowercase).tokenizer_json())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 9, "content": "[NEW]"})
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert load(path).sha256 == load(tmp_path, lowercase).sha256 == whole.sha256
    assert file_name("byte_bpe", path) == "vocab.txt"
    with pytest.raises(UserError, match=f"set --config.vocab.lowercase={lowercase}"):
        load(path, not lowercase)


@pytest.mark.parametrize(
    ("step", "option", "value", "message"),
    [
        ("normalizer", "strip_accents", False, "strip_accents False beside lowercase True"),
        ("normalizer", "handle_chinese_chars", False, "normalizer.handle_chinese_chars False; .* if it is BERT's"),
        ("normalizer", "type", "NFC", "normalizer.type 'NFC'; .* give the tokenizer of a BERT"),
        ("model", "vocab", {"the": 5, "cat": 7}, "has no piece for id 6; copy it again"),
        ("model", "vocab", [], "is damaged .*TypeError"),
    ],
)
def test_other_rules_of_a_wordpiece_are_refused(tmp_path, step, option, value, message):
    content = json.loads(WordPiece((*SPECIAL_TOKENS, "the")).tokenizer_json())
    content[step][option] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_the_texts_of_a_pair_are_shortened_alike(tokenizer):
    short = tokenizer.encode("the the the", "the the", max_length=7)
    assert len(short.input_ids) == 7
    assert short.token_type_ids == (0, 0, 0, 0, 1, 1, 1)
    with pytest.raises(UserError, match="max_length is 2; at least 3"):
        tokenizer.encode("the", max_length=2)


def test_half_characters_are_unreadable_ones(tokenizer):
    texts = ["the \ud800 cat", "run", "\udc00the"]
    clean = [text.replace("\ud800", "\ufffd").replace("\udc00", "\ufffd") for text in texts]
    for _ in range(2):
        found = [ids.tolist() for ids in tokenizer.encode_batch(texts)]
        assert found == [ids.tolist() for ids in tokenizer.encode_batch(clean)]
    assert tokenizer.encode(texts[0]) == tokenizer.encode(clean[0])


def test_half_characters_do_not_stop_the_learning():
    texts = [*TEXTS, "the \ud800 cat \udfff"]
    assert "the" in learn_wordpiece(texts, 60)
    assert b"the" in learn_sentencepiece(texts, 45, "bpe")
    assert "Ġthe" in learn_byte_bpe(texts, 300).vocab


def test_a_folder_without_a_tokenizer(tmp_path):
    assert existing(tmp_path) is None
    with pytest.raises(UserError, match="has neither vocab.txt nor spiece.model nor tokenizer.json; put"):
        load(tmp_path)


def test_the_name_says_the_kind():
    assert [file_name(kind) for kind in ("wordpiece", "unigram", "bpe", "byte_bpe")] == [
        "vocab.txt",
        "spiece.model",
        "spiece.model",
        "tokenizer.json",
    ]
    assert [file_name("", path) for path in ("a/merges.txt", "a/vocab.json")] == ["tokenizer.json"] * 2
    assert file_name("wordpiece", "some/t5.model") == "spiece.model"
    assert file_name("unigram", "some/vocab.txt") == "vocab.txt"
    check_name("any/name.model", "bpe")
    check_name("any/name", "wordpiece")
    with pytest.raises(UserError, match="vocab.txt would be read as .* of kind 'bpe'; call it spiece.model"):
        check_name("vocab.txt", "bpe")
    with pytest.raises(UserError, match="x.model would be read as .* the vocabulary v.txt; call it vocab.txt"):
        check_name("x.model", "unigram", "v.txt")
    with pytest.raises(UserError, match="vocab.txt would be read as .* of kind 'byte_bpe'; call it tokenizer.json"):
        check_name("vocab.txt", "byte_bpe")
