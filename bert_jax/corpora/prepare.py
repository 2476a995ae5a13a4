"""The keys of ``config.corpus`` and ``config.vocab``; makes the tokenized corpus and the vocabulary that they describe.

If ``config.vocab`` or ``config.corpus`` has a ``path``, the vocabulary or corpus there is used as it is. Otherwise the
vocabulary is learned, and the corpus is built.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from bert_jax.configuration import build, check_fields
from bert_jax.corpora import columns, engine
from bert_jax.corpora.build import BuildConfig, Progress
from bert_jax.corpora.build import build as build_corpus
from bert_jax.corpora.duplicates import Duplicates
from bert_jax.corpora.mixture import JoinedSource, check_weights
from bert_jax.corpora.source import OwnSource, Shard, Source, documents, shards_of, text_of
from bert_jax.corpora.workplace import open_workplace
from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.program import Note
from bert_jax.storage import files
from bert_jax.text import accents, learn
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.case import Case
from bert_jax.text.learn import COVERAGE, learn_from_counts
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import MAX_SENTENCES, NUM_THREADS, learn_sentencepiece
from bert_jax.text.sentences import check_language
from bert_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
    """The keys of ``config.vocab``."""

    # a vocab.txt, a .model of sentencepiece or a tokenizer.json to use as it is; if "", one is learned.
    path: str = ""
    kind: Literal["wordpiece", "unigram", "bpe", "byte_bpe"] = "wordpiece"  # unigram and bpe are sentencepiece's
    size: int = 30_522  # number of pieces to learn, special tokens included
    lowercase: bool = True  # of a vocabulary that is learned, or whose files do not say it, such as a bare vocab.txt
    # whether é becomes e, and letters of other scripts lose their signs; None: in lower case alone, as in BERT
    strip_accents: bool | None = None
    min_frequency: int = 2  # wordpiece, byte_bpe: a pair of pieces seen less often is not joined
    character_coverage: float = COVERAGE  # share of the text's characters that the alphabet covers, if there is room
    byte_fallback: bool = False  # sentencepiece: add 256 pieces for bytes, so that no text is unknown
    # sentencepiece, byte_bpe: the most sentences to learn from; memory grows with this number
    max_sentences: int = MAX_SENTENCES
    num_threads: int = NUM_THREADS  # sentencepiece: the learned model depends on this number
    # tokens that stay whole in every text, such as ("<e1>", "</e1>"); they are added to the vocabulary of --init too
    added: tuple[str, ...] = ()
    cls_last: bool = False  # whether [CLS] stands after a text, as in XLNet, in the vocabulary of --init too

    def __post_init__(self) -> None:
        counts = ("size", "min_frequency", "max_sentences", "num_threads")
        words, share = "tokens without white space are needed, each once", "a share above 0 and at most 1 is needed"
        check_fields(self, "config.vocab", words, "added", sound=_are_words)
        check_fields(self, "config.vocab", share, "character_coverage", sound=lambda value: 0 < value <= 1)
        check_fields(self, "config.vocab", "at least 1 is needed", *counts, sound=lambda value: value >= 1)

    def with_added(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return ``tokenizer`` with the tokens that ``added`` names, and [CLS] in the place that ``cls_last`` says."""
        return tokenizer.with_added([{"content": text} for text in self.added], self.cls_last)

    @property
    def case(self) -> Case:
        return Case(self.lowercase, self.strip_accents)

    @property
    def file_name(self) -> str:
        """Return the name of the file of a vocabulary that is learned."""
        changed, plain = bool(self.added) or self.cls_last, self.strip_accents in (None, self.lowercase)
        return tokenizers.file_name(self.kind, changed, plain)

    def typed_case(self, typed: Collection[str]) -> Case:
        """Return the keys of case that the user gave on the command line; ``typed`` are all keys given there."""
        default = VocabularyConfig()
        given = {
            name: getattr(self, name)
            for name in ("lowercase", "strip_accents")
            if f"vocab.{name}" in typed or ("vocab" in typed and getattr(self, name) != getattr(default, name))
        }
        return Case(**given)

    def load_tokenizer(self, initial: Tokenizer | None = None, typed: Collection[str] = ()) -> Tokenizer | None:
        """Return the tokenizer at ``path``, else ``initial``, with the added tokens; None if it has to be learned.

        Args:
          initial: the tokenizer of the model to start from. Its case decides how ``path`` is read, if neither the file
            nor the user states the case.
          typed: the keys of the config that the user gave on the command line.

        Raises:
          UserError: there is no such vocabulary, or a key of case was typed that contradicts it.
        """
        if self.path:
            given, others = self.typed_case(typed), (initial or self).case
            case = [own if said is None else said for said, own in zip(given, others, strict=True)]
            initial = tokenizers.load(self.path, *case)
            given.check(initial.case, self.path)
        return self.with_added(initial) if initial else None


