"""``bert-jax vocab`` and ``bert-jax corpus`` on a few small files."""

import json

import pytest

from bert_jax.cli import main
from bert_jax.corpora.store import Corpus
from bert_jax.text.tokenizer import load

SENTENCES = ["The cat sat on the mat.", "A dog ran to the park.", "It was a sunny day.", "The end came at last."]


@pytest.fixture
def flags(tmp_path):
    """Return the flags of a command on a corpus of 40 documents."""
    for i in range(40):
        lines = [f"{sentence} Number {i} of them." for sentence in SENTENCES[i % 2 :]]
        (tmp_path / f"text-{i:02}.txt").write_text("\n".join(lines) + "\n")
    return [
        "--config=bert_base",
        f"--config.corpus.options.paths={tmp_path}/text-*.txt",
        "--config.corpus.heldout_fraction=0.25",
        "--config.vocab.size=120",
    ]


@pytest.mark.parametrize("vocab", [{}, {"vocab": {"size": 120}}])
def test_a_recipe_that_names_no_vocabulary(vocab, tmp_path, capsys):
    (tmp_path / "recipe.json").write_text(json.dumps({"corpus": {"source": "text_files"}} | vocab))
    assert main.run(["corpus", f"--config={tmp_path / 'recipe.json'}", f"--output={tmp_path / 'new'}"]) == 2
    assert "error: config.vocab.path is empty; learn a vocabulary" in capsys.readouterr().err


def test_a_vocabulary_of_a_recipe_for_fine_tuning(tmp_path, capsys):
    assert main.run(["vocab", "--config=classification", f"--output={tmp_path / 'vocab.txt'}"]) == 2
    assert "error: this recipe is one for fine-tuning and names no corpus" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_vocabulary_then_corpus(tmp_path, capsys, flags):
    vocab, store = tmp_path / "out" / "vocab.txt", tmp_path / "out" / "corpus"
    assert main.run(["vocab", *flags, f"--output={vocab}"]) == 0
    pieces = load(vocab).vocab
    assert len(pieces) <= 120
    assert "the" in pieces
    assert main.run(["corpus", *flags, f"--config.vocab.path={vocab}", f"--output={store}"]) == 0
    corpus = Corpus(store)
    assert corpus.split("train").num_documents + corpus.split("heldout").num_documents == 40
    assert f"{corpus.split('train').num_tokens:,} tokens" in capsys.readouterr().out


def test_a_published_vocabulary_is_checked_and_copied(tmp_path, flags):
    published, output = tmp_path / "published.txt", tmp_path / "vocab.txt"
    published.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    assert main.run(["vocab", *flags, f"--config.vocab.path={published}", f"--output={output}"]) == 0
    assert load(output).vocab == load(published).vocab


def test_a_byte_level_vocabulary_then_corpus(tmp_path, capsys, flags):
    made, store = tmp_path / "out" / "tokenizer.json", tmp_path / "out" / "corpus"
    flags = [*flags, "--config.vocab.kind=byte_bpe", "--config.vocab.size=290", "--config.vocab.lowercase=False"]
    assert main.run(["vocab", *flags, f"--output={tmp_path / 'vocab.txt'}"]) == 2
    assert "call it tokenizer.json" in capsys.readouterr().err
    assert main.run(["vocab", *flags, f"--output={made}"]) == 0
    assert "290 pieces in" in capsys.readouterr().out
    assert main.run(["corpus", *flags, f"--config.vocab.path={made}", f"--output={store}"]) == 0
    Corpus(store).check_tokenizer(load(made))
    assert main.run(["tokenize", f"--vocab={made}", "The cat"]) == 0
    assert "\u0120The" in capsys.readouterr().out
    made.write_text('{"model": {"type": "Special", "vocab": {}}}')
    assert main.run(["tokenize", f"--vocab={made}", "The cat"]) == 2
    error = capsys.readouterr().err
    assert "is a Special tokenizer whose pieces do not show where words begin" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_sentencepiece_vocabulary_then_corpus(tmp_path, capsys, flags, kind):
    model, store = tmp_path / "out" / "spiece.model", tmp_path / "out" / "corpus"
    flags = [*flags, f"--config.vocab.kind={kind}", "--config.vocab.size=80"]
    assert main.run(["vocab", *flags, f"--output={tmp_path / 'vocab.txt'}"]) == 2
    assert "call it spiece.model" in capsys.readouterr().err
    assert main.run(["vocab", *flags, f"--output={model}"]) == 0
    assert "pieces in" in capsys.readouterr().out
    assert main.run(["corpus", *flags, f"--config.vocab.path={model}", f"--output={store}"]) == 0
    Corpus(store).check_tokenizer(load(model))
    assert main.run(["tokenize", f"--vocab={model}", "The cat"]) == 0
    assert "\u2581" in capsys.readouterr().out


