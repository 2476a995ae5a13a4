"""The vocabulary of a run is as it was made, or it is made again, or it is an error."""

import dataclasses
import random
from pathlib import Path

import pytest

from bert_jax import configuration
from bert_jax.cli.main import run
from bert_jax.corpora.prepare import CorpusConfig, VocabularyConfig
from bert_jax.errors import UserError
from bert_jax.examples.columns import Roles
from bert_jax.runs.inputs import Inputs, find_vocabulary
from tests import toy
from tests.tasks import toy_tasks


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    """Return the inputs of a run that has made its vocabulary and saved no step."""
    recipe = toy.recipe(toy.write_text(tmp_path / "text.txt"))
    corpus = configuration.build(CorpusConfig, recipe["corpus"], "config.corpus")
    vocab = configuration.build(VocabularyConfig, recipe["vocab"], "config.vocab")
    made = Inputs(str(tmp_path / "run"), vocab, corpus, None, bound=False)
    made.open_vocabulary(lambda _: None)
    return made


def damaged(inputs: Inputs) -> Path:
    """Change one piece in the vocabulary file, which stays a vocabulary, and return its path."""
    file = Path(inputs.workdir) / "vocab.txt"
    *others, last = file.read_text().splitlines()
    file.write_text("\n".join([*others, f"{last}x"]) + "\n")
    return file


def test_a_damaged_vocabulary_is_made_again_while_no_step_is_saved(inputs: Inputs) -> None:
    whole = (Path(inputs.workdir) / "vocab.txt").read_bytes()
    file = damaged(inputs)
    inputs.open_vocabulary(lambda _: None)
    assert file.read_bytes() == whole


def test_a_vocabulary_that_the_corpus_was_not_made_with_is_found_before_anything_is_made(inputs: Inputs) -> None:
    inputs.open_corpus(inputs.open_vocabulary(lambda _: None), lambda _: None)
    place = Path(inputs.workdir)
    vocab = dataclasses.replace(inputs.vocab, path=str(place / "vocab.txt"))
    corpus = dataclasses.replace(inputs.corpus, path=str(place / "corpus"))
    new = dataclasses.replace(inputs, workdir=str(place / "new"), vocab=vocab, corpus=corpus)
    new.check()
    cased = dataclasses.replace(new, vocab=dataclasses.replace(vocab, lowercase=not vocab.lowercase))
    with pytest.raises(UserError, match="was made with another vocabulary"):
        cased.check()
    dataclasses.replace(cased, bound=True).check()  # the vocabulary of its workdir decides


def test_later_it_is_an_error_that_names_the_file(inputs: Inputs) -> None:
    file = damaged(inputs)
    bound = dataclasses.replace(inputs, bound=True)
    with pytest.raises(UserError, match=f"{file} is damaged: its sha256 differs from vocab.json; put the old one back"):
        bound.open_vocabulary(lambda _: None)


def test_a_corpus_with_other_columns_is_made_again_while_no_step_is_saved(inputs: Inputs) -> None:
    tokenizer = inputs.open_vocabulary(lambda _: None)
    (Path(inputs.workdir) / "phrases.txt").write_text("of the\n")
    asked = {"phrases": {"annotator": "lexicon", "path": f"{inputs.workdir}/phrases.txt"}}
    wanted = dataclasses.replace(inputs, corpus=dataclasses.replace(inputs.corpus, columns=asked))
    inputs.open_corpus(tokenizer, lambda _: None).check_columns([])
    wanted.check()
    with pytest.raises(UserError, match="has no column 'phrases' .*; build it with the column: "):
        dataclasses.replace(wanted, bound=True).open_corpus(tokenizer, lambda _: None)
    wanted.open_corpus(tokenizer, lambda _: None).check_columns(["phrases"])
    made = {path: path.stat().st_mtime_ns for path in (Path(inputs.workdir) / "corpus").rglob("*")}
    wanted.open_corpus(tokenizer, lambda _: None)
    assert made == {path: path.stat().st_mtime_ns for path in made}
    elsewhere = dataclasses.replace(wanted.corpus, path=f"{inputs.workdir}/corpus", columns={"words": asked["phrases"]})
    vocab = dataclasses.replace(inputs.vocab, path=f"{inputs.workdir}/vocab.txt")
    with pytest.raises(UserError, match="has no column 'words' .it has phrases.; build it with the column: "):
        dataclasses.replace(wanted, corpus=elsewhere, vocab=vocab).check()


