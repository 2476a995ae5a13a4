"""Shows what a finished model predicts for masked words: in the recipe's texts, or in the run's own held-out text."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence

import numpy as np

from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import CorpusSplit
from bert_jax.features.fill_mask import fill_mask
from bert_jax.features.trained_model import TrainedModel
from bert_jax.models.model import LM_HEAD
from bert_jax.records import MASK
from bert_jax.runs.inputs import Note
from bert_jax.storage import files
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.words import unspaced

NUMBER = 4  # of held-out sentences that are shown
EACH = 3  # sentences that are filled for each; it is the first whose masked word is among the predictions, if any
PREFERRED = "sentences with such words are shown, where there are any nearby"
LENGTHS = 8, 16  # tokens of such a sentence
TRIED = 64  # sentences at the most, for each that is taken
SHORT = 4  # letters; a word with fewer is masked only if there is no other: most are "the" and "of"


def fill_examples(trained: TrainedModel, texts: Sequence[str] | None, corpus: Mixture, note: Note) -> list[str]:
    """Return the texts that a model has filled, after writing ``examples.json`` in its workdir and a note.

    Args:
      texts: texts with a ``[MASK]`` each. If None, sentences of the held-out text are taken, whose masked words are
        then shown beside the predictions. Of ``EACH`` neighbours one is shown, where possible one with the right word.
    """
    if LM_HEAD.name not in trained.params:
        return []
    groups: list[list[tuple[str, str]]] = [[(text, "")] for text in texts or ()]
    if texts is None:
        groups = masked_sentences(corpus, trained.tokenizer, trained.config.max_length)
    if not groups:
        return []
    filled = iter(fill_mask(trained, [text for g in groups for text, _ in g]))
    tried = [
        [(word in dict(one.predictions[0]), word, one) for (_, word), one in zip(g, filled, strict=False)]
        for g in groups
    ]
    shown = [max(group, key=lambda found: found[0]) for group in tried]
    records, lines = [dataclasses.asdict(one) for *_, one in shown], [str(one) for *_, one in shown]
    if texts is None:
        records = [{**record, "answer": word} for record, (_, word, _) in zip(records, shown, strict=True)]
        lines = [f"{line}; in the text: {word}" for line, (_, word, _) in zip(lines, shown, strict=True)]
        right = [found[0] for group in tried for found in group]
        lines.insert(
            0, f"{sum(right)} of {len(right)} masked held-out words are among the five predictions; {PREFERRED}:"
        )
    files.write_text(files.as_path(trained.workdir or "") / "examples.json", json.dumps(records))
    note("\n".join(lines))
    return [record["text"] for record in records]


def masked_sentences(corpus: Mixture, tokenizer: Tokenizer, max_length: int) -> list[list[tuple[str, str]]]:
    """Return sentences of the held-out text, with ``[MASK]`` in place of a word near the middle, and these words.

    At most ``NUMBER`` times ``EACH``, from all parts of a mixture alike, from places that are spread evenly over the
    text. There are none if no sentence has 8 to 16 tokens, few signs and a word of one piece.
    """
    each = -(-NUMBER // len(corpus.corpora))
    found: list[list[tuple[str, str]]] = []
    for part in corpus.corpora.values():
        split = part.split("heldout")
        lengths = split.sentence_lengths()
        fitting = np.flatnonzero((lengths >= LENGTHS[0]) & (lengths <= min(LENGTHS[1], max_length - 2)))
        for region in np.array_split(fitting, each):
            tried = (
                _masked(split, int(number), tokenizer, max_length) for number in region[len(region) // 2 :][:TRIED]
            )
            found += [group for group in [list(itertools.islice(filter(None, tried), EACH))] if group]
    return found[:NUMBER]


def _masked(split: CorpusSplit, number: int, tokenizer: Tokenizer, max_length: int) -> tuple[str, str] | None:
    start, stop = split.sentence_offsets[number : number + 2]
    ids = split.read(np.array([start]), np.array([stop - start]))
    starts = np.append(~tokenizer.is_continuation[ids], True)  # bool [L + 1]: whether a word starts here
    words = [tokenizer.surfaces[token][0] for token in ids]
    whole = [i for i, word in enumerate(words) if starts[i] and starts[i + 1] and word.isalpha()]
    others = sum(not word.isalpha() for word in words)  # signs and numbers: many of them make no prose
    if not whole or others > len(words) // 6 or np.isin(ids, list(tokenizer.special_ids)).any():
        return None
    place = min(whole, key=lambda i: (len(words[i]) < SHORT, abs(i - len(ids) // 2)))
    text = unspaced(f"{tokenizer.decode(ids[:place])} {MASK} {tokenizer.decode(ids[place + 1 :])}".strip())
    again = np.asarray(tokenizer.encode(text, special_tokens_in_text=True).input_ids)
    sound = len(again) <= max_length and np.count_nonzero(again == tokenizer.mask_id) == 1
    return (text, words[place]) if sound else None