def _are_words(values: tuple[str, ...]) -> bool:
    return len(set(values)) == len(values) and all(value.split() == [value] for value in values)


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """The keys of ``config.corpus``."""

    path: str = ""  # an existing store to use; if "", one is built
    source: str = "docstrings"  # the name of a file of bert_jax/corpora that has a Source
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # the fields of that Source
    heldout_fraction: float = 0.05  # share of the documents to hold out, chosen by their hash
    duplicates: Duplicates = "keep"  # "exact" drops documents whose words an earlier one has
    part_bytes: int = 0  # bytes of text in a shard; 0 means chosen by the size of the corpus
    num_workers: int = 0  # processes that read and tokenize (0: one per core); they do not change the store
    beam_options: tuple[str, ...] = ()  # flags of an Apache Beam runner, to build on a cluster
    columns: dict[str, Any] = dataclasses.field(default_factory=dict)  # name -> the annotator and its options
    parts: dict[str, Any] = dataclasses.field(default_factory=dict)  # name -> PartConfig, for a mixture
    temperature: float = 1.0  # for a mixture without weights: above 1, small parts get a larger share

    def __post_init__(self) -> None:
        if not (self.path or self.parts):
            self.build_config()
        columns.check(self.columns)
        for name, part in self.parts.items():
            if not isinstance(part, Mapping):
                raise UserError(
                    f"config.corpus.parts.{name} is {part!r}; the keys of a part are needed, such as "
                    "{'path': 'corpora/old'}"
                )
            if not re.fullmatch(r"[a-z0-9_][a-z0-9_-]*", name):
                raise UserError(f"config.corpus.parts has {name!r}; a name has small letters, digits, _ and - only")
            files.check_name(name, "a part of config.corpus.parts")
        parts = self.part_configs()
        check_weights({name: part.weight for name, part in parts.items()}, self.temperature)
        if parts and any(value != () for value in self.options.values()):
            raise UserError("config.corpus has options beside its parts; each part has options of its own")

    def build_config(self, where: str = "config.corpus", private: bool = False) -> BuildConfig:
        """Return the settings of the build. Raises ``UserError`` for a value that makes no sense."""
        return BuildConfig(
            heldout_fraction=self.heldout_fraction,
            part_bytes=self.part_bytes,
            duplicates=self.duplicates,
            num_workers=self.num_workers,
            beam_options=self.beam_options,
            where=where,
            private=private,
        )

    def part_configs(self) -> dict[str, PartConfig]:
        """Return the typed configs of the parts of a mixture, by name; empty for a single corpus."""
        return {
            name: build(PartConfig, part, f"config.corpus.parts.{name}") for name, part in sorted(self.parts.items())
        }

    def part(self, name: str) -> CorpusConfig:
        """Return the config of the mixture's part ``name`` in the form of a single corpus's config."""
        chosen = dataclasses.asdict(self.part_configs()[name])
        del chosen["weight"]
        return dataclasses.replace(self, parts={}, **chosen)

    def by_path(self) -> dict[str, CorpusConfig]:
        """Return path in the config -> config, for the store of each part, or for the only store."""
        parts = {f"config.corpus.parts.{name}": self.part(name) for name in self.part_configs()}
        return parts or {"config.corpus": self}