def test_a_column_that_masking_reads_is_asked_for_before_anything_is_made(inputs: Inputs) -> None:
    tokenizer = inputs.open_vocabulary(lambda _: None)
    inputs.open_corpus(tokenizer, lambda _: None)
    corpus = dataclasses.replace(inputs.corpus, path=f"{inputs.workdir}/corpus")
    vocab = dataclasses.replace(inputs.vocab, path=f"{inputs.workdir}/vocab.txt")
    given = dataclasses.replace(inputs, workdir=f"{inputs.workdir}/next", corpus=corpus, vocab=vocab)
    given.check()
    with pytest.raises(UserError, match="has no column 'words'"):
        dataclasses.replace(given, needed_columns=("words",)).check()
    assert not Path(given.workdir).exists()


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "wordpiece"])
def test_whole_words_of_text_without_spaces_are_told_of(inputs: Inputs, tmp_path: Path, kind: str) -> None:
    """In WordPiece and sentencepiece an ideograph begins a word; byte-level, a sentence would be one."""
    rng = random.Random(0)
    sentences = ["".join(rng.choices("中文的句子里没有空格所以整句是一个词", k=30)) + "。" for _ in range(400)]
    text = tmp_path / "chinese.txt"
    text.write_text("\n".join(line + "\n" * (i % 8 == 0) for i, line in enumerate(sentences)), encoding="utf-8")
    vocab = configuration.build(VocabularyConfig, {"kind": kind, "size": 290 if kind == "byte_bpe" else 40}, "config")
    options = {**inputs.corpus.options, "paths": (str(text),)}
    chinese = Inputs(str(tmp_path / "new"), vocab, dataclasses.replace(inputs.corpus, options=options), None, False)
    for masks_words, expected in ((True, kind == "byte_bpe"), (False, False)):
        told: list[str] = []
        made = dataclasses.replace(chinese, masks_words=masks_words)
        made.open_corpus(made.open_vocabulary(told.append), told.append)
        said = [line for line in told if "{'words': {'annotator': 'segmenter'}}" in line]
        assert len(said) == expected, told
    told = []
    english = dataclasses.replace(inputs, masks_words=True)
    english.open_corpus(english.open_vocabulary(told.append), told.append)
    assert not any("whole words" in line for line in told)


@pytest.mark.parametrize(
    ("kind", "size", "file"),
    [("wordpiece", 60, "vocab.txt"), ("unigram", 40, "spiece.model"), ("byte_bpe", 290, "tokenizer.json")],
)
def test_fine_tuning_from_zero_learns_the_kind_of_vocabulary_asked_for(kind: str, size: int, file: str) -> None:
    config = configuration.build(VocabularyConfig, {"kind": kind, "size": size}, "config.vocab")
    train = [{"text": f"the {word} sat on the mat and saw a cat", "label": "x"} for word in ("cat", "hat", "rat") * 9]
    tokenizer = find_vocabulary(config, None, None, [(train, Roles(required=("text", "label")))])
    assert (tokenizer.file_name, tokenizer.decode(tokenizer.encode("the cat sat").input_ids)) == (file, "the cat sat")


def test_embeddings_that_do_not_fit_the_vocabulary_are_an_error_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No export of such a run could be read."""
    changed = toy.recipe(toy.write_text(tmp_path / "text.txt"), model={"vocab_size": 333})
    recipe = toy.write_recipe(tmp_path / "recipe.json", changed)
    assert run(["pretrain", f"--config={recipe}", f"--workdir={tmp_path / 'run'}"]) == 2
    assert "the model 333 embeddings; leave config.model.vocab_size out" in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("checkpoints/*"))
    toy_tasks.write_toy(tmp_path, "classification")
    assert toy_tasks.finetune(tmp_path, "--config.model.vocab_size=10", workdir="tuned") == 2
    assert "the model 10 embeddings; leave config.model.vocab_size out" in capsys.readouterr().err


def test_a_mixture_with_little_to_hold_out_is_told_so_once(inputs: Inputs) -> None:
    options = {"options": inputs.corpus.options}
    corpus = dataclasses.replace(inputs.corpus, options={}, parts={"a": options, "b": options})
    told: list[str] = []
    dataclasses.replace(inputs, corpus=corpus).open_corpus(inputs.open_vocabulary(told.append), told.append)
    said = [line for line in told if "holds out more" in line]
    assert len(said) == 1
    assert "rough figures; in a new --workdir, --config.corpus.heldout_fraction=0.3 holds out more" in said[0]
