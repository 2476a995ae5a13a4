"""What a run needs before its first step, made from its config tree: a vocabulary and a tokenized corpus.

A ``path`` in ``config.vocab`` or ``config.corpus`` is used as it is; without one the vocabulary is learned and the
corpus is built.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from bert_jax import catalogue, files
from bert_jax.configuration import build
from bert_jax.corpora.build import PART_BYTES, BuildConfig, Progress
from bert_jax.corpora.build import build as build_corpus
from bert_jax.corpora.count import count_words
from bert_jax.corpora.duplicates import Kind
from bert_jax.text.learn import learn_from_counts
from bert_jax.text.wordpiece import WordPiece, read_vocab


@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
    """``config.vocab``."""

    path: str = ""  # a vocab.txt to use as it is; "" learns one from the corpus
    size: int = 30_522  # pieces to learn, special tokens included
    lowercase: bool = True  # also strips accents; must agree with a published vocabulary
    min_frequency: int = 2  # a pair of pieces seen less often is not joined


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """``config.corpus``."""

    path: str = ""  # a store to use as it is; "" builds one
    source: str = "docstrings"  # a file of bert_jax/corpora that has a Source
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # the fields of that Source
    heldout_fraction: float = 0.05  # of the documents, chosen by their hash
    duplicates: Kind = "keep"  # documents that repeat an earlier one: "exact" and "near" (extra dedup) drop them
    part_bytes: int = PART_BYTES  # of text in a shard
    num_workers: int = 0  # processes of this machine that read and tokenize; 0: one a core; the store is the same
    beam_options: tuple[str, ...] = ()  # flags of an Apache Beam runner, to build on a cluster


def find_source(corpus: CorpusConfig) -> Any:
    """The ``Source`` that ``corpus`` names, with its options checked."""
    module = catalogue.find("corpora", corpus.source, having="Source")
    return build(module.Source, corpus.options, "config.corpus.options")


def prepare_vocabulary(config: Mapping[str, Any], output: str | os.PathLike[str]) -> tuple[str, ...]:
    """Write the ``vocab.txt`` of a run, whole or not at all: a checked copy of ``config.vocab.path``, or a learned one.

    Raises:
      UserError: bad config, a vocabulary without a special token, a corpus without text.
    """
    files.check_new(output)
    vocab = build(VocabularyConfig, config["vocab"], "config.vocab")
    if vocab.path:
        pieces = read_vocab(vocab.path)
    else:
        corpus = build(CorpusConfig, config["corpus"], "config.corpus")
        words = count_words(
            find_source(corpus), vocab.lowercase, output, corpus.part_bytes, corpus.num_workers, corpus.beam_options
        )
        pieces = learn_from_counts(words, vocab.size, vocab.min_frequency)
    files.write_text(output, "".join(f"{piece}\n" for piece in pieces))
    return pieces


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
    tokenizer = WordPiece.load(vocabulary, vocab.lowercase)
    return build_corpus(
        find_source(corpus),
        tokenizer,
        output,
        BuildConfig(
            heldout_fraction=corpus.heldout_fraction,
            part_bytes=corpus.part_bytes,
            duplicates=corpus.duplicates,
            num_workers=corpus.num_workers,
            beam_options=tuple(corpus.beam_options),
        ),
        progress,
    )
