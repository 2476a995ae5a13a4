"""Learns a sentencepiece model. The same text and the same number of threads always give the same model.

The library would sample sentences with a random seed, so they are sampled here instead. Since the result depends on the
number of threads, this number is a part of the config.
"""

from __future__ import annotations

import hashlib
import heapq
import io
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from bert_jax.errors import UserError
from bert_jax.records import CLS, MASK, PAD, SEP, UNK
from bert_jax.text.learn import COVERAGE
from bert_jax.text.sentencepiece_model import folding_normalizer, quiet_library
from bert_jax.text.surrogates import well_formed

NUM_THREADS = 4
MAX_SENTENCES = 1_000_000  # about 1 GB of memory for a unigram model of English sentences
MAX_CHARACTERS = 1 << 16  # the most characters of a sentence; a longer text is cut into several


def learn_sentencepiece(
    texts: Iterable[str],
    size: int,
    kind: Literal["unigram", "bpe"] = "unigram",
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    max_sentences: int = MAX_SENTENCES,
    **options: Any,
) -> bytes:
    """Return the bytes of a ``.model`` file with at most ``size`` pieces; pieces 0 to 4 are BERT's special tokens.

    Args:
      texts: sentences, read once. Of more than ``max_sentences``, the sentences with the lowest hashes are used.
      lowercase: whether the model's normaliser, after NFKC, converts text to lower case.
      strip_accents: whether it strips accents; if None, in lower case alone.
      options: of the library's trainer, such as ``byte_fallback``: 256 pieces for bytes, which spell
        characters that are no piece.

    Raises:
      UserError: there is no text, or ``size`` is too small for the special tokens and the alphabet.
    """
    library, model = quiet_library(), io.BytesIO()
    options = {"byte_fallback": False, "character_coverage": COVERAGE, "num_threads": NUM_THREADS} | options
    sentences = sample(texts, max_sentences)
    strip = lowercase if strip_accents is None else strip_accents
    normalizer = folding_normalizer(lowercase, strip) if lowercase or strip else None
    normalizer = normalizer or library.SentencePieceNormalizer(rule_name="nmt_nfkc")
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=size,
            model_type=kind,
            normalizer=normalizer,
            max_sentence_length=4 * MAX_CHARACTERS,
            hard_vocab_limit=False,
            minloglevel=2,
            **{"pad_id": 0, "pad_piece": PAD, "unk_id": 1, "unk_piece": UNK, "bos_id": -1, "eos_id": -1},
            control_symbols=[CLS, SEP, MASK],
            **options,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(_explain(" ".join(str(error).split()), size)) from error
    return model.getvalue()


def _explain(message: str, size: int) -> str:
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"a vocabulary of {size} pieces has no room for the special tokens and an alphabet; ask for at least"
            f" {needed[1]}, better several times that, or lower vocab.character_coverage"
        )
    return f"sentencepiece cannot learn from this text: {message[:300]}; check the corpus and config.vocab"


def sample(texts: Iterable[str], at_most: int) -> list[str]:
    """Return the ``at_most`` texts with the lowest hashes, in the order of ``texts``, the same in every process.

    A text longer than ``MAX_CHARACTERS`` is cut into several texts. Empty texts are left out. Raises ``UserError`` if
    all texts are empty.
    """
    kept: list[tuple[int, int, str]] = []  # a heap, the highest hash first
    for number, text in enumerate(_cut(texts)):
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        entry = (-int.from_bytes(digest, "big"), -number, text)
        if len(kept) < at_most:
            heapq.heappush(kept, entry)
        elif entry > kept[0]:
            heapq.heapreplace(kept, entry)
    if not kept:
        raise UserError("the text to learn a vocabulary from is empty; check config.corpus.options")
    return [text for _, _, text in sorted(kept, key=lambda entry: -entry[1])]


def _cut(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), MAX_CHARACTERS):
            if piece := text[start : start + MAX_CHARACTERS].strip():
                yield well_formed(piece)
