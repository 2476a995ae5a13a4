"""``bert-jax tokenize``, in the table and as JSON."""

import json

import pytest

from bert_jax.cli import main
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.tokenizer import wordpiece
from tests.text.byte_level_files import roberta
from tests.text.test_unigram_json import albert

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he", "##llo", "world", "Hello"]


@pytest.fixture
def vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    return path


def as_json(capsys, *argv):
    assert main.run(["tokenize", "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_published_cased_vocabulary(capsys, shared_data):
    vocab = shared_data("vocab") / "bert-base-cased-vocab.txt"
    assert main.run(["tokenize", f"--vocab={vocab}", "--cased", "I will watch Memento tonight", "--max_length=10"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ids: 101 146 1209 2824 2508 26173 3568 102 0 0"


def test_the_table_has_a_line_a_piece(capsys, vocab):
    assert main.run(["tokenize", f"--vocab={vocab}", "Hello"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:5] == [
        ["piece", "id", "type", "mask", "offset"],
        ["[CLS]", "2", "0", "1", "0-0"],
        ["he", "5", "0", "1", "0-2"],
        ["##llo", "6", "0", "1", "2-5"],
        ["[SEP]", "3", "0", "1", "0-0"],
    ]


def test_a_pair_around_flags_and_padding(capsys, vocab):
    encoded = as_json(capsys, "hello", f"--vocab={vocab}", "--max_length=7", "world")
    assert encoded["pieces"] == ["[CLS]", "he", "##llo", "[SEP]", "world", "[SEP]", "[PAD]"]
    assert encoded["token_type_ids"] == [0, 0, 0, 0, 1, 1, 0]
    assert encoded["attention_mask"] == [1, 1, 1, 1, 1, 1, 0]


def test_cased_and_uncased(capsys, vocab):
    assert as_json(capsys, f"--vocab={vocab}", "Hello")["input_ids"] == [2, 5, 6, 3]
    assert as_json(capsys, f"--vocab={vocab}", "--cased", "Hello")["input_ids"] == [2, 8, 3]


def test_a_vocabulary_without_a_special_token_names_it(capsys, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(piece for piece in VOCAB if piece != "[MASK]"))
    assert main.run(["tokenize", f"--vocab={tmp_path / 'vocab.txt'}", "hello"]) == 2
    assert "[MASK]" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "unigram"])
def test_added_tokens_stay_whole(capsys, tmp_path, kind):
    form = {"wordpiece": json.loads(wordpiece(VOCAB).tokenizer_json()), "byte_bpe": roberta(), "unigram": albert()}[
        kind
    ]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(form))
    assert main.run(["tokenize", f"--vocab={path}", "hello"]) == 0
    vocabulary = form["model"]["vocab"]
    form["added_tokens"].append({**form["added_tokens"][0], "id": len(vocabulary), "content": "<e1>"})
    path.write_text(json.dumps(form))
    capsys.readouterr()
    assert main.run(["tokenize", f"--vocab={path}", "--json", "the <e1> child"]) == 0
    found = json.loads(capsys.readouterr().out)
    where = found["pieces"].index("<e1>")
    assert (found["input_ids"][where], found["offsets"][where]) == (len(vocabulary), [4, 8])


def test_byte_level_pieces_are_readable_and_special_tokens_stay_whole(capsys, tmp_path):
    file = tmp_path / "tokenizer.json"
    learn_byte_bpe(["北京", "大"] * 20, 290).save(file)
    assert main.run(["tokenize", f"--vocab={file}", "北京[MASK]大<mask>a b\n龘"]) == 0
    pieces = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:-2]]
    expected = "<s> 北京 <mask> 大 <mask> a Ġ b \\n <0xE9> <0xBE> <0x98> </s>"
    assert " ".join(pieces) == expected
    assert as_json(capsys, f"--vocab={file}", "北京")["pieces"] == ["<s>", "åĮĹäº¬", "</s>"], "those of the file"


def test_special_tokens_in_a_text_of_wordpiece(capsys, vocab):
    assert as_json(capsys, f"--vocab={vocab}", "he [MASK] world")["input_ids"] == [2, 5, 4, 7, 3]


def test_a_folder_says_its_case(capsys, vocab):
    (vocab.parent / "run.json").write_text(json.dumps({"facts": {"lowercase": False}}))
    assert as_json(capsys, f"--vocab={vocab.parent}", "Hello")["input_ids"] == [2, 8, 3]
    (vocab.parent / "run.json").write_text(json.dumps({"facts": {"lowercase": True}}))
    assert main.run(["tokenize", f"--vocab={vocab.parent}", "--cased", "Hello"]) == 2
    error = capsys.readouterr().err
    assert "--cased: " in error
    assert "says itself that text is converted to lower case; leave it out" in error
