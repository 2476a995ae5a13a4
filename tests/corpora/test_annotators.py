"""Annotators: the values that they give to pieces, and config.corpus.columns, which names them."""

import dataclasses
import random
import sys
import unicodedata
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from bert_jax.cli import main
from bert_jax.corpora import columns
from bert_jax.corpora.annotators import lexicon, segmenter
from bert_jax.corpora.columns import Column, unit_values
from bert_jax.corpora.manifest import MANIFEST
from bert_jax.corpora.prepare import CorpusConfig
from bert_jax.corpora.shard_job import tokenize
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS, Document
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.tokenizer import sentencepiece, wordpiece
from tests.corpora.test_columns import whole

# ---- units --------------------------------------------------------------------------------------------------------


def test_pieces_of_units():
    spans = np.array([[0, 2], [2, 3], [2, 3], [4, 9], [9, 10], [10, 11], [11, 12]])
    assert unit_values([(0, 3), (4, 5), (6, 9), (9, 11)], spans).tolist() == [1, 2, 2, 1, 1, 2, 0]
    assert unit_values([], spans).tolist() == [0] * 7
    assert unit_values([(3, 4)], spans).tolist() == [0] * 7  # no piece begins in it
    assert unit_values([(0, 3)], spans[:0]).tolist() == []


ALPHABETS = (
    "abcXYZ",
    "äöÜéñǆĳ",
    "İıſßΣς",
    "가각힣한",
    "\u1100\u1161\u11a8",
    "漢字北京東\uf900\U00020000",
    "カタひら㌔ﾊﾟ",
)
ALPHABETS += (
    "e\u0301a\u0308\u0323",
    ",.!?-—。，「」",
    " \u00a0\u3000\t",
    "\u200b\u00ad\ufeff\x07",
    "😀👩\u200d👩",
    "\ud800\udc00",
)


@dataclasses.dataclass(frozen=True)
class RandomUnits:
    """Cuts each sentence anywhere, by its own hash; every third unit is left out."""

    dtype: ClassVar[str] = "uint8"

    def identity(self):
        return {}

    @staticmethod
    def units(sentence: str) -> list[tuple[int, int]]:
        rng = random.Random(sentence.encode("utf-8", "surrogatepass"))
        cuts = [0, *sorted(rng.sample(range(1, len(sentence)), rng.randint(0, len(sentence) - 1))), len(sentence)]
        return [pair for n, pair in enumerate(zip(cuts, cuts[1:], strict=False)) if n % 3]

    def annotate(self, sentences, spans):
        return [unit_values(self.units(s), places) for s, places in zip(sentences, spans, strict=True)]


def characters(text: str, lowercase: bool) -> str:
    """What a vocabulary of single characters makes of ``text``, re-derived."""
    kept = ""
    for c in text:
        if c.isspace() or c in "\0\ufffd" or unicodedata.category(c) in ("Cc", "Cf", "Cn", "Co", "Cs"):
            continue
        if lowercase:
            c = "".join(d for d in unicodedata.normalize("NFD", c) if unicodedata.category(d) != "Mn").lower()
        kept += c
    return kept


def check_rejoined(count: int, rng: random.Random) -> None:
    """Join the pieces of random Unicode again by the values of their column: they are the units it was cut into."""
    every = sorted({c for alphabet in ALPHABETS for form in (alphabet, characters(alphabet, True)) for c in form})
    made = [p for c in every if characters(c, False) for p in (c, f"##{c}")]
    texts = {"".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randint(1, 30))) for _ in range(count)}
    for lowercase in (True, False):
        tokenizer = wordpiece((*SPECIAL_TOKENS, *made), lowercase)
        column = Column("units", "random", RandomUnits())
        documents = [Document(str(n), (text,)) for n, text in enumerate(sorted(texts))]
        for text, found in zip(sorted(texts), tokenize(documents, tokenizer, [column]), strict=True):
            pieces = [tokenizer.vocab[i].removeprefix("##") for i in found.tokens]
            assert "".join(pieces) == characters(text, lowercase), repr(text)
            joined: list[str] = []
            for piece, value in zip(pieces, found.columns["units"].tolist(), strict=True):
                if value == columns.CONTINUES:
                    joined[-1] += piece
                elif value == columns.BEGINS:
                    joined.append(piece)
            expected = [characters(text[a:b], lowercase) for a, b in RandomUnits.units(text)]
            assert joined == [unit for unit in expected if unit], repr(text)


