"""The vocabulary and the corpus of a run: those that the recipe names, or made in the workdir where they lack.

Until a run has saved its first step nothing binds it: what a failed try made of other text, or for another recipe, is
made again. From then on they are what the model was trained with, and another one is an error.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax import files
from bert_jax.corpora.prepare import (
    CorpusConfig,
    VocabularyConfig,
    find_source,
    prepare_corpus,
    prepare_vocabulary,
)
from bert_jax.corpora.store import MANIFEST, Corpus
from bert_jax.errors import UserError
from bert_jax.interchange.initial import Initial
from bert_jax.text.wordpiece import WordPiece, read_vocab

Note = Callable[[str], None]
VOCABULARY, CORPUS = "vocab.txt", "corpus"  # their places in a workdir
ORIGIN = "vocab.json"  # what the vocabulary was made from


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Finds or makes what a run reads. ``bound``: the run has saved a step."""

    workdir: str
    vocab: VocabularyConfig
    corpus: CorpusConfig
    initial: Initial | None
    bound: bool

    def check(self) -> None:
        """Whatever can be found wrong before a text is read. Raises ``UserError``."""
        if self.vocab.path:
            read_vocab(self.vocab.path)
        if self.corpus.path:
            Corpus(self.corpus.path)
        elif not self.bound:
            find_source(self.corpus).describe()  # a path that matches nothing, a package that is not installed

    def open_vocabulary(self, note: Note) -> WordPiece:
        """``workdir/vocab.txt``, made first if need be: a copy of config.vocab.path, the vocabulary of the model to
        start from, or a learned one.

        Raises:
          UserError: the run was trained with another vocabulary than the one that is named now.
        """
        lowercase = self.initial.tokenizer.lowercase if self.initial else self.vocab.lowercase
        path = files.as_path(self.workdir) / VOCABULARY
        if self.bound and self.vocab.path and read_vocab(path) != read_vocab(self.vocab.path):
            raise UserError(
                f"{self.workdir} was trained with another vocabulary than {self.vocab.path}; leave the path out, or"
                " give another --workdir"
            )
        if not self.bound:
            origin = self._origin(lowercase)
            kept = files.as_path(self.workdir) / ORIGIN
            if not path.exists() or not kept.exists() or kept.read_text() != origin:
                path.unlink(missing_ok=True)
                self._make_vocabulary(path, lowercase, note)
                files.write_text(kept, origin)
        tokenizer = WordPiece.load(path, lowercase=lowercase)
        learned = not self.vocab.path and not self.initial
        fewer = f" of the {self.vocab.size:,} asked for: the text has no more" if learned else ""
        note(
            f"vocabulary: {tokenizer.size:,} pieces{fewer if tokenizer.size < self.vocab.size else ''},"
            f" {'uncased' if lowercase else 'cased'}"
        )
        return tokenizer

    def open_corpus(self, tokenizer: WordPiece, note: Note) -> Corpus:
        """The store at config.corpus.path, or ``workdir/corpus``, built first if need be."""
        path = self.corpus.path or files.as_path(self.workdir) / CORPUS
        if not self.corpus.path:
            if not self.bound and files.committed(path) and not self._made_of_this(path, tokenizer):
                files.as_path(path).rmtree()
            if not files.committed(path):
                note(f"reading {self.corpus.source} and writing the tokenized corpus")
                vocab = dataclasses.replace(self.vocab, path="", lowercase=tokenizer.lowercase)
                vocabulary = files.as_path(self.workdir) / VOCABULARY
                prepare_corpus(self._config(vocab), vocabulary, path)
        corpus = Corpus(path)
        train, heldout = corpus.split("train"), corpus.split("heldout")
        note(
            f"corpus: {train.num_documents:,} documents, {train.num_tokens:,} tokens to train on; "
            f"{heldout.num_documents:,} documents, {heldout.num_tokens:,} tokens held out"
        )
        return corpus

    def _make_vocabulary(self, path: Any, lowercase: bool, note: Note) -> None:
        if self.initial and not self.vocab.path:
            self.initial.tokenizer.save(path)
            return
        if not self.vocab.path:
            note(f"learning a vocabulary of {self.vocab.size:,} pieces from {self.corpus.source}")
        prepare_vocabulary(self._config(dataclasses.replace(self.vocab, lowercase=lowercase)), path)

    def _origin(self, lowercase: bool) -> str:
        """Hash of all that the vocabulary depends on."""
        if self.vocab.path:
            facts: Any = read_vocab(self.vocab.path)
        elif self.initial:
            facts = self.initial.tokenizer.sha256
        else:
            facts = [dataclasses.asdict(self.vocab), find_source(self.corpus).fingerprint()]
        return json.dumps({"sha256": hashlib.sha256(json.dumps([facts, lowercase]).encode()).hexdigest()})

    def _made_of_this(self, path: Any, tokenizer: WordPiece) -> bool:
        manifest = json.loads((files.as_path(path) / MANIFEST).read_text())
        found = [manifest[name] for name in ("tokenizer_sha256", "heldout_fraction", "source_fingerprint")]
        return found == [tokenizer.sha256, self.corpus.heldout_fraction, find_source(self.corpus).fingerprint()]

    def _config(self, vocab: VocabularyConfig) -> Mapping[str, Any]:
        return {"vocab": dataclasses.asdict(vocab), "corpus": dataclasses.asdict(self.corpus)}
