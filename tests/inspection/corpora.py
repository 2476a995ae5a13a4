"""Small corpora with known faults, built by the real command."""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bert_jax.cli import main
from bert_jax.corpora.store import Corpus
from bert_jax.records import SPECIAL_TOKENS

SYLLABLES = ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu"]
WORDS = [a + b + c for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES[:4]]


def sentence(rng: random.Random, words: Sequence[str] = WORDS) -> str:
    return " ".join(rng.choices(words, k=rng.randint(12, 20))) + " ."


def texts(count: int = 120, seed: int = 0, words: Sequence[str] = WORDS) -> list[list[str]]:
    """Documents of 12 to 20 sentences; no two sentences are equal."""
    rng = random.Random(seed)
    return [[sentence(rng, words) for _ in range(rng.randint(12, 20))] for _ in range(count)]


def write_vocab(path: Path, words: Iterable[str] = WORDS) -> Path:
    letters = string.ascii_lowercase
    pieces = [*SPECIAL_TOKENS, *words, ".", *string.digits, *(f"##{d}" for d in string.digits)]
    pieces += [c for c in letters if c not in pieces] + [f"##{c}" for c in letters]
    path.write_text("".join(f"{piece}\n" for piece in dict.fromkeys(pieces)), "utf-8")
    return path


def build(folder: Path, documents: Sequence[Sequence[str]], vocab: Path, *flags: str) -> Path:
    """One file a document, one sentence a line; the store is ``folder/corpus``."""
    text = folder / "text"
    text.mkdir(parents=True)
    for number, lines in enumerate(documents):
        (text / f"{number:05}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    command = ["corpus", "--config=bert_base", f"--config.corpus.options.paths=('{text}/*.txt',)"]
    command += ["--config.corpus.options.format=sentences", "--config.corpus.heldout_fraction=0.2"]
    assert main.run([*command, f"--config.vocab.path={vocab}", f"--output={folder / 'corpus'}", *flags]) == 0
    return folder / "corpus"


def stored(corpus: Path, split: str) -> list[list[tuple[int, ...]]]:
    """Documents of sentences of tokens, read back one by one."""
    opened = Corpus(corpus).split(split)
    tokens = opened.read(*(x.reshape(1) for x in (opened.sentence_offsets[:1], opened.sentence_offsets[-1:]))).tolist()
    offsets, starts = opened.sentence_offsets.tolist(), opened.document_starts.tolist()
    sentences = [tuple(tokens[a:b]) for a, b in zip(offsets, offsets[1:], strict=False)]
    return [sentences[a:b] for a, b in zip(starts, starts[1:], strict=False)]


def repeats(values: Iterable[object]) -> int:
    """How many of ``values`` stood before."""
    return sum(count - 1 for count in Counter(values).values())
