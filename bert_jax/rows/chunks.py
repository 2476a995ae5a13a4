"""The chunk plan of one epoch: which tokens make which sentence pair, computed from the lengths of sentences alone.

It follows the instance builder of BERT (``create_pretraining_data.py``). The sentences of a document are appended to a
chunk until the chunk holds ``max_length - 3`` tokens (for one document in ten: a random shorter target). The chunk is
cut into A and B after a random sentence. Half of the time, and always if a chunk has one sentence, B is replaced by
sentences of another document; the next chunk then begins with the sentences that were replaced. A pair that is too long
loses tokens of its longer side, at the front or back at random.

One difference is deliberate. The original fills a random B up to the target. So at the end of a document a random pair
is longer than a true pair would be, unless the other document ends before the target: the length gives the label away.
A random B of exactly the true length would give the label away too: it ends in mid-sentence, and a true B ends with a
sentence. Here up to forty places in other documents are drawn, and the place is taken whose whole sentences come
nearest to the length of the true B. If the true pair reached its target, the random B also runs to the sentence that
reaches the target, so that truncation treats both alike.

Packed rows need pairs whose lengths fit beside other pairs. So for packed rows one chunk in ten, instead of one
document in ten, has a shorter target, drawn from ``short_targets``. A chunk is cut to its own target instead of to the
row. And a short chunk has at least two sentences if possible, because otherwise almost all short pairs would be random.

Every draw is keyed by the first sentence of its chunk, so the results do not depend on how documents are grouped for
speed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.rows.interfaces import Ints, Sentences

VERSION = 3  # raise it whenever plans change: cached plans of another version are not read
SPECIAL_TOKENS_PER_ROW = 3  # [CLS] A [SEP] B [SEP]
_CANDIDATES, _TURNS = 10, 4  # places tried for a random second segment: ten, up to four times
_LOOKED_AT = 1 << 20  # documents, at the start
_SENTENCES_AT_ONCE = 1 << 22
_LAST_CHOICE = 1 << 40  # added to the difference of a place that ranks last: more tokens than any document has
_PAIRS_AT_ONCE = 1 << 13  # few enough for the temporaries to stay in the processor's cache

PAIR = np.dtype(
    [
        ("a_start", np.int64),  # offset in the split of the first token of A, after truncation
        ("b_start", np.int64),
        ("a_length", np.int32),  # number of tokens, after truncation
        ("b_length", np.int32),
        ("is_random", np.bool_),  # the label: B does not follow A, but comes from another document or stood before A
    ]
)
Pairs = np.ndarray  # of dtype PAIR


class _InMemory(NamedTuple):
    """Plain array views of the memory-mapped arrays of a split, because plain arrays are indexed faster."""

    sentence_offsets: Ints
    document_starts: Ints


class Rules(NamedTuple):
    """How pairs are made.

    Attributes:
      short_share: the share of the documents, or with ``short_targets`` of the chunks, whose target is shorter.
      short_targets: equally likely numbers of tokens, from which the target of a short chunk is drawn. If None, short
        targets are drawn for whole documents instead of single chunks, and may be any number of tokens.
      random_share: the share of the chunks with several sentences that get a random second segment.
      swapped_share: among all other chunks, the share whose second part comes first.
      same_document_share: among the chunks with a random second segment, the share that takes it from the same
        document, at least a sentence away from the first segment. If there is none, it comes from another document.
    """

    max_length: int
    short_share: float
    short_targets: Ints | None = None
    random_share: float = 0.5
    swapped_share: float = 0.0
    same_document_share: float = 0.0

    @property
    def capacity(self) -> int:
        """Return the largest number of tokens of a pair, without special tokens."""
        return self.max_length - SPECIAL_TOKENS_PER_ROW


@dataclasses.dataclass(frozen=True)
class Chunks:
    """n chunks. A chunk is a run of consecutive sentences of a document, cut into two parts.

    ``start``, ``middle`` and ``stop`` are sentence numbers, counted from the start of the split.
    """

    start: Ints  # [n]
    middle: Ints  # [n] first sentence of the second part; equal to ``stop`` if the chunk has one sentence
    stop: Ints  # [n]
    document: Ints  # [n]
    target: Ints  # [n] tokens that the chunk should hold
    is_random: npt.NDArray[np.bool_]  # [n]

    def __getitem__(self, which: slice | np.ndarray) -> Chunks:
        return Chunks(*(getattr(self, field.name)[which] for field in dataclasses.fields(self)))


def check(split: Sentences) -> None:
    """Raise ``UserError`` if no pairs can be made. The check is quick, however large the split is."""
    documents = len(split.document_starts) - 1
    if documents < 2:
        raise UserError(
            f"the split has {documents} document(s); a second segment may come from another document, so a split needs "
            "two: add text, or raise heldout_fraction if this is the held-out split"
        )
    check_sentences(split)


def check_sentences(split: Sentences) -> None:
    """Raise ``UserError`` if no document has two sentences, as far as the first documents show."""
    if not (np.diff(split.document_starts[:_LOOKED_AT]) > 1).any():
        raise UserError(
            "no document of the split has 2 sentences, so no sentence follows another; masked LM "
            "alone learns from such text (--config.objective.name=mlm --config.objective.arrangement=sentences), or "
            "check in config.corpus.options what ends a sentence (text_files: format) and a document "
            "(document_boundary)"
        )


def make(split: Sentences, key: np.uint64, rules: Rules) -> Iterator[Pairs]:
    """Yield the pairs of one epoch in corpus order, in blocks of bounded size.

    ``key`` is the random key of (corpus fingerprint, seed, phase, epoch).
    """
    check(split)
    split = _InMemory(np.asarray(split.sentence_offsets), np.asarray(split.document_starts))
    for documents in groups(split.document_starts):
        if (np.diff(split.document_starts[documents[0] : documents[-1] + 2]) < 1).any():
            raise UserError("the corpus has a document without sentences; build it again")
        chunks = cut_chunks(split, key, documents, rules)
        for i in range(0, len(chunks.start), _PAIRS_AT_ONCE):
            yield make_pairs(split, key, chunks[slice(i, i + _PAIRS_AT_ONCE)], rules)


def groups(document_starts: Ints) -> Iterator[Ints]:
    """Yield the numbers [n] of consecutive documents that have about ``_SENTENCES_AT_ONCE`` sentences together."""
    first, documents = 0, len(document_starts) - 1
    while first < documents:
        stop = int(np.searchsorted(document_starts, document_starts[first] + _SENTENCES_AT_ONCE, side="right")) - 1
        stop = max(stop, first + 1)
        yield np.arange(first, stop)
        first = stop


def cut_chunks(split: Sentences, key: np.uint64, documents: Ints, rules: Rules) -> Chunks:
    """Return all chunks of ``documents``, in order.

    Each turn of the loop makes the next chunk of every unfinished document.
    """
    offsets, capacity, short_targets = split.sentence_offsets, rules.capacity, rules.short_targets
    start, end = split.document_starts[documents], split.document_starts[documents + 1]
    short_key, length_key, middle_key, coin_key = (random.fold(key, i) for i in range(4))

    lengths = np.arange(2, capacity + 1) if short_targets is None else short_targets

    def targets(subjects: Ints) -> Ints:
        short = random.uniform(random.fold(short_key, subjects)) < rules.short_share
        drawn = random.integers(random.fold(length_key, subjects), len(lengths))
        return np.where(short, lengths[drawn], capacity)

    target = targets(documents)
    turns = []
    while start.size:
        if short_targets is not None:
            target = targets(start)
        stop = np.searchsorted(offsets, offsets[start] + target)
        if short_targets is not None:
            stop = np.where(target < capacity, np.maximum(stop, start + 2), stop)
        stop = np.minimum(stop, end)
        count = stop - start
        if (count < 1).any():  # the loop would never end
            raise UserError("the corpus has a sentence without tokens; build it again")
        middle = start + 1 + random.integers(random.fold(middle_key, start), np.maximum(count - 1, 1))
        is_random = (count == 1) | (random.uniform(random.fold(coin_key, start)) < rules.random_share)
        turns.append((start, middle, stop, documents, target, is_random))
        start = np.where(is_random, middle, stop)  # the next chunk begins with the unused sentences
        going = np.flatnonzero(start < end)
        if going.size < start.size:
            start, end, documents, target = start[going], end[going], documents[going], target[going]
    columns = [np.concatenate(column) for column in zip(*turns, strict=True)]
    order = np.argsort(columns[0])
    return Chunks(*(column[order] for column in columns))


def make_pairs(split: Sentences, key: np.uint64, chunks: Chunks, rules: Rules) -> Pairs:
    """Return the pairs of ``chunks``, each cut to a row's capacity, or if there are ``short_targets`` to its target."""
    offsets = split.sentence_offsets
    b_start, b_stop = chunks.middle.copy(), chunks.stop.copy()
    which = np.flatnonzero(chunks.is_random)
    b_start[which], b_stop[which] = _random_second(split, key, chunks[which], rules.same_document_share)
    a, b = (offsets[chunks.start], offsets[chunks.middle]), (offsets[b_start], offsets[b_stop])
    swapped = random.uniform(random.fold(random.fold(key, 6), chunks.start)) < rules.swapped_share
    swapped &= ~chunks.is_random
    if swapped.any():  # before truncation, whose cut (B first) would give it away
        a, b = np.where(swapped, (b, a), (a, b))
    pairs = np.empty(len(chunks.start), PAIR)
    pairs["is_random"] = chunks.is_random | swapped
    keys = random.fold(random.fold(key, 4), chunks.start)
    capacity = rules.capacity if rules.short_targets is None else chunks.target
    truncate(pairs, (a[0], a[1] - a[0]), (b[0], b[1] - b[0]), capacity, keys)
    return pairs


