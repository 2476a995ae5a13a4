"""Text of scripts that a vocabulary spoils, without case or without spaces: what ``vocab`` and ``inspect`` say."""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path

import pytest

from bert_jax.cli import main
from bert_jax.corpora.store import Corpus
from bert_jax.inspection.fertility import measure_fertility
from bert_jax.inspection.fit import few_heldout
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.tokenizer import load, wordpiece

WORDS = {
    "hi": "यह हिन्दी में लिखा हुआ वाक्य है विद्यार्थी किताब पढ़ता नदी के किनारे गाँव बसा",
    "ko": "학생은 책을 읽습니다 대학교에서 공부합니다 강가에 마을이 있습니다",
    "vi": "học sinh đọc sách làng nằm bên bờ sông tôi học ở trường đại học",
    "zh": "春 天 来 了 河 边 的 柳 树 长 出 了 新 叶 子 孩 们 在 院 里 放 风 筝",
    "en": "the cat sees a river and the old king remembers every child",
}
SPOILED = {"hi": True, "ko": True, "vi": True, "zh": False, "en": False}


def write(folder: Path, language: str) -> list[str]:
    """Write 40 documents; return the flags that read them."""
    rng, folder = random.Random(0), folder / "text"
    folder.mkdir()
    joiner = "" if language == "zh" else " "
    for number in range(40):
        lines = (joiner.join(rng.choices(WORDS[language].split(), k=rng.randint(8, 14))) + "." for _ in range(12))
        (folder / f"{number:02}.txt").write_text("\n".join(lines) + "\n", "utf-8")
    options = [f"--config.corpus.options.paths={folder}/*.txt", "--config.corpus.options.format=sentences"]
    return ["--config=bert_base", *options, "--config.vocab.size=320", "--config.corpus.heldout_fraction=0.2"]


@pytest.mark.parametrize(("language", "spoiled"), SPOILED.items())
def test_lost_accents_are_told_of_and_the_hint_keeps_them(
    tmp_path: Path, language: str, spoiled: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = write(tmp_path, language)
    assert main.run(["vocab", *flags, f"--output={tmp_path / 'vocab.txt'}"]) == 0
    out = capsys.readouterr().out
    assert ("stripping accents" in out) == ("are changed by stripped accents" in out) == spoiled
    assert ("100.0 % of words stay whole" in out or "100.0 % of characters stay whole" in out) == (not spoiled)
    build = ["corpus", *flags, f"--config.vocab.path={tmp_path / 'vocab.txt'}"]
    assert main.run([*build, f"--output={tmp_path / 'corpus'}"]) == 0
    inspect = ["inspect", f"--corpus={tmp_path / 'corpus'}", f"--vocab={tmp_path / 'vocab.txt'}", "--max_length=32"]
    capsys.readouterr()
    main.run(inspect)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("warn accents: ") for line in lines) == spoiled
    assert not (spoiled and any("100.0 % of words stay whole" in line for line in lines))
    assert any("letter case" in line for line in lines) == (language in ("vi", "en"))
    if spoiled:
        [hint] = re.findall(r"(--config\.vocab\.strip_accents=False) keeps them in a (tokenizer.json)", out)
        kept = tmp_path / hint[1]
        assert main.run(["vocab", *flags, hint[0], f"--output={kept}"]) == 0
        assert "stripp" not in capsys.readouterr().out
        text = WORDS[language].split()[1]
        assert load(kept).decode(load(kept).encode_batch([text])[0]) == text
        [advice] = [line for line in lines if "learn a vocabulary that keeps them: " in line]
        again = shlex.split(advice.partition("them: ")[2])
        assert main.run(["vocab", *flags, *again, f"--output={tmp_path / 'again.json'}"]) == 0
        assert load(tmp_path / "again.json").sha256 == load(kept).sha256


def test_byte_level_text_without_case_or_spaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*write(tmp_path, "zh"), "--config.vocab.kind=byte_bpe", "--config.vocab.lowercase=False"]
    file, store = tmp_path / "tokenizer.json", tmp_path / "corpus"
    assert main.run(["vocab", *flags, f"--output={file}"]) == 0
    assert main.run(["corpus", *flags, f"--config.vocab.path={file}", f"--output={store}"]) == 0
    split, tokenizer = Corpus(store).split("train"), load(file)
    tokens = split.read(split.sentence_offsets[:1], split.sentence_offsets[-1:])
    assert not any("Ġ" in tokenizer.vocab[i] for i in set(tokens.tolist())), "no space in any sentence"
    capsys.readouterr()
    main.run(["inspect", f"--corpus={store}", f"--vocab={file}", "--max_length=32"])
    out = capsys.readouterr().out
    assert "letter case" not in out
    assert "capitals" not in out


def test_words_that_lose_accents_do_not_stay_whole() -> None:
    tokenizer = wordpiece((*SPECIAL_TOKENS, "cafe", "the", "হ", "학"))
    found = measure_fertility(tokenizer, ["the café the café"])
    assert (found.units, found.whole, found.kept, found.spoiled) == (4, 4, 2, 2)
    line = (
        "1.00 pieces a word, 50.0 % of words stay whole, 50.0 % are changed by stripped accents, 0.0 % of pieces are "
    )
    assert str(found) == line + "[UNK]"


@pytest.mark.parametrize(
    ("tokens", "fraction", "hint"),
    [
        (20_000, 0.005, ""),
        (4_000, 0.05, "--config.corpus.heldout_fraction=0.25 holds out"),
        (100, 0.3, "more text helps"),
    ],
)
def test_little_heldout_text_is_told_of(tokens: int, fraction: float, hint: str) -> None:
    assert hint in few_heldout(tokens, fraction)
    assert bool(few_heldout(tokens, fraction)) == bool(hint)


def test_inspect_tells_of_little_heldout_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = write(tmp_path, "en")
    assert main.run(["vocab", *flags, f"--output={tmp_path / 'vocab.txt'}"]) == 0
    build = ["corpus", *flags, f"--config.vocab.path={tmp_path / 'vocab.txt'}"]
    assert main.run([*build, f"--output={tmp_path / 'corpus'}"]) == 0
    capsys.readouterr()
    inspect = ["inspect", "--max_length=32", f"--vocab={tmp_path / 'vocab.txt'}"]
    main.run([*inspect, f"--corpus={tmp_path / 'corpus'}"])
    [hint] = re.findall(r"rough figures; in a new build, (\S+) holds out more", capsys.readouterr().out)
    assert main.run([*build, hint, f"--output={tmp_path / 'more'}"]) == 0
    held = [Corpus(tmp_path / name).split("heldout").num_tokens for name in ("corpus", "more")]
    assert held[0] < held[1]