@dataclasses.dataclass(frozen=True)
class PartConfig:
    """The keys of ``config.corpus.parts.<name>``; a part takes all other settings from ``config.corpus``."""

    path: str = ""  # an existing store to use; if "", one is built
    source: str = "text_files"  # as config.corpus.source
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # as config.corpus.options
    # share of the sum of all weights, 0: evaluated, never trained on; if None for all, sizes and temperature decide
    weight: float | None = None

    def __post_init__(self) -> None:
        if self.path and self.options and self.options.get("paths") != ():  # () is a recipe's, still to be named
            raise UserError(
                f"a part of config.corpus.parts has the path {self.path} of a corpus that is there, and the options of "
                "a corpus to be built; leave the path or the options out"
            )


def find_source(corpus: CorpusConfig, where: str = "config.corpus") -> Any:
    """Return the ``Source`` that ``corpus`` names, with its options checked; for a mixture, all sources joined.

    Raises ``UserError`` for an option that makes no sense, and for a part of a mixture that is a store, without text.
    """
    if corpus.parts:
        for name, part in corpus.part_configs().items():
            if part.path:
                raise UserError(
                    f"{where}.parts.{name}.path is a corpus that is there; name its vocabulary with config.vocab.path"
                )
        return JoinedSource(
            tuple((name, find_source(corpus.part(name), f"{where}.parts.{name}")) for name in corpus.part_configs())
        )
    source_class = catalogue.find("corpora", corpus.source, having="Source").Source
    known = {field.name for field in dataclasses.fields(source_class)}
    # Empty ``paths`` of a recipe are dropped for a source that does not have this option.
    options = {name: value for name, value in corpus.options.items() if name in known or value != ()}
    source = build(source_class, options, f"{where}.options")
    if "language" in known:
        check_language(source.language, f"{where}.options.language")
    return OwnSource(source, corpus.source) if catalogue.is_own(corpus.source) else source


def prepare_vocabulary(
    vocab: VocabularyConfig,
    corpus: CorpusConfig,
    output: str | os.PathLike[str],
    note: Note | None = None,
    typed: Collection[str] = (),
) -> Tokenizer:
    """Write the tokenizer of a run to the file ``output``, whole or not at all, and return it.

    If ``vocab.path`` is set, the tokenizer is a checked copy of that file; otherwise it is learned from ``corpus``.
    ``note`` is called with a line if a learned tokenizer lacks characters that it should have, or takes a part of many
    letters. ``typed``: see ``VocabularyConfig.load_tokenizer``.

    Raises:
      UserError: ``output`` has the file name of another kind of tokenizer, a vocabulary lacks a special token, or a
        corpus has no text.
    """
    files.check_new(output)
    tokenizer = vocab.load_tokenizer(typed=typed)
    what = f"the vocabulary {vocab.path}" if tokenizer else f"a vocabulary of kind {vocab.kind!r}"
    changed = " with added tokens" if vocab.added else " with cls_last" if vocab.cls_last else ""
    what += changed or f" with strip_accents={vocab.strip_accents}"
    tokenizers.check_name(output, tokenizer.file_name if tokenizer else vocab.file_name, what)
    if tokenizer is None:
        tokenizer = vocab.with_added(_learn(vocab, corpus, output, note))
        tell_of_losses(vocab, tokenizer, text_of(find_source(corpus)), note)
    tokenizer.save(output)
    return tokenizer


def tell_of_losses(vocab: VocabularyConfig, tokenizer: Tokenizer, texts: Iterable[str], note: Note | None) -> None:
    """Call ``note`` with a line if a learned ``tokenizer`` strips parts of many letters of ``texts`` unasked.

    ``texts``: some of the text from which the tokenizer was learned.
    """
    if note and vocab.strip_accents is None and (line := tokenizer.losses(accents.losses("".join(texts)))):
        note(f"{line}; {accents.KEEP}{' in a tokenizer.json' if vocab.kind == 'wordpiece' else ''}")


def _learn(
    vocab: VocabularyConfig, corpus: CorpusConfig, output: str | os.PathLike[str], note: Note | None
) -> Tokenizer:
    """Return the tokenizer that ``vocab`` describes, learned from ``corpus``. For WordPiece, workers count words."""
    source = find_source(corpus)
    if vocab.kind == "wordpiece":
        words = _count_words(source, vocab, corpus, os.fspath(files.as_path(output)))
        return _wordpiece(vocab, words, note)
    texts = (sentence for document in documents(source) for sentence in document.sentences)
    return learn_tokenizer(vocab, texts, note)


