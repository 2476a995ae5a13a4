"""Raw text into words, as data for tagging have them."""

import pytest

from bert_jax.text.words import joined_with, split_words, unspaced


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ada Lovelace's U.S. visit.", "Ada Lovelace 's U.S. visit ."),
        ("It cost $1,250.50 (at 12:30)...", "It cost $ 1,250.50 ( at 12:30 ) ..."),
        ("O'Neill and AT&T -- twenty-one; don't!", "O'Neill and AT&T -- twenty-one ; don't !"),
        ("我在北京read书。", "我 在 北 京 read 书 。"),
        (" \n", ""),
    ],
)
def test_words_and_their_places(text: str, words: str) -> None:
    found = split_words(text)
    assert " ".join(word.text for word in found) == words
    assert all(text[word.start : word.end] == word.text for word in found)


@pytest.mark.parametrize(
    ("spaced", "joined"),
    [
        ("春 眠 不 觉 晓 ， 处 处 [MASK] 啼 鸟 。", "春眠不觉晓，处处[MASK]啼鸟。"),
        ("[MASK] 眠 “ 你 好 ” 食 べる", "[MASK]眠“你好”食べる"),
        ("he said “ us ” in 2020 年 , the [MASK] sees", "he said “ us ” in 2020 年 , the [MASK] sees"),
    ],
)
def test_characters_of_scripts_without_spaces_are_joined(spaced, joined):
    assert unspaced(spaced) == joined


@pytest.mark.parametrize(
    ("before", "text", "space"),
    [
        ("He went.", "She stayed.", " "),
        ("他走了。", "“再见”,她说。", ""),
        ("他走了。", "OK", ""),
        ("Hello", "北京", ""),
        ("はい。", "いいえ", ""),
        ("안녕.", "그래.", " "),
    ],
)
def test_sentences_are_joined_as_their_script_does(before: str, text: str, space: str) -> None:
    assert joined_with(" ", before, text) == space + text
    assert joined_with("", before, text) == text
