"""Shows what a finished model predicts for masked words, in the recipe's texts or in the run's held-out text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import numpy as np

from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import CorpusSplit
from bert_jax.features.fill_mask import fill_mask
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.model import LM_HEAD
from bert_jax.program import Note
from bert_jax.records import MASK
from bert_jax.storage import files
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.words import NO_SPACES, unspaced

NUMBER = 4  # of held-out sentences that are filled
LENGTHS = 8, 16  # tokens of such a sentence
_TRIED = 64  # sentences at the most, for each that is taken
SHORT = 4  # letters; a word with fewer is masked only if there is no other: most are "the" and "of"


def fill_examples(trained: TrainedModel, texts: Sequence[str] | None, corpus: Mixture, note: Note) -> list[str]:
    """Return the texts that a model has filled, after writing ``examples.json`` in its workdir and a note.

    Args:
      texts: texts with a ``[MASK]`` each. If None, sentences of the held-out text are taken, whose masked words are
        then shown beside the predictions.
    """
    if LM_HEAD.name not in trained.with_parts(("encoder", LM_HEAD.name)).params:
        return []
    masked = [(text, "") for text in texts or ()]
    if texts is None:
        masked = _masked_sentences(corpus, trained.tokenizer, trained.config.max_length)
    if not masked:
        if texts is None:
            note(
                f"config.examples=None fills nothing: no held-out sentence of {LENGTHS[0]} to {LENGTHS[1]} tokens "
                "has a word of one piece; --config.examples=\"('A text with a [MASK].',)\" fills texts of yours"
            )
        return []
    filled = fill_mask(trained, [text for text, _ in masked])
    records, lines = [dataclasses.asdict(one) for one in filled], [str(one) for one in filled]
    if texts is None:
        records = [{**record, "answer": word} for record, (_, word) in zip(records, masked, strict=True)]
        lines = [f"{line}; in the text: {word}" for line, (_, word) in zip(lines, masked, strict=True)]
        right = sum(word in dict(one.predictions[0]) for one, (_, word) in zip(filled, masked, strict=True))
        lines.insert(0, f"{right} of {len(masked)} masked held-out words are among the five predictions:")
    files.write_text(files.as_path(trained.workdir or "") / "examples.json", json.dumps(records))
    note("\n".join(lines))
    return [text for text, _ in masked]


def _masked_sentences(corpus: Mixture, tokenizer: Tokenizer, max_length: int) -> list[tuple[str, str]]:
    """Return sentences of the held-out text, with ``[MASK]`` in place of a word near the middle, and these words.

    There are at most ``NUMBER`` sentences, as many from each part of a mixture, from places that are spread evenly over
    the text. There are none if no sentence has 8 to 16 tokens, few signs and a word of one piece.
    """
    each = -(-NUMBER // len(corpus.corpora))
    sentences: list[tuple[str, str]] = []
    for part in corpus.corpora.values():
        split = part.split("heldout")
        lengths = split.sentence_lengths()
        fitting = np.flatnonzero((lengths >= LENGTHS[0]) & (lengths <= min(LENGTHS[1], max_length - 2)))
        for region in np.array_split(fitting, each):
            tried = (_mask(split, int(i), tokenizer, max_length) for i in region[len(region) // 2 :][:_TRIED])
            sentences += [one for one in [next(filter(None, tried), None)] if one]
    return sentences[:NUMBER]


def _mask(split: CorpusSplit, number: int, tokenizer: Tokenizer, max_length: int) -> tuple[str, str] | None:
    start, stop = split.sentence_offsets[number : number + 2]
    ids = split.read(np.array([start]), np.array([stop - start]))
    starts = np.append(~tokenizer.is_continuation[ids], True)  # bool [L + 1]: whether a word starts here
    words = [tokenizer.surfaces[token][0] for token in ids]
    # In byte-level BPE, no piece of a script without spaces starts a word.
    whole = [
        i
        for i, word in enumerate(words)
        if word.isalpha() and ((starts[i] and starts[i + 1]) or all(map(NO_SPACES.match, word)))
    ]
    others = sum(not word.isalpha() for word in words)  # signs and numbers: many of them make no prose
    if not whole or others > len(words) // 6 or np.isin(ids, list(tokenizer.special_ids)).any():
        return None
    place = min(whole, key=lambda i: (len(words[i]) < SHORT, abs(i - len(ids) // 2)))
    text = unspaced(f"{tokenizer.decode(ids[:place])} {MASK} {tokenizer.decode(ids[place + 1 :])}".strip())
    again = np.asarray(tokenizer.encode(text, special_tokens_in_text=True).input_ids)
    sound = len(again) <= max_length and np.count_nonzero(again == tokenizer.mask_id) == 1
    return (text, words[place]) if sound else None
