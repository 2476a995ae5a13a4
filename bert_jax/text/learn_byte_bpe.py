"""Learns a byte-level BPE tokenizer. The same text always gives the same tokenizer.

Every byte gets its piece, in the order of code points, before any pair is counted, and the trainer breaks ties by ids,
so nothing depends on the order of a hash map. The special tokens are RoBERTa's: ``<s>`` ``<pad>`` ``</s>``
``<unk>`` first and ``<mask>`` last. A pair of texts is laid out as in BERT, with one ``</s>`` between the texts and
token types 0 and 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers

from bert_jax.errors import UserError
from bert_jax.text.json_engine import ACCENTS
from bert_jax.text.learn_sentencepiece import MAX_SENTENCES, sample
from bert_jax.text.marks import ALPHABET
from bert_jax.text.tokenizer import Tokenizer, of_json
from bert_jax.text.words import is_spaced

_FIRST, _MASK = ("<s>", "<pad>", "</s>", "<unk>"), "<mask>"


def learn_byte_bpe(
    texts: Iterable[str],
    size: int,
    *,
    lowercase: bool = False,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
    max_sentences: int = MAX_SENTENCES,
) -> Tokenizer:
    """Return a tokenizer of at most ``size`` pieces; fewer if too few pairs occur ``min_frequency`` times.

    If the texts put spaces between words, the tokenizer puts a space before a text that begins without a space.
    Sentences are encoded one by one, so the first word of a sentence gets the same pieces as inside a sentence.

    Args:
      texts: sentences, read once. Of more than ``max_sentences``, the sentences with the lowest hashes are used.
      lowercase: whether the tokenizer converts text to lower case.
      strip_accents: whether it strips accents; if None, in lower case alone. Korean syllables stay whole.

    Raises:
      UserError: there is no text, or ``size`` is too small for the special tokens and the bytes.
    """
    reserved = len(_FIRST) + len(ALPHABET) + 1
    if size < reserved:
        raise UserError(
            f"a vocabulary of {size} pieces has no room for {len(_FIRST) + 1} special tokens and 256 bytes; ask for at"
            f" least {reserved}, better several times that"
        )
    sentences = sample(texts, max_sentences)
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=is_spaced(sentences))
    strips = lowercase if strip_accents is None else strip_accents
    # The library's StripAccents takes spacing vowel signs of Indic scripts too, which BERT keeps.
    steps = [normalizers.NFD(), normalizers.Replace(Regex(ACCENTS), ""), normalizers.NFC()] if strips else []
    steps += [normalizers.Lowercase()] if lowercase else []
    if steps:
        engine.normalizer = normalizers.Sequence(steps)
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1,
        min_frequency=min_frequency,
        special_tokens=list(_FIRST),
        initial_alphabet=list(ALPHABET),
        show_progress=False,
    )
    engine.train_from_iterator(sentences, trainer)
    engine.add_special_tokens([AddedToken(_MASK, lstrip=True, normalized=False)])
    return of_json(json.loads(engine.to_str()))