def _random_second(split: Sentences, key: np.uint64, chunks: Chunks, same_share: float) -> tuple[Ints, Ints]:
    """Return the first and the last + 1 sentence [n] of a random second part for each chunk.

    It comes from another document, or for ``same_share`` of the chunks from the same.

    Many places are tried, and the place is taken whose number of tokens differs least from the true second part; among
    equally good places, the first (see ``_candidates``). If the best of ten places still differs, ten more are drawn,
    up to forty. With ten places alone, a classifier could tell a random B from a true B in 51 % of pairs (53 % if most
    documents are shorter than a row); with forty places the classifier is right in 50 %, which is chance.
    """
    keys = random.fold(random.fold(key, 5), chunks.start)
    same = random.uniform(random.fold(keys, _TURNS)) < same_share
    best = np.stack(_candidates(split, random.fold(keys, 0), chunks, same))  # [3, n]: first, last + 1, difference
    for turn in range(1, _TURNS):
        pending = np.flatnonzero(best[2] > 0)
        others = np.stack(_candidates(split, random.fold(keys[pending], turn), chunks[pending], same[pending]))
        better = others[2] < best[2, pending]
        best[:, pending[better]] = others[:, better]
    return best[0], best[1]


def _candidates(
    split: Sentences, keys: random.Bits, chunks: Chunks, same: npt.NDArray[np.bool_]
) -> tuple[Ints, Ints, Ints]:
    """Return the first and last + 1 sentence [n] of the best of ``_CANDIDATES`` places, and their difference in tokens.

    Places are drawn at random. If the true chunk reached its target, a candidate also runs up to the sentence that
    reaches the target, and ranks last if its document ends before that. For a chunk of one sentence this is the only
    criterion: lengths are not compared. If the true chunk's document ended before the target, a candidate ends with the
    sentence that brings its number of tokens nearest to the true number.
    """
    offsets, document_starts = split.sentence_offsets, split.document_starts
    bits = random.fold(keys[:, None], np.arange(2 * _CANDIDATES))
    document = random.integers(bits[:, :_CANDIDATES], len(document_starts) - 2)
    document += document >= chunks.document[:, None]  # uniform over all documents but the document of the chunk
    first, end = document_starts[document], document_starts[document + 1]
    start = first + random.integers(bits[:, _CANDIDATES:], end - first)
    if same.any():
        place, limit, found = _elsewhere(document_starts, bits[:, _CANDIDATES:], chunks)
        here = same[:, None] & found
        start, end = np.where(here, place, start), np.where(here, limit, end)

    begin, middle, stop = (offsets[x][:, None] for x in (chunks.start, chunks.middle, chunks.stop))  # [n, 1]
    target, alone = chunks.target[:, None], (chunks.middle == chunks.stop)[:, None]
    reached = alone | (stop - begin >= target)
    true_length = stop - middle
    aim = np.where(reached, np.maximum(begin + target - middle, 1), true_length)
    last = _reach(offsets, start, end, aim)
    shorter = np.maximum(last - 1, start + 1)
    nearer = ~reached & (2 * (offsets[start] + aim) <= offsets[shorter] + offsets[last])
    last = np.where(nearer, shorter, last)

    length = offsets[last] - offsets[start]
    difference = np.where(alone, 0, np.abs(length - true_length))
    difference = np.where(reached & (length < aim), _LAST_CHOICE + aim - length, difference)
    best = np.argmin(difference, axis=1)[:, None]
    return tuple(np.take_along_axis(x, best, axis=1)[:, 0] for x in (start, last, difference))  # type: ignore[return-value]


