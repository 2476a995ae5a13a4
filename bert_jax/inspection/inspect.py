"""Runs all checks on a corpus, in one pass over its tokens and a few passes over hashes of its sentences.

A mixture is inspected part by part.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.corpora.manifest import MANIFEST
from bert_jax.corpora.privacy import is_private
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.inspection import fit, repeats, shape
from bert_jax.inspection.check import Check, Status, worst
from bert_jax.inspection.fertility import decoded_sentences, measure_fertility
from bert_jax.inspection.fixes import Fixes
from bert_jax.inspection.line_ends import line_ends
from bert_jax.inspection.pieces import Pieces
from bert_jax.inspection.scan import Scan, scan
from bert_jax.models.model import NSP_HEAD
from bert_jax.parts import catalogue
from bert_jax.storage import files, reading
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.case import Case
from bert_jax.text.tokenizer import Tokenizer

_LONGEST_ROW = 1_000_000  # positions; rows are laid out for each length that is asked for
_CACHE_BYTES = 32 << 20  # cache for blocks; few are needed, since the text is read from start to end


@dataclasses.dataclass(frozen=True)
class InspectionRequest:
    """The corpus to inspect, and the settings of the inspection."""

    corpus: str
    vocab: str | None = None  # a path; if None, a tokenizer in or beside the corpus's folder that made the corpus
    init: Tokenizer | None = None  # the tokenizer of a model to start from, to compare
    max_lengths: tuple[int, ...] = (128, 512)
    phases: Mapping[str, int] = dataclasses.field(default_factory=dict)  # of the recipe: name -> row length
    pairs: bool = True  # whether rows are pairs of segments whose second one is random half of the time
    next_sentences: bool = True  # whether the model predicts which second segments are random
    private: bool = False  # whether to leave text and paths out of the result; always so for a private corpus


def request_for(corpus: str, config: Mapping[str, Any] | None) -> InspectionRequest:
    """Return a request to inspect ``corpus`` for the rows of a recipe.

    Args:
      config: the recipe. If None, the recipe of the run in whose folder ``corpus`` lies. Without a recipe, rows are
        as long as ``InspectionRequest`` says.
    """
    if config is None:
        run = reading.read_object(files.as_path(corpus).parent / "run.json") or {}
        config = run.get("config")
    tree = config if isinstance(config, Mapping) else {}
    phases: Any = tree.get("phases") if isinstance(tree.get("phases"), Mapping) else {}
    every = {str(name): phase.get("max_length") for name, phase in phases.items() if isinstance(phase, Mapping)}
    lengths = {name: length for name, length in every.items() if isinstance(length, int) and length >= 5}
    request = InspectionRequest(corpus, phases=lengths)
    if lengths:
        request = dataclasses.replace(request, max_lengths=tuple(dict.fromkeys(lengths.values())))
    objective = tree.get("objective")
    if not isinstance(objective, Mapping):
        return request
    first = next(iter((objective.get("members") or {"": objective}).values()))
    chosen = catalogue.find("objectives", first.get("name", ""), having="Objective").Objective
    arrangement = first.get("arrangement") or objective.get("arrangement") or chosen.arrangement
    pairs = arrangement == "sentence_pairs"
    next_sentences = pairs and NSP_HEAD in getattr(chosen, "parts", ())
    return dataclasses.replace(request, pairs=pairs, next_sentences=next_sentences)


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The result of all checks on a corpus."""

    corpus: dict[str, Any]
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Status:
        return worst([check.status for check in self.checks])

    def check(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def as_record(self) -> dict[str, Any]:
        """Return the result for JSON: ``corpus``, ``verdict`` and ``checks`` by name."""
        checks = {c.name: {k: v for k, v in dataclasses.asdict(c).items() if k != "name"} for c in self.checks}
        return {"corpus": self.corpus, "verdict": self.verdict, "checks": checks}


def inspect(request: InspectionRequest) -> dict[str, Inspection]:
    """Inspect the training split of each corpus of a mixture, and compare the held-out split with it.

    The corpora lie in the folder ``request.corpus``. That folder may be a single corpus, whose name is then "".

    Memory is bounded: about 100 bytes per document, and 200 MB of blocks and hashes. The hashes of all sentences (8
    bytes per sentence) go to a temporary folder.

    Raises:
      UserError: there is no corpus, the vocabulary that was named does not exist, or the row lengths cannot be used.
    """
    inspections: dict[str, Inspection] = {}
    for name, place in _corpora(request.corpus).items():
        key = f"config.corpus.parts.{name}" if name else "config.corpus"
        with tempfile.TemporaryDirectory(prefix="bert_jax-inspect-") as folder:
            inspections[name] = _inspect(dataclasses.replace(request, corpus=place), Path(folder), key)
    return inspections


def as_lines(inspection: Inspection) -> Iterator[str]:
    """Yield a line for each check, followed by indented lines with what to do and examples of text."""
    train, held = (inspection.corpus["splits"][name] for name in ("train", "heldout"))
    name, documents = inspection.corpus["fingerprint"][:12], train["num_documents"]
    yield (
        f"corpus {name}: {documents:,} documents, {train['num_tokens']:,} tokens to train on,"
        f" {held['num_tokens']:,} held out"
    )
    if few := fit.few_heldout(held["num_tokens"], inspection.corpus["heldout_fraction"]):
        yield f"     {few}"
    for check in inspection.checks:
        yield f"{check.status:<5}{check.name.replace('_', ' ')}: {check.figure}"
        if check.fix:
            yield f"       -> {check.fix}"
        if check.status != "ok":
            yield from (f"       {label}: {text}" for label, text in check.text)
    yield f"verdict: {inspection.verdict}"


def _corpora(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return name -> folder of each corpus of the mixture in ``folder``; for a single corpus "" -> ``folder``."""
    whole = files.as_path(folder)
    if (whole / MANIFEST).exists() or not whole.is_dir():
        return {"": os.fspath(folder)}
    places = {path.name: os.fspath(path) for path in sorted(whole.iterdir()) if (path / MANIFEST).exists()}
    return places or {"": os.fspath(folder)}


def _inspect(request: InspectionRequest, folder: Path, key: str) -> Inspection:
    """Return the inspection of one corpus; ``folder`` gets the hashes of its sentences."""
    if not request.max_lengths or not all(5 <= length <= _LONGEST_ROW for length in request.max_lengths):
        raise UserError(
            f"--max_length is {request.max_lengths}; give row lengths of 5 to {_LONGEST_ROW:,}, such as 128,512"
        )
    corpus = Corpus(request.corpus, _CACHE_BYTES)
    request = dataclasses.replace(request, private=request.private or is_private(corpus.manifest))
    named = tokenizers.load(request.vocab, *_case(corpus)) if request.vocab else _find_vocabulary(corpus)
    tokenizer = named if named and named.sha256 == corpus.tokenizer_sha256 else None

    checks = [fit.vocabulary(corpus.manifest, named, "the named vocabulary" if request.private else str(request.vocab))]
    fixes = Fixes(corpus.manifest, key, request.phases)
    checks += _check_splits(corpus, tokenizer, request, fixes, folder)
    if request.private:
        checks = [dataclasses.replace(check, text=()) for check in checks]
    return Inspection(_corpus_facts(corpus, request), tuple(checks))


def _check_splits(
    corpus: Corpus, tokenizer: Tokenizer | None, request: InspectionRequest, fixes: Fixes, folder: Path
) -> list[Check]:
    manifest = corpus.manifest
    pieces = Pieces.of(tokenizer) if tokenizer else None
    unk_id = tokenizer.unk_id if tokenizer else -1
    train, held = (scan(corpus.split(name), manifest["vocab_size"], unk_id, folder) for name in ("train", "heldout"))
    lengths = shape.measure_lengths(train.split)
    checks = _text_checks(train, tokenizer, pieces, lengths.document_tokens, fixes)
    if tokenizer is not None and pieces is not None:
        texts = decoded_sentences(train.split, tokenizer)
        found, *others = (measure_fertility(one, texts, True) for one in (tokenizer, request.init) if one)
        if fit.accents(manifest, tokenizer):  # they are lost in the decoded text
            found = dataclasses.replace(found, lossy=1)
        gains = (fit.gain(found, other) for other in others)
        checks[1:1] = [fit.words(train, pieces, found), *gains, fit.markup(texts)]
    hits, text_bytes = manifest["text_hits"]["encoding"], manifest["text_bytes"]
    checks += [
        fit.encoding(hits, text_bytes),
        fit.control(hits, text_bytes),
        fit.coverage(train),
        shape.documents(train.split, lengths, manifest.get("dropped", {}), fixes, request.pairs),
        shape.sentences(train.split, lengths, fixes),
        repeats.lines(train, tokenizer, fixes),
        repeats.documents(train, fixes),
        repeats.heldout(train, held, fixes),
    ]
    checks += [shape.balance(train.split, request.max_lengths, fixes)] if request.next_sentences else []
    return checks


def _text_checks(
    train: Scan, tokenizer: Tokenizer | None, pieces: Pieces | None, document_tokens: np.ndarray, fixes: Fixes
) -> list[Check]:
    """Run the checks that need the vocabulary."""
    if tokenizer is None or pieces is None:
        names = ("unknown_tokens", "tokens_a_word", "letter_case", "line_ends")
        return [Check(name, "skip", "not checked", "needs the vocabulary of the corpus: --vocab") for name in names]
    says = tokenizer.file_name != "vocab.txt"  # all other files say the case
    return [
        fit.unknown(train, document_tokens),
        *fit.case(train, pieces, tokenizer.lowercase, says),
        *fit.accents(fixes.manifest, tokenizer),
        line_ends(train.split, pieces, fixes),
    ]


def _corpus_facts(corpus: Corpus, request: InspectionRequest) -> dict[str, Any]:
    splits = {
        name: {key: facts[key] for key in ("num_documents", "num_sentences", "num_tokens")}
        for name, facts in corpus.manifest["splits"].items()
    }
    path = {} if request.private else {"path": os.fspath(request.corpus)}
    facts = {"fingerprint": corpus.fingerprint, "splits": splits, "private": request.private}
    return {**path, **facts, "heldout_fraction": corpus.manifest["heldout_fraction"]}


def _case(corpus: Corpus) -> Case:
    """Return the case with which a corpus was made, for a vocabulary that does not say it."""
    return Case(corpus.manifest.get("lowercase"), corpus.manifest.get("strip_accents"))


def _find_vocabulary(corpus: Corpus) -> Tokenizer | None:
    """Return the tokenizer that made the corpus, if it lies in the folder of the corpus or of its run, else None."""
    absolute = corpus.folder.absolute()
    for folder in (corpus.folder, absolute.parent, absolute.parent.parent):  # the last folder for a part of a mixture
        if tokenizers.existing(folder):
            tokenizer = tokenizers.load(folder, *_case(corpus))
            if tokenizer.sha256 == corpus.tokenizer_sha256:
                return tokenizer
    return None
