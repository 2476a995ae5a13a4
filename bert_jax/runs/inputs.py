"""Finds the vocabulary and the corpus of a run, and decides whether a workdir that has both gets new ones.

Until a run has saved its first step, a vocabulary or corpus in the workdir that was made from other text, or for
another recipe, is made again. Once a step is saved, the model depends on them, and a change of either is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax.cluster import distributed
from bert_jax.corpora import columns, text_files
from bert_jax.corpora import manifest as manifests
from bert_jax.corpora.build import FEWEST_DOCUMENTS, Progress
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.prepare import (
    CorpusConfig,
    VocabularyConfig,
    find_source,
    learn_tokenizer,
    prepare_corpus,
    prepare_vocabulary,
    tell_of_losses,
)
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.examples.columns import Roles
from bert_jax.inspection.fit import few_heldout
from bert_jax.inspection.fixes import Fixes
from bert_jax.inspection.line_ends import LONG_WORD, in_long_words, line_ends
from bert_jax.inspection.pieces import Pieces
from bert_jax.interchange.initial import find_initial
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.program import Note
from bert_jax.records import Example
from bert_jax.storage import files, reading
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.case import Case
from bert_jax.text.tokenizer import Tokenizer

CORPUS = "corpus"  # the folder of the corpus in a workdir
NOTE_SECONDS = 30.0
_TOO_LONG = 0.2  # share of the pieces in long words; in text with spaces it is near 0
_HOW_TO_BUILD = (
    "several processes build none; on one host, with the recipe and the flags given here, run bert-jax vocab "
    "--config=RECIPE --output=VOCAB and bert-jax corpus --config=RECIPE --config.vocab.path=VOCAB --output=CORPUS, "
    "then add --config.vocab.path=VOCAB --config.corpus.path=CORPUS"
)
_ORIGIN = "vocab.json"  # file with hashes of the vocabulary and of what it was made from


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Finds or makes the vocabulary and the corpus that a run reads."""

    workdir: str
    vocab: VocabularyConfig
    corpus: CorpusConfig
    initial: TrainedModel | None
    bound: bool  # whether the run has saved a step
    private: bool = False
    needed_columns: tuple[str, ...] = ()  # the columns of the corpus that rows read
    masks_words: bool = False  # whether the unit of masking is "word" in a phase
    builds: bool = True  # if False, an outdated vocabulary or corpus is an error, not made again
    typed: tuple[str, ...] = ()  # the keys of the config that were given on the command line

    @property
    def case(self) -> Case:
        """Return the case of the vocabulary, for a file that does not say it."""
        return (self.source_tokenizer or self.vocab).case

    @functools.cached_property
    def source_tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of ``config.vocab.path`` or of ``initial``; None if the run learns a vocabulary."""
        return self.vocab.load_tokenizer(self.initial.tokenizer if self.initial else None, self.typed)

    def check(self) -> None:
        """Raise ``UserError`` for every mistake that can be found before any text is read."""
        tokenizer = self.source_tokenizer
        for where, corpus in self.corpus.by_path().items():
            if corpus.path:
                there = Corpus(corpus.path)
                there.check_columns([*corpus.columns, *self.needed_columns])
                if tokenizer and not self.bound:  # a run with a saved step uses the vocabulary in its workdir
                    there.check_tokenizer(tokenizer)
            if (corpus.path or self.corpus.path) and not (self.vocab.path or self.initial or self.bound):
                raise UserError(f"{where}.path is a corpus that is there; name its vocabulary with config.vocab.path")
            if not (corpus.path or self.corpus.path or self.bound):
                source = find_source(corpus, where)
                facts = source.describe()  # raises if no file or package is there
                if isinstance(source, text_files.Source) and source.is_document_a_file():
                    self._check_files(facts["files"], where)
                columns.find(corpus.columns)

    def _check_files(self, count: int, where: str) -> None:
        """Raise ``UserError`` if ``count`` files, each one document, are too few to hold some of them out."""
        share = self.corpus.heldout_fraction
        if count >= FEWEST_DOCUMENTS and count * min(share, 1 - share) >= 1:
            return
        raise UserError(
            f"{where}.options.paths has too few files ({count}), each one document, to train on 2 and hold out 2 with"
            f" config.corpus.heldout_fraction={share}: cut them into documents of some pages with"
            f" --{where}.options.document_boundary=pages (or blank_line, line), or add files"
        )

    def check_made(self) -> None:
        """Raise ``UserError`` unless vocabulary and corpus exist.

        This is called if several processes train. Such a job makes neither, because one process would build while all
        others wait.
        """
        missing = [f"corpus in {place}" for place in self.places().values() if not files.is_whole(place)]
        if not (self.vocab.path or self.initial or tokenizers.existing(self.workdir)):
            missing.insert(0, f"vocabulary in {self.workdir} (config.vocab.path names another)")
        if missing:
            raise UserError(f"there is no {' and no '.join(missing)}, and {_HOW_TO_BUILD}")

    def places(self) -> dict[str, epath.Path]:
        """Return a dict: name of each part of the corpus -> its folder. A corpus without parts has the name ""."""
        folder = files.as_path(self.corpus.path or files.as_path(self.workdir) / CORPUS)
        if not self.corpus.parts:
            return {"": folder}
        paths = {name: self.corpus.part(name).path for name in self.corpus.part_configs()}
        return {name: files.as_path(path) if path else folder / name for name, path in paths.items()}

    def there(self) -> Mixture:
        """Return the stores that exist, whatever text they were made from. Raises ``UserError`` if one is missing."""
        return self._mix({name: Corpus(place) for name, place in self.places().items()})

    def open(self, note: Note) -> tuple[Tokenizer, Mixture]:
        """Return the vocabulary and the corpus.

        If the job has several processes, the first finds or copies both, then the others read them. In such a job, no
        process builds a corpus, because all others would have to wait for hours.
        """
        inputs = self
        if distributed.several():
            self.check_made()
            inputs = dataclasses.replace(self, builds=False)
            if self.vocab.path and self.source_tokenizer:
                distributed.agree("config.vocab.path", self.source_tokenizer.sha256)
        if not distributed.is_first():
            distributed.wait("the inputs are there")
            inputs = dataclasses.replace(inputs, bound=True)
        tokenizer = inputs.open_vocabulary(note)
        corpus = inputs.open_corpus(tokenizer, note)
        if distributed.is_first():
            distributed.wait("the inputs are there")
        distributed.agree("the vocabulary", tokenizer.sha256)
        distributed.agree("the corpus", corpus.fingerprint)
        return tokenizer, corpus

    def open_vocabulary(self, note: Note) -> Tokenizer:
        """Return the tokenizer in the workdir, after making its file if it is missing.

        The file is copied from ``config.vocab.path`` or from the model to start from; without either, it is learned.

        Raises:
          UserError: the run was trained with another vocabulary than the recipe names now, or its file is damaged.
        """
        if not self.bound:
            self._make_vocabulary(note)
        file = tokenizers.find(self.workdir)
        if self._record().get("file_sha256") != files.sha256(file):
            raise UserError(
                f"{file} is damaged: its sha256 differs from {_ORIGIN}; put the old one back (exports have it)"
            )
        tokenizer = tokenizers.load(self.workdir, *self.case)
        if self.source_tokenizer and self.source_tokenizer.sha256 != tokenizer.sha256:
            named = self.vocab.path or f"that of --init with config.vocab.added={self.vocab.added}"
            raise UserError(
                f"{self.workdir} was trained with another vocabulary than {named}; leave that out, or give another "
                "--workdir"
            )
        wanted = f" of the {self.vocab.size:,} asked for: nothing else in the text is frequent enough"
        fewer = "" if self.source_tokenizer or tokenizer.size >= self.vocab.size else wanted
        note(describe_vocabulary(tokenizer, fewer))
        return tokenizer

    def open_corpus(self, tokenizer: Tokenizer, note: Note) -> Mixture:
        """Return the corpus, after building the stores that are missing.

        The stores are at ``config.corpus.path`` if the recipe sets it, else in ``workdir/corpus``.
        """
        places = self.places()
        corpora = {
            name: self._open(config, place, where, tokenizer, note)
            for (name, place), (where, config) in zip(places.items(), self.corpus.by_path().items(), strict=True)
        }
        smallest = min(corpora.values(), key=lambda corpus: corpus.split("heldout").num_tokens)
        build = "in a new build" if self.corpus.path else "in a new --workdir"
        if few := few_heldout(smallest.split("heldout").num_tokens, smallest.manifest["heldout_fraction"], build):
            note(few)
        mixture = self._mix(corpora)
        if self.corpus.parts:
            note("shares of the rows: " + ", ".join(f"{name} {share:.1%}" for name, share in mixture.shares.items()))
        return mixture

    def _mix(self, corpora: Mapping[str, Corpus]) -> Mixture:
        if not self.corpus.parts:
            return Mixture.alone(corpora[""])
        weights = {name: part.weight for name, part in self.corpus.part_configs().items()}
        return Mixture.of(corpora, weights, self.corpus.temperature)

    def _open(self, config: CorpusConfig, place: epath.Path, where: str, tokenizer: Tokenizer, note: Note) -> Corpus:
        """Return the store in the folder ``place``, which ``config`` at the path ``where`` describes.

        If the recipe names no path for the store, a missing or outdated store is built there first.
        """
        name = where.rpartition(".")[2]  # of the part, or "corpus"
        ours = not (config.path or self.corpus.path)
        if ours and not self.bound and files.is_whole(place) and not _is_made_of(config, place, tokenizer):
            if not self.builds:
                raise UserError(f"the corpus in {place} was made of another text or vocabulary, and {_HOW_TO_BUILD}")
            place.rmtree()
        if ours and not files.is_whole(place):
            note(f"reading {config.source} and writing {'the corpus' if not self.corpus.parts else name}, tokenized")
            prepare_corpus(config, tokenizer, place, _now_and_then(note), self.private, where)
        corpus = Corpus(place, note=note)
        corpus.check_columns(config.columns)
        train, heldout = corpus.split("train"), corpus.split("heldout")
        note(
            f"{name}: {train.num_documents:,} documents, {train.num_tokens:,} tokens to train on; "
            f"{heldout.num_documents:,} documents, {heldout.num_tokens:,} tokens held out"
        )
        if not self.bound:
            check = line_ends(train, Pieces.of(tokenizer), Fixes(corpus.manifest, where))
            if check.status != "ok":
                note(f"{name}: {check.figure}; {check.fix} mends it")
            share = in_long_words(train, tokenizer.is_continuation) if self.masks_words else 0.0
            if share > _TOO_LONG:
                note(
                    f"{name}: masking takes whole words, and {share:.0%} of the pieces are in "
                    f"words of more than {LONG_WORD} pieces, as in text without spaces; too long words are never "
                    f"masked; in a new --workdir, --{where}.columns=\"{{'words': {{'annotator': 'segmenter'}}}}\" "
                    "--config.objective.masking.unit=words masks the words that a segmenter finds in Chinese"
                )
        return corpus

    def _make_vocabulary(self, note: Note) -> None:
        """Write the tokenizer's file, unless one exists that was made from the same text and settings."""
        workdir = files.as_path(self.workdir)
        there, origin = tokenizers.existing(workdir), self._origin()
        if there is not None:
            if self._record() == {"sha256": origin, "file_sha256": files.sha256(there)}:
                return
            if not (self.builds or self.vocab.path or self.initial):
                raise UserError(f"the vocabulary {there} was made of another text or recipe, and {_HOW_TO_BUILD}")
            files.as_path(there).unlink()
        if self.source_tokenizer:
            self.source_tokenizer.save(workdir / self.source_tokenizer.file_name)
        else:
            source = ", ".join(self.corpus.part_configs()) or self.corpus.source
            note(f"learning a vocabulary of {self.vocab.size:,} pieces from {source}")
            prepare_vocabulary(self.vocab, self.corpus, workdir / self.vocab.file_name, note)
        digest = files.sha256(tokenizers.find(workdir))
        files.write_text(workdir / _ORIGIN, json.dumps({"sha256": origin, "file_sha256": digest}))

    def _record(self) -> dict[str, Any]:
        """Return the content of ``_ORIGIN``; {} if it is missing or damaged."""
        return reading.read_object(files.as_path(self.workdir) / _ORIGIN) or {}

    def _origin(self) -> str:
        """Return a hash of everything that determines the vocabulary."""
        if self.source_tokenizer:
            facts: Any = self.source_tokenizer.sha256
        else:
            facts = [dataclasses.asdict(self.vocab), find_source(self.corpus).fingerprint()]
        return hashlib.sha256(json.dumps([facts, self.case.lowercase]).encode()).hexdigest()