def _elsewhere(document_starts: Ints, bits: random.Bits, chunks: Chunks) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Return a sentence [n, c] of each chunk's document that neither is in the first part nor beside it.

    Also returns where a second part that begins there has to end [n, c], and whether there is such a sentence [n, 1].
    """
    first, end = (document_starts[chunks.document + i][:, None] for i in (0, 1))
    start, middle = chunks.start[:, None], chunks.middle[:, None]
    before, after = np.maximum(start - 1 - first, 0), np.maximum(end - middle - 1, 0)  # how many sentences
    drawn = random.integers(bits, before + after)
    is_before = drawn < before
    place = np.where(is_before, first + drawn, middle + 1 + drawn - before)
    return place, np.where(is_before, start - 1, end), before + after > 0


def _reach(offsets: Ints, start: Ints, end: Ints, aim: Ints) -> Ints:
    """Return the least ``stop`` > ``start`` whose sentences start..stop-1 hold ``aim`` tokens, or ``end`` if none does.

    The search first bisects a short range of sentences after ``start`` that usually holds ``aim`` tokens. Only if the
    range holds too few tokens, the search bisects up to ``aim`` sentences. A search of the whole corpus would miss the
    processor's cache at every halving.
    """
    wanted = offsets[start] + aim
    low, high = start + 1, np.minimum(start + aim, end)  # every sentence has at least one token
    usual = 2 * aim.sum() / max(aim.size, 1) * len(offsets) / float(offsets[-1])
    near = np.minimum(start + 1 + int(usual), high)
    stop = _bisect(offsets, low, near, wanted)
    far = np.nonzero((near < high) & (offsets[near] < wanted))
    stop[far] = _bisect(offsets, near[far], high[far], wanted[far])
    return stop


def _bisect(offsets: Ints, low: Ints, high: Ints, wanted: Ints) -> Ints:
    """Return the least index in [low, high) whose offset is at least ``wanted``, or ``high`` if there is none."""
    for _ in range(int(np.max(high - low, initial=0)).bit_length()):
        middle = (low + high) >> 1
        enough = offsets[middle] >= wanted
        high = np.where(enough, middle, high)
        low = np.where(enough | (low == high), low, middle + 1)
    return high


def truncate(pairs: Pairs, a: tuple[Ints, Ints], b: tuple[Ints, Ints], capacity: int | Ints, keys: random.Bits) -> None:
    """Fill in the starts and lengths of ``pairs``, truncated to ``capacity`` tokens.

    The rule: while a pair is too long, its longer side (B if both are equal) loses a token, at its front or back with
    probability 1/2 each. The result is computed in closed form: first the longer side is cut down to the length of the
    other, then both sides lose tokens in turn, B first. The number of tokens dropped at the front has a binomial
    distribution, which is drawn by counting random bits.
    """
    (a_start, a_length), (b_start, b_length) = a, b
    excess = np.maximum(a_length + b_length - capacity, 0)
    uneven = a_length - b_length
    turns = np.maximum(excess - np.abs(uneven), 0)
    from_a = np.minimum(np.maximum(uneven, 0), excess) + turns // 2
    from_b = excess - from_a
    pairs["a_start"] = a_start + _binomial(random.fold(keys, 0), from_a)
    pairs["b_start"] = b_start + _binomial(random.fold(keys, 1), from_b)
    pairs["a_length"] = a_length - from_a
    pairs["b_length"] = b_length - from_b


def _binomial(keys: random.Bits, trials: Ints) -> Ints:
    """Return the number of heads among ``trials`` [n] fair coins."""
    heads, active, word = np.zeros_like(trials), np.flatnonzero(trials), 0
    while active.size:
        left = np.minimum(trials[active] - 64 * word, 64).astype(np.uint64)
        heads[active] += np.bitwise_count(random.fold(keys[active], word) >> (np.uint64(64) - left))
        word += 1
        active = active[trials[active] > 64 * word]
    return heads
