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
from bert_jax.corpora.build import Progress
from bert_jax.corpora.build import build as build_corpus
from bert_jax.corpora.privacy import PrivateSource
from bert_jax.text.learn import learn_wordpiece
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
    num_workers: int = 0  # processes that tokenize; the store does not depend on it


def find_source(corpus: CorpusConfig) -> Any:
    """The ``Source`` that ``corpus`` names, with its options checked."""
    module = catalogue.find("corpora", corpus.source, having="Source")
    return build(module.Source, corpus.options, "config.corpus.options")


def prepare_vocabulary(config: Mapping[str, Any], output: str | os.PathLike[str]) -> tuple[str, ...]:
    """Write the ``vocab.txt`` of a run, whole or not at all: a checked copy of ``config.vocab.path``, or a learned one.

    Raises:
      UserError: bad config, a vocabulary without a special token, a corpus without text.
    """
    vocab = build(VocabularyConfig, config["vocab"], "config.vocab")
    if vocab.path:
        pieces = read_vocab(vocab.path)
    else:
        source = find_source(build(CorpusConfig, config["corpus"], "config.corpus"))
        sentences = (sentence for document in source.documents() for sentence in document.sentences)
        pieces = learn_wordpiece(sentences, vocab.size, vocab.lowercase, vocab.min_frequency)
    files.write_text(output, "".join(f"{piece}\n" for piece in pieces))
    return pieces


def prepare_corpus(
    config: Mapping[str, Any],
    vocabulary: str | os.PathLike[str],
    output: str | os.PathLike[str],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Build the store of ``config.corpus`` in the new folder ``output``, tokenized with ``vocabulary``; its manifest.

    With ``config.private`` the manifest does not say where the text came from (``corpora.privacy``).

    Raises:
      UserError: bad config or input, an ``output`` that is not empty, a full disk. Nothing is left half-written.
    """
    vocab = build(VocabularyConfig, config["vocab"], "config.vocab")
    corpus = build(CorpusConfig, config["corpus"], "config.corpus")
    tokenizer = WordPiece.load(vocabulary, vocab.lowercase)
    source = find_source(corpus)
    return build_corpus(
        PrivateSource(source) if config.get("private") else source,
        tokenizer,
        output,
        heldout_fraction=corpus.heldout_fraction,
        num_workers=corpus.num_workers,
        progress=progress,
    )