def _wordpiece(vocab: VocabularyConfig, words: Mapping[str, int], note: Note | None) -> Tokenizer:
    pieces = learn_from_counts(words, vocab.size, vocab.min_frequency, vocab.character_coverage, note)
    return tokenizers.wordpiece(pieces, vocab.lowercase, strip_accents=vocab.strip_accents)


def _count_words(source: Source, vocab: VocabularyConfig, corpus: CorpusConfig, target: str) -> Counter[str]:
    """Return the word counts of ``source``, which do not depend on the number of workers.

    Finished counts are kept in ``TARGET.partial``, so that the next try goes on from them.
    """
    identity = json.dumps([source.fingerprint(), *vocab.case, corpus.part_bytes])
    with open_workplace(f"{target}.partial", target, hashlib.sha256(identity.encode()).hexdigest()) as workplace:
        work = functools.partial(workplace.once, "words", functools.partial(_count_in_shard, source, vocab.case))
        shards = shards_of(source.pieces(), corpus.part_bytes)
        engine.run(work, shards, corpus.num_workers, corpus.beam_options)
        words = learn.merge(work(shard) for shard in shards)
        workplace.remove()
    return words


def _count_in_shard(source: Source, case: Case, shard: Shard, folder: Path) -> Counter[str]:
    sentences = (sentence for document in documents(source, shard.pieces) for sentence in document.sentences)
    return learn.count_words(sentences, *case)


def learn_tokenizer(vocab: VocabularyConfig, texts: Iterable[str], note: Note | None = None) -> Tokenizer:
    """Return the tokenizer that ``vocab`` describes, learned from ``texts``, which are read once.

    ``note``: see ``prepare_vocabulary``.

    Raises:
      UserError: there is no text, or ``vocab.size`` is too small for the pieces that such a tokenizer must have.
    """
    if vocab.kind == "wordpiece":
        return _wordpiece(vocab, learn.count_words(texts, *vocab.case), note)
    if vocab.kind == "byte_bpe":
        return learn_byte_bpe(
            texts,
            vocab.size,
            lowercase=vocab.lowercase,
            strip_accents=vocab.strip_accents,
            min_frequency=vocab.min_frequency,
            max_sentences=vocab.max_sentences,
        )
    model = learn_sentencepiece(
        texts,
        vocab.size,
        vocab.kind,
        lowercase=vocab.lowercase,
        strip_accents=vocab.strip_accents,
        byte_fallback=vocab.byte_fallback,
        character_coverage=vocab.character_coverage,
        num_threads=vocab.num_threads,
        max_sentences=vocab.max_sentences,
    )
    return tokenizers.sentencepiece(model)


def prepare_corpus(
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    output: str | os.PathLike[str],
    progress: Progress = lambda *counts: None,
    private: bool = False,
    where: str = "config.corpus",
) -> dict[str, Any]:
    """Build the store of ``corpus`` in the new folder ``output``, and return its manifest.

    Each part of a mixture that has no ``path`` is built in a subfolder with its name; name -> manifest is returned.

    Args:
      private: leave out of the manifest where the text came from (``corpora.privacy``).
      where: the path of ``corpus`` in the config, for messages.

    Raises:
      UserError: the input is bad, ``output`` is not empty, or the disk is full. Nothing is left half-written.
    """
    if corpus.parts:
        names = [name for name, part in corpus.part_configs().items() if not part.path]
        if not names:
            raise UserError(f"each of {where}.parts has a path, a corpus that is there; nothing is left to build")
        return {
            name: prepare_corpus(
                corpus.part(name), tokenizer, files.as_path(output) / name, progress, private, f"{where}.parts.{name}"
            )
            for name in names
        }
    source = find_source(corpus, where)
    config = corpus.build_config(where, private)
    return build_corpus(source, tokenizer, output, config, progress, columns.find(corpus.columns))
