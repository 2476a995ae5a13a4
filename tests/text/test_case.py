"""Lower case and accents are two rules: each kind of tokenizer obeys them, says what text loses, and keeps them."""

import itertools
import unicodedata
from pathlib import Path

import pytest

from bert_jax.corpora.prepare import VocabularyConfig, learn_tokenizer
from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text import accents
from bert_jax.text.case import Case
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.sentencepiece_model import parse
from bert_jax.text.tokenizer import load, sentencepiece, wordpiece

WORDS = ["हिन्दी", "हिनदी", "ばら", "はら", "학생", "cafe", "café", "CAFÉ", "über", "uber", "Über", "##s", "ᄒ", "##ᅡ"]
TEXTS = ["हिन्दी ばら 학생", "CAFÉs Über", "हिनदी はら"]
# By BertTokenizer(vocab=..., do_lower_case=..., strip_accents=...) of transformers 5.23
BERT = {
    (True, None): [[6, 8, 1], [10, 16, 14], [6, 8]],
    (True, True): [[6, 8, 1], [10, 16, 14], [6, 8]],
    (True, False): [[5, 7, 9], [11, 16, 13], [6, 8]],
    (False, None): [[5, 7, 9], [12, 16, 15], [6, 8]],
    (False, True): [[6, 8, 1], [1, 1], [6, 8]],
    (False, False): [[5, 7, 9], [12, 16, 15], [6, 8]],
}
LINES = ["यह हिन्दी में लिखा है और किताब पढ़ता है", "नदी के किनारे गाँव बसा है"] * 20
KOREAN = ["학생은 책을 읽습니다", "강가에 마을이 있습니다"] * 20


@pytest.mark.parametrize("case", BERT)
def test_ids_are_those_of_transformers(tmp_path: Path, case: tuple[bool, bool | None]) -> None:
    tokenizer = wordpiece((*SPECIAL_TOKENS, *WORDS), case[0], strip_accents=case[1])
    assert [ids.tolist() for ids in tokenizer.encode_batch(TEXTS)] == BERT[case]
    usual = case[1] in (None, case[0])
    assert tokenizer.case == (case[0], None if usual else case[1])
    assert tokenizer.file_name == ("vocab.txt" if usual else "tokenizer.json")
    same = wordpiece((*SPECIAL_TOKENS, *WORDS), case[0]).sha256 == tokenizer.sha256
    assert same == usual, "another rule is another tokenizer"
    tokenizer.save(tmp_path / tokenizer.file_name)
    assert load(tmp_path, *tokenizer.case).sha256 == tokenizer.sha256


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "unigram", "bpe"])
def test_a_vocabulary_is_learned_by_both_rules(kind: str) -> None:
    texts = ["Über die Brücke, Étienne, हिन्दी ばら 학생 über die Brücke"] * 30
    for lowercase, strip in itertools.product((True, False), (True, False, None)):
        config = VocabularyConfig(kind=kind, size=400, lowercase=lowercase, strip_accents=strip, num_threads=1)  # type: ignore[arg-type]
        tokenizer = learn_tokenizer(config, texts)
        strips = lowercase if strip is None else strip
        [ids] = tokenizer.encode_batch(["Über Étienne हिन्दी"])
        text = "Über Étienne हिन्दी".lower() if lowercase else "Über Étienne हिन्दी"
        if strips:
            text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
        assert unicodedata.normalize("NFC", tokenizer.decode(ids)) == unicodedata.normalize("NFC", text)
        assert tokenizer.case == (lowercase, None if strips == lowercase else strips)


def test_only_wordpiece_cuts_korean() -> None:
    found = accents.losses("".join(KOREAN))
    for kind in ("wordpiece", "byte_bpe", "unigram"):
        tokenizer = learn_tokenizer(VocabularyConfig(kind=kind, size=320, num_threads=1), KOREAN)  # type: ignore[arg-type]
        assert bool(tokenizer.losses(found)) == (kind == "wordpiece"), kind


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LINES[0], "signs of vowels, tones and voice are lost"),
        ("がくせいはほんをよみます。だいがくでべんきょうします。", "signs of vowels, tones and voice are lost"),
        ("นักเรียนอ่านหนังสือ หมู่บ้านอยู่ริมแม่น้ำ", "signs of vowels, tones and voice are lost"),
        (KOREAN[0], "Korean syllables are cut into letters"),
        ("Học sinh đọc sách. Làng nằm bên bờ sông.", "accents are lost"),
        ("the naïve cat sat on the mat and went away, on and on, in a long text about nothing at all", ""),
        ("春天来了,河边的柳树长出了新的叶子", ""),
        ("вчера вечером мы долго гуляли по старому городу и говорили о книгах", ""),
    ],
)
def test_what_stripped_accents_take_is_told(text: str, told: str) -> None:
    decomposed = accents.losses(unicodedata.normalize("NFD", text))
    assert decomposed == accents.losses(text), "both forms of a letter are one letter"
    for given in (text, "\n".join([text, text])):
        line = wordpiece(SPECIAL_TOKENS).losses(accents.losses(given))
        assert line.endswith(told)
        assert bool(line) == bool(told)
    assert not wordpiece(SPECIAL_TOKENS, strip_accents=False).losses(accents.losses(text))
    assert not wordpiece(SPECIAL_TOKENS, lowercase=False).losses(accents.losses(text))


def test_counts_by_hand() -> None:
    found = accents.losses("Ça हि न् 각a ば")  # ् and the voicing mark are signs; ि is no accent for Unicode
    assert found == accents.Losses(13, 1, 2, 1)
    assert accents.added(found, found) == accents.Losses(26, 2, 4, 2)


def test_a_model_of_sentencepiece_is_folded_once() -> None:
    """The model has no replacements before; ``test_sentencepiece.test_case`` folds a model with the usual table."""
    message = parse(learn_sentencepiece(["Über die Brücke über Étienne"] * 30, 60, num_threads=1, lowercase=False), "")
    message.normalizer_spec.precompiled_charsmap = b""
    model = message.SerializeToString()
    cases = ((None, None), (True, None), (True, False), (False, True))
    tokenizers = {(case, strip): sentencepiece(model, case, strip_accents=strip) for case, strip in cases}
    folded = [tokenizer._engine.normalized("Über É") for tokenizer in tokenizers.values()]
    assert folded == ["▁Über▁É", "▁uber▁e", "▁über▁é", "▁Uber▁E"]
    folded = tokenizers[True, None]._engine.model  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"^--config.vocab.lowercase=False contradicts a.model, whose"):
        Case(False).check(sentencepiece(folded, False).case, "a.model")
    with pytest.raises(UserError, match=r"^--config.vocab.strip_accents=False contradicts a.model, whose"):
        Case(True, False).check(sentencepiece(folded, True, strip_accents=False).case, "a.model")
    Case(True, True).check(sentencepiece(folded).case, "a.model")
