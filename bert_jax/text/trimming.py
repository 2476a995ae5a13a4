"""Trims a tokenizer to the pieces that some texts use, so that each of these texts is still cut into the same pieces.

Why that holds:

- WordPiece takes the longest piece at each place of a word. The pieces that a text uses were the longest, and no piece
  is added. A word that became [UNK] was tried piece by piece, so the pieces of this trial stay too.
- BPE merges two neighbours at a time. No merge crosses the ends of a piece that results, so the merges inside a piece
  are the merges that cut the piece alone. These merges stay, with the pieces that they join. Other merges never
  happened, so their loss changes nothing.
- Unigram takes the path of pieces with the best sum of scores. The best path stays, and no path is added. The scores of
  unknown characters and user-defined pieces follow the lowest and the highest score, so the pieces with these stay.

Every piece of one character stays too, so new text whose characters are all pieces becomes [UNK] no more often.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from bert_jax.errors import UserError
from bert_jax.text import tokenizer_json
from bert_jax.text.json_engine import JsonEngine
from bert_jax.text.marks import BYTE
from bert_jax.text.sentencepiece_engine import Engine, SentencePieceEngine
from bert_jax.text.sentencepiece_model import KINDS, NORMAL, parse


def trimmed(engine: Engine, used: Collection[int], unknown: Iterable[str]) -> tuple[Engine, list[int]]:
    """Return an engine with the pieces ``used`` and the pieces that these need, and its [V] old ids, ascending.

    ``unknown`` are the texts that have an unknown piece. Raises ``UserError`` for a BPE that marks pieces in words.
    """
    kept = {*used, *engine.special_ids, *engine.added_ids}
    return _of_model(engine, kept) if isinstance(engine, SentencePieceEngine) else _of_json(engine, kept, unknown)


def _of_model(engine: SentencePieceEngine, kept: set[int]) -> tuple[Engine, list[int]]:
    model, ids = parse(engine.model, "the model"), {piece: i for i, piece in enumerate(engine.vocab)}
    kept |= {i for i, p in enumerate(model.pieces) if p.type != NORMAL or len(p.piece) == 1}
    scores = {p.piece: p.score for p in model.pieces if p.type == NORMAL}
    kept |= {ids[choose(scores, key=scores.__getitem__)] for choose in (min, max)}
    if KINDS[model.trainer_spec.model_type] == "bpe":
        ranks = {piece: -score for piece, score in scores.items()}
        merges = _merges([engine.vocab[i] for i in kept], lambda pair: ranks.get("".join(pair)))
        kept |= {ids[a + b] for a, b in merges}
    order = sorted(kept)
    pieces = [model.pieces[i] for i in order]
    del model.pieces[:]
    model.pieces.extend(pieces)
    return SentencePieceEngine(model.SerializeToString(deterministic=True)), order


def _of_json(engine: JsonEngine, kept: set[int], unknown: Iterable[str]) -> tuple[Engine, list[int]]:
    content, ids = engine.content, tokenizer_json.ids_of(engine.content)
    model = dict(content["model"])
    kind, prefix = model["type"], model.get("continuing_subword_prefix", "")
    kept |= {i for piece, i in ids.items() if len(piece.removeprefix(prefix)) == 1 or BYTE.fullmatch(piece)}
    if kind == "WordPiece":
        words, most = {word for text in unknown for word in engine.words(text)}, model["max_input_chars_per_word"]
        kept |= {i for word in words if len(word) <= most for i in _tried(word, ids, prefix)}
    elif kind == "Unigram":
        scores = [score for _, score in model["vocab"]]
        kept |= {scores.index(min(scores)), scores.index(max(scores))}
    elif kind == "BPE":
        if prefix or model.get("end_of_word_suffix"):
            raise UserError("a BPE that marks pieces in words or at their ends cannot be trimmed; byte-level BPE can")
        ranks = {(a, b): rank for rank, (a, b) in enumerate(model["merges"])}
        merges = _merges([engine.vocab[i] for i in kept], ranks.get)
        kept |= {ids[a + b] for a, b in merges}
        model["merges"] = [list(merge) for merge in ranks if merge in merges]
    order = sorted(kept)
    new = {old: i for i, old in enumerate(order)}
    if kind == "Unigram":
        model["vocab"] = [entry for i, entry in enumerate(model["vocab"]) if i in new]
        model |= {"unk_id": new[model["unk_id"]]} if "unk_id" in model else {}
    else:
        model["vocab"] = {piece: new[i] for piece, i in model["vocab"].items() if i in new}
    added = [entry | {"id": new[entry["id"]]} for entry in content["added_tokens"]]
    template = content["post_processor"]
    special = {role: one | {"ids": [new[i] for i in one["ids"]]} for role, one in template["special_tokens"].items()}
    changed = {"model": model, "added_tokens": added, "post_processor": template | {"special_tokens": special}}
    return JsonEngine(content | changed), order


def _tried(word: str, ids: Mapping[str, int], prefix: str) -> Iterator[int]:
    """Yield the pieces that WordPiece takes from the start of ``word``, up to a place where none fits."""
    start, mark, longest = 0, "", max(map(len, ids))
    while end := next((e for e in range(min(len(word), start + longest), start, -1) if mark + word[start:e] in ids), 0):
        yield ids[mark + word[start:end]]
        start, mark = end, prefix


def _merges(pieces: Iterable[str], rank: Callable[[tuple[str, str]], float | None]) -> set[tuple[str, str]]:
    """Return the merges by which BPE makes each of ``pieces`` alone. The lowest rank is first; None is no merge."""
    return {merge for piece in pieces for merge in _merges_of(piece, rank)}


def _merges_of(piece: str, rank: Callable[[tuple[str, str]], float | None]) -> Iterator[tuple[str, str]]:
    parts = [*piece, ""]  # "" stands for a part that was joined to the part before it, and for the end
    before, after = [*range(-1, len(piece))], [*range(1, len(piece) + 2)]
    waiting = list[tuple[float, int, tuple[str, str]]]()

    def push(i: int) -> None:
        pair = (parts[i], parts[after[i]])
        if all(pair) and (found := rank(pair)) is not None:
            heapq.heappush(waiting, (found, i, pair))

    for i in range(len(piece)):
        push(i)
    while waiting:
        _, i, pair = heapq.heappop(waiting)
        j = after[i]
        if (parts[i], parts[j]) == pair:  # otherwise one of the two has been joined to another
            yield pair
            parts[i], parts[j], after[i] = parts[i] + parts[j], "", after[j]
            before[after[j]] = i
            push(i)
            if i:
                push(before[i])