def _now_and_then(note: Note) -> Progress:
    """Return a progress function for a build, which passes a line to ``note`` every ``NOTE_SECONDS``."""
    start = noted = time.monotonic()

    def progress(documents: int, num_bytes: int, tokens: int) -> None:
        nonlocal noted
        now = time.monotonic()
        if now - noted >= NOTE_SECONDS:
            noted = now
            rate = num_bytes / 1e6 / (now - start)
            note(f"{documents:,} documents, {num_bytes / 1e6:,.0f} MB, {tokens:,} tokens so far ({rate:.1f} MB/s)")

    return progress


def _is_made_of(corpus: CorpusConfig, path: epath.Path, tokenizer: Tokenizer) -> bool:
    """Return whether the store at ``path`` equals the store that would be built now."""
    manifest = manifests.read(path)
    wanted = {name: getattr(corpus, name) for name in ("heldout_fraction", "part_bytes", "duplicates")}
    wanted |= {"tokenizer_sha256": tokenizer.sha256, "source_fingerprint": find_source(corpus).fingerprint()}
    same = all(manifest.get(name) == value for name, value in wanted.items())
    return same and columns.has_columns(manifest, columns.find(corpus.columns))


def find_vocabulary(
    config: VocabularyConfig,
    initial: TrainedModel | None,
    workdir: str | None,
    train: Sequence[tuple[Sequence[Example], Roles]],
    note: Note | None = None,
) -> Tokenizer:
    """Return the tokenizer for fine-tuning.

    The first that exists is taken: the tokenizer in ``workdir`` (pass None if the run has no checkpoint), the tokenizer
    of ``initial``, the tokenizer at ``config.vocab.path``. If none exists, it is learned from the texts to train on;
    see ``prepare_vocabulary`` for ``note``. A new run adds the tokens of ``config.vocab.added``.

    ``train``: of each task, its examples to train on and its roles.
    """
    if workdir is not None and (there := tokenizers.existing(workdir)) is not None:
        return tokenizers.load(there, *(initial.tokenizer if initial else config).case)
    if found := config.with_added(initial.tokenizer) if initial else config.load_tokenizer():
        return found
    texts = [
        text for of, roles in train for example in of for role in roles.required for text in _strings(example.get(role))
    ]
    learned = config.with_added(learn_tokenizer(config, texts, note))
    tell_of_losses(config, learned, texts, note)
    return learned