def test_pieces_and_units_of_random_unicode_join_again():
    check_rejoined(400, random.Random(14))


# ---- annotators ---------------------------------------------------------------------------------------------------

CHINESE = wordpiece((*SPECIAL_TOKENS, *"我来到北京清华大学，。了", "new", "york", "##er", "##s", "is", "in", "."))


def units_of(annotator, sentence: str) -> list[str]:
    """Pieces of the units that ``annotator`` finds in ``sentence``, joined; pieces outside of units are in brackets."""
    [found] = tokenize([Document("", (sentence,))], CHINESE, [Column("units", "x", annotator)])
    joined: list[str] = []
    for token, value in zip(found.tokens, found.columns["units"].tolist(), strict=True):
        piece = CHINESE.vocab[token]
        if value == columns.CONTINUES:
            joined[-1] += piece.removeprefix("##")
        else:
            joined.append(f"({piece})" if value == columns.OUTSIDE else piece)
    return joined


def test_words_of_chinese_text(tmp_path, monkeypatch):
    """No cache is read or written that others may write: the dictionary is read anew here."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    segmenter._segmenter.cache_clear()
    assert units_of(segmenter.Annotator(hmm=False), "北京大学") == ["北京大学"]
    assert not list(tmp_path.iterdir())
    text = "我来到北京清华大学，NEW York。"
    assert units_of(segmenter.Annotator(), text) == ["我", "来到", "北京", "清华大学", "，", "new", "york", "。"]
    assert segmenter.Annotator().identity() == {"version": 1, "jieba": "0.42.1", "hmm": True}
    segmenter.Annotator().annotate(["\ud800 \t\x00", "", "é"], [np.zeros((0, 2), np.int64)] * 3)


@pytest.mark.parametrize("kind", ["unigram", "byte_bpe"])
def test_words_are_the_same_whatever_cuts_them_into_pieces(kind):
    texts = ["The 我来到北京清华大学 of Zürich, naïve.", "我来 到了", "abc 北京abc"]
    learned = ["the of abc 我 来 到 北 京 清 华 大 学 zurich , . 北京 清华"] * 20
    if kind == "byte_bpe":
        tokenizer = learn_byte_bpe(learned, 300)
    else:
        tokenizer = sentencepiece(learn_sentencepiece(learned, 60, "unigram", byte_fallback=False))
    words = Column("words", "segmenter", segmenter.Annotator())
    for text, found in zip(texts, tokenize([Document("", (t,)) for t in texts], tokenizer, [words]), strict=True):
        units = np.split(found.tokens, np.flatnonzero(found.columns["words"] != columns.CONTINUES)[1:])
        joined = [word for word in (tokenizer.decode(unit).strip() for unit in units) if word]
        expected = [word for word in segmenter._segmenter().cut(text) if word.strip()]
        known = [tokenizer.decode(tokenizer.encode_batch([word])[0]).strip() for word in expected]
        assert joined == known, kind


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


def test_phrases_of_a_lexicon_the_longest_first(tmp_path):
    path = write(tmp_path / "phrases.txt", "\ufeff北京\t12\r\n清华大学\r大学\n\n我\nNew  York\nNew York is in\nin\n")
    found = lexicon.Annotator(path)
    assert units_of(found, "我来到清华大学，北京。") == ["我", "(来)", "(到)", "清华大学", "(，)", "北京", "(。)"]
    assert units_of(found, "New York is new.") == ["newyork", "(is)", "(new)", "(.)"]
    assert units_of(found, "new york") == ["(new)", "(york)"]
    assert units_of(lexicon.Annotator(path, ignore_case=True), "İ NEW york IS IN") == ["([UNK])", "newyorkisin"]
    assert units_of(found, "New Yorkers in北京大学") == ["(new)", "(york)", "(##er)", "(##s)", "in", "北京", "大学"]


def test_a_lexicon_is_its_phrases_wherever_it_lies(tmp_path):
    one, same = write(tmp_path / "one", "北京\n大学\n"), write(tmp_path / "same", "大学\t1\n北京")
    other = write(tmp_path / "other", "大学\n")
    assert lexicon.Annotator(one).identity() == lexicon.Annotator(same).identity()
    assert lexicon.Annotator(one).identity() != lexicon.Annotator(other).identity()
    assert lexicon.Annotator(one).identity() != lexicon.Annotator(one, ignore_case=True).identity()


# ---- config.corpus.columns ----------------------------------------------------------------------------------------

BAD = {
    "tokens": ({"tokens": {"annotator": "lexicon"}}, "config.corpus.columns has 'tokens'; a name begins with a small"),
    "name": ({"../x": {"annotator": "lexicon"}}, "config.corpus.columns has '../x'; a name begins with a small letter"),
    "no_annotator": (
        {"words": {}},
        r"config.corpus.columns.words is {}; it needs an annotator, such as .*; valid: .*lex",
    ),
    "text": ({"words": "segmenter"}, "config.corpus.columns.words is 'segmenter'; it needs an annotator, such as "),
    "unknown": ({"words": {"annotator": "segmentor"}}, "no annotator 'segmentor' in .*did you mean 'segmenter'"),
    "number": ({"words": {"annotator": 5}}, "no annotator 5 in bert_jax.corpora.annotators; valid: .*lexicon, seg"),
    "option": ({"words": {"annotator": "segmenter", "hnm": 1}}, "unknown key config.corpus.columns.words.hnm; did you"),
    "type": ({"words": {"annotator": "segmenter", "hmm": 1}}, "config.corpus.columns.words.hmm is 1; expected bool"),
    "no_path": ({"people": {"annotator": "lexicon"}}, "'lexicon' of config.corpus.columns has no path; name a file"),
    "no_file": ({"people": {"annotator": "lexicon", "path": "nowhere"}}, "no lexicon nowhere; name a text file of phr"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_columns_are_one_line_before_a_text_is_read(bad):
    value, line = BAD[bad]
    with pytest.raises(UserError, match=line.replace("{}", r"\{\}")):
        columns.find(CorpusConfig(columns=value).columns)


@pytest.mark.parametrize(
    ("data", "line"), [(b"a\xff", "is not UTF-8 at byte offset 1;"), (b"\n \t1\n", "has no phrases;")]
)
def test_a_bad_lexicon_is_one_line(data, line, tmp_path):
    (tmp_path / "phrases").write_bytes(data)
    with pytest.raises(UserError, match=line):
        columns.find({"people": {"annotator": "lexicon", "path": str(tmp_path / "phrases")}})


def test_without_jieba_the_line_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(UserError, match="the annotator 'segmenter' needs the package jieba; .*: pip install jieba$"):
        columns.find({"words": {"annotator": "segmenter"}})


def test_from_a_recipe_to_a_store_and_back(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CHINESE.save("vocab.txt")
    write(
        tmp_path / "text.txt", "\n\n".join(f"我来到北京。{n}\n清华大学了。\nNew York." for n in "我来到北京清华大学了")
    )
    write(tmp_path / "people.txt", "清华\n")
    flags = ["--config=quickstart", "--config.vocab.path=vocab.txt", "--output=corpus", "--private"]
    flags += ["--config.corpus.source=text_files", "--config.corpus.heldout_fraction=0.3"]
    flags += ["--config.corpus.options={'paths':'text.txt','format':'sentences','document_boundary':'blank_line'}"]
    made = "{'words': {'annotator': 'segmenter'}, 'people': {'annotator': 'lexicon', 'path': 'people.txt'}}"
    assert main.run(["corpus", *flags, f"--config.corpus.columns={made}"]) == 0, capsys.readouterr().err
    corpus = Corpus("corpus")
    corpus.check_columns(["people", "words"])
    split = corpus.split("train")
    ids, words, people = (whole(split, column)[-9:] for column in ("tokens", "words", "people"))
    assert [CHINESE.vocab[i] for i in ids] == ["清", "华", "大", "学", "了", "。", "new", "york", "."]
    assert words.tolist() == [1, 2, 2, 2, 1, 1, 1, 1, 1]
    assert people.tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 0]
    assert "people.txt" not in (tmp_path / "corpus" / MANIFEST).read_text()
    tree = {"words": {"annotator": "segmenter"}, "people": {"annotator": "lexicon", "path": "people.txt"}}
    assert columns.has_columns(corpus.manifest, columns.find(tree))
    assert not columns.has_columns(corpus.manifest, columns.find({"words": tree["words"]}))
    tree["words"]["hmm"] = False
    assert not columns.has_columns(corpus.manifest, columns.find(tree))
    assert main.run(["corpus", "--verify=corpus"]) == 0