def test_values_of_the_vocabulary_that_cannot_be(tmp_path, capsys, flags):
    for flag, message in {
        "kind=word": "allowed: 'wordpiece', 'unigram', 'bpe', 'byte_bpe'",
        "character_coverage=2.0": "config.vocab.character_coverage is 2.0; a share",
        "num_threads=0": "config.vocab.num_threads is 0; at least 1",
    }.items():
        assert main.run(["vocab", *flags, f"--config.vocab.{flag}", f"--output={tmp_path / 'vocab.txt'}"]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\n \n\n"])
def test_an_empty_corpus_is_an_error_and_writes_nothing(tmp_path, capsys, content):
    (tmp_path / "text.txt").write_bytes(content)
    flags = ["--config=bert_base", f"--config.corpus.options.paths={tmp_path}/text.txt"]
    assert main.run(["vocab", *flags, f"--output={tmp_path / 'vocab.txt'}"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_wrongly_encoded_file_is_named_with_the_offset(tmp_path, capsys):
    (tmp_path / "text.txt").write_bytes(b"Fine so far.\nCaf\xe9 here.\n")
    flags = ["--config=bert_base", f"--config.corpus.options.paths={tmp_path}/text.txt"]
    assert main.run(["vocab", *flags, f"--output={tmp_path / 'vocab.txt'}"]) == 2
    error = capsys.readouterr().err
    assert "text.txt" in error
    assert "16" in error
    assert not (tmp_path / "vocab.txt").exists()


@pytest.mark.parametrize("verb", ["vocab", "corpus"])
def test_a_refusal_leaves_none_of_the_folders_that_it_made(tmp_path, verb, flags):
    (tmp_path / "text-07.txt").write_bytes(b"\xff\xfe no text \xff")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    (tmp_path / "there").mkdir()
    if verb == "corpus":
        flags = [*flags, f"--config.vocab.path={tmp_path / 'vocab.txt'}"]
    assert main.run([verb, *flags, f"--output={tmp_path / 'there' / 'deep' / 'new'}"]) == 2
    assert list((tmp_path / "there").iterdir()) == []


def test_a_store_is_not_overwritten(tmp_path, capsys, flags):
    vocab, store = tmp_path / "vocab.txt", tmp_path / "corpus"
    assert main.run(["vocab", *flags, f"--output={vocab}"]) == 0
    store.mkdir()
    (store / "precious").write_text("")
    assert main.run(["corpus", *flags, f"--config.vocab.path={vocab}", f"--output={store}"]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in store.iterdir()] == ["precious"]


def test_a_mixture_with_a_part_that_is_a_store(tmp_path, capsys, flags):
    vocab, stores = tmp_path / "vocab.txt", tmp_path / "stores"
    assert main.run(["vocab", *flags, f"--output={vocab}"]) == 0
    assert main.run(["corpus", *flags, f"--config.vocab.path={vocab}", f"--output={tmp_path / 'old'}"]) == 0
    parts = {"new": {"options": {"paths": [f"{tmp_path}/text-*.txt"]}}, "old": {"path": str(tmp_path / "old")}}
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"vocab": {"path": str(vocab)}, "corpus": {"heldout_fraction": 0.25, "parts": parts}}))
    assert main.run(["corpus", f"--config={recipe}", f"--output={stores}"]) == 0
    assert [path.name for path in stores.iterdir()] == ["new"]
    capsys.readouterr()
    vocab_flags = [f"--config={recipe}", "--config.vocab.path=", f"--output={tmp_path / 'other.txt'}"]
    assert main.run(["vocab", *vocab_flags]) == 2
    assert "config.corpus.parts.old.path is a corpus that is there; name its vocabulary" in capsys.readouterr().err