def describe_vocabulary(tokenizer: Tokenizer, fewer: str = "") -> str:
    """Return a line about the vocabulary of a run. ``fewer``: words about a size that is smaller than asked for."""
    return f"vocabulary: {tokenizer.size:,} pieces{fewer}, {tokenizer.case}"


def read_initial(
    config: VocabularyConfig, typed: Collection[str], source: str, read: Callable[..., TrainedModel] = load
) -> TrainedModel:
    """Return the model of ``--init``, outside a run; see ``initial_of_run``."""
    given = config.typed_case(typed)
    initial = read(source, flag="--init=", given=given)
    if not config.path:
        given.check(initial.tokenizer.case, f"--init={source}")
    return initial


def initial_of_run(
    config: VocabularyConfig, typed: Collection[str], source: str | None, workdir: str, resumes: bool
) -> TrainedModel | None:
    """Return the model from which a run starts; see ``find_initial``.

    ``typed``: the keys of the config that were given on the command line. The keys of case among them decide how a
    vocabulary is read whose files do not say it.

    Raises:
      UserError: for the reasons of ``find_initial``, or a key of case contradicts the vocabulary.
    """
    given = config.typed_case(typed)
    initial = find_initial(source, workdir, resumes, given)
    if initial and (resumes or not config.path):
        given.check(initial.tokenizer.case, workdir if resumes else f"--init={source}")
    return initial


def overridden_vocabulary(config: VocabularyConfig, typed: Collection[str], initial: TrainedModel) -> list[str]:
    """Return a line that the vocabulary of ``initial`` is taken, if the recipe of a fine-tuning names another; else [].

    Args:
      typed: the keys of the config that were given on the command line.

    Raises:
      UserError: the vocabulary was given on the command line, and ``initial`` has another.
    """
    if not config.path:
        return []
    if not {"vocab", "vocab.path"} & {*typed}:
        return [f"the vocabulary of --init is taken, not the recipe's: {config.path}"]
    if tokenizers.load(config.path, *initial.tokenizer.case).sha256 == initial.tokenizer.sha256:
        return []
    raise UserError(
        f"--config.vocab.path={config.path} contradicts --init={initial.source}, which has another vocabulary; "
        "fine-tuning keeps that of the model: leave it out, or start without --init"
    )


def keep_vocabulary(tokenizer: Tokenizer, workdir: str) -> None:
    """Save the tokenizer in the workdir and remove any other tokenizer that a failed run left there."""
    if (there := tokenizers.existing(workdir)) is not None:
        files.as_path(there).unlink()
    tokenizer.save(files.as_path(workdir) / tokenizer.file_name)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list | tuple) else []
