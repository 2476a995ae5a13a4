"""Finding and reading a tokenizer, whichever its kind."""

import json
import pickle

import numpy as np
import pytest
import tokenizers

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.tokenizer import Tokenizer, check_name, existing, file_name, find, load, sentencepiece, wordpiece
from tests.toy import learn_wordpiece

TEXTS = ["the cats run to the river", "The dog runs, and the cat sees it."] * 20


@pytest.fixture(scope="module", params=["wordpiece", "unigram", "bpe", "byte_bpe"])
def tokenizer(request) -> Tokenizer:
    if request.param == "wordpiece":
        return wordpiece((*SPECIAL_TOKENS, "the", "cat", "##s", "run", "to", "river", ",", "."))
    if request.param == "byte_bpe":
        return learn_byte_bpe(TEXTS, 300)
    return sentencepiece(learn_sentencepiece(TEXTS, 45, request.param, lowercase=False))


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
    """A file as transformers writes it gives the tokenizer of the ``vocab.txt``, which says less."""
    whole = wordpiece((*SPECIAL_TOKENS, "the", "cat", "##s", "Run"), lowercase)
    content = json.loads(whole.tokenizer_json())
    content["normalizer"]["strip_accents"] = lowercase  # another way to say it
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert load(path).sha256 == load(tmp_path, not lowercase).sha256 == whole.sha256
    assert load(path).file_name == "vocab.txt"


def test_a_wordpiece_with_other_rules_keeps_them(tmp_path):
    content = json.loads(wordpiece((*SPECIAL_TOKENS, "the", "Thé", "##中", "中")).tokenizer_json())
    content["normalizer"] |= {"handle_chinese_chars": False, "lowercase": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load(tmp_path)
    assert tokenizer.encode("Thé the中").pieces[1:-1] == ("Thé", "the", "##中")
    assert (tokenizer.file_name, tokenizer.lowercase) == ("tokenizer.json", False)


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        (
            {"[UNK]": 0, "the": 1, "cat": 7},
            "does not number its 7 pieces from 0 to 6: '.UNK.' and 'the' both have the id 1",
        ),
        ([], "is damaged, or a WordPiece tokenizer that cannot be read: .*; save it as"),
    ],
)
def test_a_damaged_wordpiece_is_refused(tmp_path, vocab, message):
    content = json.loads(wordpiece((*SPECIAL_TOKENS, "the")).tokenizer_json())
    content["model"]["vocab"] = vocab
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_the_texts_of_a_pair_are_shortened_alike(tokenizer):
    for length, types in ((7, (0, 0, 0, 0, 1, 1, 1)), (6, (0, 0, 0, 0, 1, 1))):
        short = tokenizer.encode("the the the", "the the", max_length=length)
        assert (len(short.input_ids), short.token_type_ids) == (length, types)
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
    with pytest.raises(UserError, match="has neither tokenizer.json nor vocab.txt nor spiece.model; put"):
        load(tmp_path)


def test_the_name_says_the_kind():
    assert [file_name(kind) for kind in ("wordpiece", "unigram", "bpe", "byte_bpe")] == [
        "vocab.txt",
        "spiece.model",
        "spiece.model",
        "tokenizer.json",
    ]
    assert file_name("unigram", changed=True) == "tokenizer.json"
    check_name("any/name.model", "spiece.model", "it")
    check_name("any/name", "vocab.txt", "it")
    for output, wanted in (("vocab.txt", "spiece.model"), ("x.model", "vocab.txt"), ("vocab.txt", "tokenizer.json")):
        with pytest.raises(UserError, match=f"{output} would be read as .* kind than mine; call it {wanted}"):
            check_name(output, wanted, "mine")


def test_added_tokens_stay_whole_in_every_kind(tokenizer, tmp_path):
    """They get the next ids, and text around them is cut as before."""
    added = tokenizer.with_added([{"content": "<e1>"}, {"content": "</e1>"}])
    assert (added.size, added.vocab[-2:]) == (tokenizer.size + 2, ("<e1>", "</e1>"))
    assert added.vocab[:-2] == tokenizer.vocab
    first, last = tokenizer.size, tokenizer.size + 1
    text = "the <e1>cats</e1> run"
    [ids] = added.encode_batch([text])
    assert [i for i in ids.tolist() if i >= first] == [first, last]
    encoded = added.encode(text)
    assert encoded.input_ids[1:-1] == tuple(ids.tolist())
    spans = dict(zip(encoded.input_ids, encoded.offsets, strict=True))
    assert (text[slice(*spans[first])], text[slice(*spans[last])]) == ("<e1>", "</e1>")
    for text in (*TEXTS, "The [MASK] </s> runs"):
        np.testing.assert_array_equal(added.encode_batch([text])[0], tokenizer.encode_batch([text])[0])
    assert added.surfaces[first] == ("<e1>", None)
    assert not added.is_continuation[[first, last]].any()
    added.save(tmp_path / added.file_name)
    assert added.file_name == "tokenizer.json"
    for copy in (load(tmp_path), pickle.loads(pickle.dumps(added)), added.with_added([{"content": "<e1>"}])):
        assert copy.sha256 == added.sha256 != tokenizer.sha256
    library = tokenizers.Tokenizer.from_str(added.tokenizer_json())
    assert tuple(library.encode("the <e1>cats</e1> run").ids) == added.encode("the <e1>cats</e1> run").input_ids


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized", "special"])
def test_added_tokens_keep_their_rules(tokenizer, flag):
    """Each word of the text and the whole text are cut as the library cuts it."""
    added = tokenizer.with_added([{"content": "Ent", flag: True}])
    library = tokenizers.Tokenizer.from_str(added.tokenizer_json())
    for text in ("the Ent run", "Entrun ent", "the ent", "the  Ent  river", "runEnt", "Ent"):
        wanted = library.encode(text, add_special_tokens=False).ids
        assert added.encode_batch([text])[0].tolist() == list(added.encode(text).input_ids[1:-1]) == wanted, text
