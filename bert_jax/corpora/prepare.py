"""What a run needs before its first step, made from its config tree: a vocabulary and a tokenized corpus.

A ``path`` in ``config.vocab`` or ``config.corpus`` is used as it is; without one the vocabulary is learned and the
corpus is built.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from bert_jax import catalogue
from bert_jax.configuration import build
from bert_jax.corpora.build import Progress
from bert_jax.corpora.build import build as build_corpus
from bert_jax.errors import UserError
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.learn import COVERAGE, learn_wordpiece
from bert_jax.text.learn_sentencepiece import MAX_SENTENCES, NUM_THREADS, learn_sentencepiece
from bert_jax.text.sentencepiece import SentencePiece
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.wordpiece import WordPiece


@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
    """``config.vocab``."""

    path: str = ""  # a vocab.txt, or a .model of sentencepiece, to use as it is; "" learns one from the corpus
    kind: Literal["wordpiece", "unigram", "bpe"] = "wordpiece"  # to learn; the last two are sentencepiece's
    size: int = 30_522  # pieces to learn, special tokens included
    lowercase: bool = True  # also strips accents; must agree with a published vocabulary
    min_frequency: int = 2  # wordpiece: a pair of pieces seen less often is not joined
    character_coverage: float = COVERAGE  # share of the text's characters that the alphabet covers, if there is room
    byte_fallback: bool = False  # sentencepiece: 256 pieces are bytes, and nothing is unknown
    max_sentences: int = MAX_SENTENCES  # sentencepiece: learned from, chosen by their hashes; memory grows with them
    num_threads: int = NUM_THREADS  # sentencepiece: the model depends on it

    def __post_init__(self) -> None:
        if not 0 < self.character_coverage <= 1:
            raise UserError(
                f"config.vocab.character_coverage is {self.character_coverage}; a share above 0 and at most 1 is needed"
            )
        for name in ("size", "min_frequency", "max_sentences", "num_threads"):
            if getattr(self, name) < 1:
                raise UserError(f"config.vocab.{name} is {getattr(self, name)}; at least 1 is needed")


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """``config.corpus``."""

    path: str = ""  # a store to use as it is; "" builds one
    source: str = "docstrings"  # a file of bert_jax/corpora that has a Source
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # the fields of that Source
    heldout_fraction: float = 0.05  # of the documents, chosen by their hash
    num_workers: int = 0  # processes that tokenize; the store does not depend on it


def find_source(corpus: CorpusConfig) -> Any:
    """The ``Source`` that ``corpus`` names, with its options checked."""
    module = catalogue.find("corpora", corpus.source, having="Source")
    return build(module.Source, corpus.options, "config.corpus.options")


def prepare_vocabulary(config: Mapping[str, Any], output: str | os.PathLike[str]) -> Tokenizer:
    """Write the tokenizer's file of a run, whole or not at all: a checked copy of ``config.vocab.path``, or a learned
    one.

    Raises:
      UserError: bad config, an ``output`` whose name says another kind, a vocabulary without a special token, a corpus
        without text.
    """
    vocab = build(VocabularyConfig, config["vocab"], "config.vocab")
    tokenizers.check_name(output, vocab.kind, vocab.path)
    if vocab.path:
        tokenizer = tokenizers.load(vocab.path, vocab.lowercase)
    else:
        source = find_source(build(CorpusConfig, config["corpus"], "config.corpus"))
        sentences = (sentence for document in source.documents() for sentence in document.sentences)
        tokenizer = learn_tokenizer(vocab, sentences)
    tokenizer.save(output)
    return tokenizer


def learn_tokenizer(vocab: VocabularyConfig, sentences: Iterable[str]) -> Tokenizer:
    """The tokenizer that ``vocab`` describes, learned from ``sentences``."""
    if vocab.kind == "wordpiece":
        pieces = learn_wordpiece(sentences, vocab.size, vocab.lowercase, vocab.min_frequency, vocab.character_coverage)
        return WordPiece(pieces, vocab.lowercase)
    model = learn_sentencepiece(
        sentences,
        vocab.size,
        vocab.kind,
        lowercase=vocab.lowercase,
        byte_fallback=vocab.byte_fallback,
        character_coverage=vocab.character_coverage,
        num_threads=vocab.num_threads,
        max_sentences=vocab.max_sentences,
    )
    return SentencePiece(model)


def prepare_corpus(
    config: Mapping[str, Any],
    vocabulary: str | os.PathLike[str],
    output: str | os.PathLike[str],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Build the store of ``config.corpus`` in the new folder ``output``, tokenized with ``vocabulary``; its manifest.

    Raises:
      UserError: bad config or input, an ``output`` that is not empty, a full disk. Nothing is left half-written.
    """
    vocab = build(VocabularyConfig, config["vocab"], "config.vocab")
    corpus = build(CorpusConfig, config["corpus"], "config.corpus")
    tokenizer = tokenizers.load(vocabulary, vocab.lowercase)
    return build_corpus(
        find_source(corpus),
        tokenizer,
        output,
        heldout_fraction=corpus.heldout_fraction,
        num_workers=corpus.num_workers,
        progress=progress,
    )
