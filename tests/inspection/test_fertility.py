"""Pieces a word, beside counts by hand and word by word, and what ``vocab`` and ``inspect`` say of them."""

import json
from pathlib import Path

import pytest

from bert_jax.cli import main
from bert_jax.inspection.fertility import compare_fertility, measure_fertility
from bert_jax.interchange.tokenizer_files import tokenizer_of
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.tokenizer import Tokenizer, of_json, sentencepiece, wordpiece
from tests import toy
from tests.inspection.corpora import build, texts, write_vocab
from tests.text.byte_level_files import released, released_for

SENTENCES = ["the cats run to the river", "my aunt likes the naïve café", "हिन्दी भाषा सीखना अच्छा है", "the unseen zebra"]


def test_words_by_hand() -> None:
    tokenizer = wordpiece((*SPECIAL_TOKENS, "the", "cat", "##s", "un", "##se", "##en", ".", "'", "-", "s", "(", ")"))
    found = measure_fertility(tokenizer, ["The (unseen) cats - the cat's xyz.", "..."])
    # the | un ##se ##en | cat ##s | the | cat ' s | [UNK], and ( ) - . . . . around them
    assert (found.unit, found.units, found.unit_pieces, found.whole) == ("word", 6, 11, 3)
    assert (found.pieces, found.unknown, found.bytes) == (18, 1, 0)
    assert str(found) == "1.83 pieces a word, 50.0 % of words stay whole, 5.6 % of pieces are [UNK]"


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "released", "unigram", "bpe"])
def test_words_of_every_kind_are_those_cut_one_by_one(kind: str) -> None:
    text = SENTENCES[:3] * 10
    tokenizer: Tokenizer
    if kind == "wordpiece":
        tokenizer = wordpiece((*SPECIAL_TOKENS, "the", "my", "cat", "cats", "ca", "##fe", "river", "l", "##ikes"))
    elif kind in ("byte_bpe", "released"):
        tokenizer = learn_byte_bpe(text, 340) if kind == "byte_bpe" else of_json(released_for(text, 340))
    else:
        tokenizer = sentencepiece(learn_sentencepiece(text, 70, kind, num_threads=1))
    found = measure_fertility(tokenizer, SENTENCES)
    alone = [len(ids) for text in SENTENCES for ids in tokenizer.encode_batch([f" {word}" for word in text.split()])]
    assert (found.units, found.unit_pieces, found.whole) == (len(alone), sum(alone), alone.count(1))
    assert found.pieces == found.unit_pieces
    ids = [i for text in SENTENCES for i in tokenizer.encode_batch([f" {text}"])[0].tolist()]
    assert found.unknown == ids.count(tokenizer.unk_id)


def test_scripts_without_spaces_are_counted_by_characters() -> None:
    texts = ["我们去北京。", "北京很大,café。", "ไปกรุงเทพ"]
    characters = sum(map(len, texts))
    plain = measure_fertility(of_json(released()), texts)  # nearly no merges: every byte is a piece
    assert (plain.unit, plain.units) == ("character", characters)
    assert plain.pieces == plain.unit_pieces == sum(len(text.encode()) for text in texts) - 2, "ca and é"
    assert plain.bytes == sum(len(c.encode()) for text in texts for c in text if ord(c) > 255)
    assert plain.whole == sum(ord(c) <= 255 for text in texts for c in text)
    learned = measure_fertility(learn_byte_bpe(texts * 20, 400), texts)
    assert learned.value < 1 < 2 < plain.value, "a piece may have several characters"
    times, line = compare_fertility(learned, plain)
    assert times == learned.pieces / plain.pieces
    assert line.startswith(f"{times:.2f} times the tokens ")
    assert measure_fertility(wordpiece((*SPECIAL_TOKENS, *"我们去北京。很大")), texts[:1]).value == 1.0


def test_vocab_says_what_it_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, old = toy.write_text(tmp_path / "text.txt"), tmp_path / "old.json"
    learn_byte_bpe(["another language"] * 9, 280, lowercase=False).save(old)
    flags = ["--config=modernbert:tiny", "--config.corpus.source=text_files", f"--config.corpus.options.paths={text}"]
    flags += ["--config.vocab.size=400", f"--init={old}", f"--output={tmp_path / 'mine' / 'tokenizer.json'}"]
    assert main.run(["vocab", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    [own] = [line for line in lines if line.startswith("fertility: 1.0")]
    [gain] = [line for line in lines if " times the tokens that the vocabulary of --init makes of the text: " in line]
    assert "of words stay whole, 0.0 % of pieces are [UNK]" in own
    assert float(gain.split()[0]) < 0.4
    assert (
        main.run(["vocab", f"--config.vocab.path={old}", "--config=bert_base", f"--output={tmp_path / 'c.json'}"]) == 0
    )
    assert "no fertility: " in capsys.readouterr().out, "a copy needs no text"
    assert main.run(["vocab", *flags, f"--init={tmp_path / 'none'}"]) == 2
    assert "no vocabulary file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tokenizer_config.json", "run.json"])
def test_the_vocabulary_of_a_cased_model_keeps_case(tmp_path: Path, name: str) -> None:
    write_vocab(tmp_path / "vocab.txt")
    assert tokenizer_of(str(tmp_path)).lowercase
    (tmp_path / name).write_text(json.dumps({"do_lower_case": False, "facts": {"lowercase": False}}))
    assert not tokenizer_of(str(tmp_path)).lowercase


def test_inspect_compares_with_another_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = build(tmp_path, texts(40), vocab := write_vocab(tmp_path / "vocab.txt"))
    capsys.readouterr()
    (tmp_path / "letters").mkdir()
    letters = write_vocab(tmp_path / "letters" / "vocab.txt", [])
    found = {}
    for init in (letters.parent, letters, vocab):
        main.run(["inspect", f"--corpus={corpus}", f"--vocab={vocab}", f"--init={init}", "--json"])
        found[init] = json.loads(capsys.readouterr().out)["checks"]
    assert found[letters] == found[letters.parent]
    facts = found[letters]["gain_over_init"]["facts"]
    assert found[letters]["tokens_a_word"]["facts"]["fertility"] == 1.0
    assert (facts["init_fertility"], facts["init_whole_share"]) == (6.0, 0.0)
    assert 1 / 6 < facts["times_the_tokens"] < 0.2, "full stops are one piece in both"
    assert found[vocab]["gain_over_init"]["facts"]["times_the_tokens"] == 1.0
    main.run(["inspect", f"--corpus={corpus}", f"--vocab={vocab}"])
    assert "gain over init" not in capsys.readouterr().out
