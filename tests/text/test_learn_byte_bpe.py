"""Learning byte-level BPE: ties by code points, every byte kept."""

import json

import pytest
from tokenizers import Tokenizer

from bert_jax.errors import UserError
from bert_jax.text.learn_byte_bpe import learn_byte_bpe


def test_pairs_that_are_as_frequent_are_joined_by_code_points():
    tokenizer = learn_byte_bpe(["zy", "xw", "ba"] * 3, 4 + 256 + 3 + 1)
    assert tokenizer.vocab[260:] == ("ba", "xw", "zy", "<mask>")


def test_a_byte_that_was_not_seen_is_kept():
    tokenizer = learn_byte_bpe(["xab xab"] * 3, 270)
    assert tokenizer.decode(tokenizer.encode_batch(["xab é🙂"])[0]) == "xab é🙂"


def test_case_and_accents_go_if_asked():
    tokenizer = learn_byte_bpe(["the naive cafe"] * 3, 300, lowercase=True)
    assert tokenizer.lowercase
    assert tokenizer.decode(tokenizer.encode_batch(["The Naïve CAFÉ"])[0]) == "the naive cafe"
    assert not learn_byte_bpe(["the naive cafe"] * 3, 300).lowercase


def test_what_cannot_be_learned():
    with pytest.raises(UserError, match="260 pieces has no room .* at least 261"):
        learn_byte_bpe(["the"], 260)
    with pytest.raises(UserError, match="is empty"):
        learn_byte_bpe(["", " \n"], 300)
    assert learn_byte_bpe(["half \ud800 a character"], 261).size == 261


@pytest.mark.parametrize(
    ("texts", "spaced"),
    [
        (["我们去北京。", "北京很大,café。"], False),
        (["がくせいはほんをよみます。"], False),
        (["ไปกรุงเทพ"], False),
        (["학생은 책을 읽습니다"], True),
        (["यह हिन्दी में लिखा है"], True),
        (["We go to 北京 by train."], True),
    ],
)
def test_a_space_before_a_text_only_where_words_have_spaces(texts: list[str], spaced: bool) -> None:
    tokenizer = learn_byte_bpe(texts * 20, 400)
    theirs = Tokenizer.from_str(tokenizer.tokenizer_json())
    assert json.loads(theirs.pre_tokenizer.__getstate__())["add_prefix_space"] is spaced
    for text in texts:
        [ids] = tokenizer.encode_batch([text])
        assert ids.tolist() == theirs.encode(text, add_special_tokens=False).ids
        assert tokenizer.vocab[ids[0]].startswith("Ġ") == spaced
        assert tokenizer.decode(ids) == text
