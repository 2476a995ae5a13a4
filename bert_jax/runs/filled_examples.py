"""Shows what a finished model predicts: masked words, and how a text goes on, of the recipe or of held-out text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import CorpusSplit
from bert_jax.features.fill_mask import fill_mask
from bert_jax.features.generate import generate, missing_head, most_new_tokens, stepper_of_trained
from bert_jax.generation.settings import Settings
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import LM_HEAD
from bert_jax.program import Note
from bert_jax.records import MASK
from bert_jax.text.roles import NAMES
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.words import NO_SPACES, unspaced

T = TypeVar("T")
NUMBER = 4  # of held-out sentences that are filled, or gone on with
LENGTHS = 8, 16  # tokens of a sentence that is filled
CONTINUED = 8, 40  # tokens of a sentence that is gone on with, whose first half is the prompt
NEW = 24  # tokens that follow a prompt
_TRIED = 64  # sentences at the most, for each that is taken
SHORT = 4  # letters; a word with fewer is masked only if there is no other: most are "the" and "of"


class Abilities(NamedTuple):
    """What a finished model does with a text.

    Attributes:
      fills: whether it fills masks.
      writes: whether it goes on with a text.
    """

    fills: bool
    writes: bool


def abilities(model: ModelConfig, differs: str, ways: Collection[str]) -> Abilities:
    """Return what a model does; ``differs`` and ``ways`` are the "differs" and the "writes" of its facts."""
    fills = model.reads == "both sides" and not (model.decodes or differs)
    return Abilities(fills, model.causal or model.decodes or bool(ways))


def to_fill(texts: Sequence[str] | None, able: Abilities) -> Sequence[str] | None:
    """Return the texts of a recipe that a model fills: of a model that writes too, the texts with a ``[MASK]``."""
    return texts if texts is None or not able.writes else [text for text in texts if _has_mask(text)]


def _has_mask(text: str) -> bool:
    return any(name in text for name in NAMES["mask"])


def fill_examples(
    trained: TrainedModel, texts: Sequence[str] | None, corpus: Mixture, note: Note
) -> list[dict[str, Any]]:
    """Return records of the texts that a model has filled, for ``examples.json``, after a note.

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
    note("\n".join(lines))
    return records


def continue_examples(
    trained: TrainedModel, texts: Sequence[str] | None, corpus: Mixture, note: Note
) -> list[dict[str, Any]]:
    """Return records of the texts that a model has gone on with, for ``examples.json``, after a note.

    The likeliest token follows at each step, unless three tokens in a row would occur a second time.

    Args:
      texts: texts to go on with; a text with a ``[MASK]`` is for other models. If there is none, the first halves of
        sentences of the held-out text are taken, and their second halves are shown beside what the model writes.
    """
    given = [(text, "") for text in texts or () if not _has_mask(text)]
    begun = given or _begun_sentences(corpus, trained.tokenizer, trained.config.max_length)
    if missing_head(trained.config, trained.params) or not begun:
        return []
    if (room := most_new_tokens(trained, [text for text, _ in begun])) < 1:
        return []
    settings = Settings(max_new_tokens=min(NEW, room), no_repeat_ngram=3)
    space = "" if stepper_of_trained(trained).goes_on else " "  # a text for a source begins without a space
    written = [unspaced(space + one.text) for one in generate(trained, [text for text, _ in begun], settings)]
    pairs = list(zip(begun, written, strict=True))
    records = [
        {"text": text, "continuation": new, **({} if given else {"answer": rest})} for (text, rest), new in pairs
    ]
    lines = [f"{text} ...{new}" + (f"\n  in the text: {rest}" if rest else "") for (text, rest), new in pairs]
    note("\n".join(["the model goes on with held-out text:"] * (not given) + lines))
    return records


def _masked_sentences(corpus: Mixture, tokenizer: Tokenizer, max_length: int) -> list[tuple[str, str]]:
    """Return sentences of the held-out text, with ``[MASK]`` in place of a word near the middle, and these words.

    There are none if no sentence has 8 to 16 tokens, few signs and a word of one piece.
    """
    lengths = LENGTHS[0], min(LENGTHS[1], max_length - 2)
    return _spread(corpus, lengths, lambda split, number: _mask(split, number, tokenizer, max_length))


def _begun_sentences(corpus: Mixture, tokenizer: Tokenizer, max_length: int) -> list[tuple[str, str]]:
    """Return the first and the second half of sentences of the held-out text."""

    def halves(split: CorpusSplit, number: int) -> tuple[str, str] | None:
        start, stop = split.sentence_offsets[number : number + 2]
        ids = split.read(np.array([start]), np.array([stop - start]))
        starts = np.flatnonzero(~tokenizer.is_continuation[ids])  # where words start
        middle = next((int(place) for place in starts if place >= len(ids) // 2), len(ids) // 2)
        first, second = (unspaced(tokenizer.decode(part)) for part in (ids[:middle], ids[middle:]))
        return (first, second) if first and second else None

    return _spread(corpus, (CONTINUED[0], min(CONTINUED[1], max_length)), halves)


def _spread(corpus: Mixture, lengths: tuple[int, int], make: Callable[[CorpusSplit, int], T | None]) -> list[T]:
    """Return what ``make`` makes of held-out sentences whose number of tokens is from the first to the second length.

    There are at most ``NUMBER`` sentences, as many from each part of a mixture, from places that are spread evenly over
    the text. ``make`` takes a split and the number of a sentence, and returns None for a sentence that does not serve.
    """
    each = -(-NUMBER // len(corpus.corpora))
    made: list[T] = []
    for part in corpus.corpora.values():
        split = part.split("heldout")
        found = split.sentence_lengths()
        fitting = np.flatnonzero((found >= lengths[0]) & (found <= lengths[1]))
        for region in np.array_split(fitting, each):
            tried = (make(split, int(i)) for i in region[len(region) // 2 :][:_TRIED])
            made += [one for one in [next(filter(None, tried), None)] if one]
    return made[:NUMBER]


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
