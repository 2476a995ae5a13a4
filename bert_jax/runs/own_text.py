"""Reads the sentences of the text that a run was pretrained on, which other commands search."""

from __future__ import annotations

from typing import Any

from bert_jax.configuration import build
from bert_jax.corpora.prepare import CorpusConfig, find_source
from bert_jax.corpora.source import documents
from bert_jax.errors import UserError
from bert_jax.workdir.run_record import read_run

_MOST_SENTENCES = 200_000  # their vectors take about 100 MB for each 128 of the model's width


def own_sentences(workdir: str, most: int = _MOST_SENTENCES) -> tuple[dict[str, str], bool]:
    """Return the sentences of a pretraining run's text by name, and whether there are more than ``most``.

    They are read again from the files that the run's recipe names. A sentence's name is its document's, a colon and its
    number in the document, from 1.

    Raises:
      UserError: ``workdir`` is no pretraining run, its text is private or only there as a store, or cannot be found.
    """
    config: dict[str, Any] = read_run(workdir).get("config") or {}
    text = config.get("corpus")
    if not text or config.get("private"):
        why = "is private" if text else "was not pretrained on text"
        raise UserError(f"{workdir} {why}; name the texts to search with --corpus=FILE, one a line")
    corpus = build(CorpusConfig, text, "config.corpus")
    if corpus.path or any(part.path for part in corpus.part_configs().values()):
        raise UserError(f"the text of {workdir} is there only as tokens; name the texts to search with --corpus=FILE")
    sentences: dict[str, str] = {}
    for document in documents(find_source(corpus)):
        for number, sentence in enumerate(document.sentences, 1):
            if len(sentences) == most:
                return sentences, True
            sentences[f"{document.id}:{number}"] = sentence
    return sentences, False
