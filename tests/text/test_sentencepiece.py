"""sentencepiece models: special pieces, spans, word starts, case, and the same pieces in ``tokenizers``."""

import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sentencepiece as library
import tokenizers

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.marks import SPACE
from bert_jax.text.sentencepiece_model import BYTE, CONTROL, parse
from bert_jax.text.tokenizer import Tokenizer, load, sentencepiece
from tests.text.test_learn import chinese_lines

WORDS = [
    *("river", "rivers", "the", "cat", "cats", "runs", "running", "Été", "今天", "很好", "ﬁne", "don't", "(so)", "½.")
]
TEXTS = [" ".join(random.Random(i).choices(WORDS, k=8)) for i in range(300)]
KINDS = {"unigram": {}, "bpe": {"kind": "bpe"}, "bytes": {"byte_fallback": True}, "cased": {"lowercase": False}}


@pytest.fixture(scope="module")
def tokenizers_by_name() -> dict[str, Tokenizer]:
    sizes = {"bytes": 330}
    return {
        name: sentencepiece(learn_sentencepiece(TEXTS, sizes.get(name, 70), num_threads=1, **options))
        for name, options in KINDS.items()
    }


def model_of(tokenizer: Tokenizer) -> bytes:
    return tokenizer._engine.file("spiece.model")


@pytest.fixture(params=KINDS)
def tokenizer(request, tokenizers_by_name) -> Tokenizer:
    return tokenizers_by_name[request.param]


@pytest.fixture
def unigram(tokenizers_by_name) -> Tokenizer:
    return tokenizers_by_name["unigram"]


def strange_texts(count: int) -> list[str]:
    rng = random.Random(3)
    ranges = [(0x20, 0x7E)] * 3 + [(0xA0, 0x24F), (0x300, 0x36F), (0x3000, 0x30FF), (0x4E00, 0x4F00), (0xFF00, 0xFFEF)]
    ranges += [(0xAC00, 0xACFF), (0x1F300, 0x1F5FF), (0x0, 0x1F), (0x2000, 0x206F)]
    return [
        "".join(" " if rng.random() < 0.2 else chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(0, 30)))
        for _ in range(count)
    ]


def test_special_tokens_come_first_and_no_text_is_cut_into_them(tokenizer):
    assert tokenizer.vocab[:5] == SPECIAL_TOKENS
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    [ids] = tokenizer.encode_batch(["the [MASK] [CLS] cat[SEP] [PAD]"])
    assert not {0, 2, 3, 4} & set(ids.tolist())
    encoded = tokenizer.encode("the [MASK] cat[MASK], [SEP]x", special_tokens_in_text=True)
    assert [i for i in encoded.input_ids if i in (2, 3, 4)] == [2, 4, 4, 3, 3]


def test_text_around_a_mask_is_cut_as_if_the_mask_were_a_word(unigram):
    def pieces(text: str) -> list[str]:
        return list(unigram.encode(text, special_tokens_in_text=True).pieces[1:-1])

    assert pieces("the [MASK] cat") == [*pieces("the"), "[MASK]", *pieces("cat")]
    inside = pieces("the[MASK]s runs")
    assert inside[inside.index("[MASK]") + 1] == "s"  # goes on with a word
    assert pieces("[MASK] cat")[:1] == ["[MASK]"]
    assert pieces("the [MASK]")[-1:] == ["[MASK]"]


def test_ids_are_those_of_the_library(tokenizer):
    processor = library.SentencePieceProcessor(model_proto=model_of(tokenizer))
    texts = [*TEXTS[:50], "", "  ", *strange_texts(200)]
    batch = tokenizer.encode_batch(texts)
    assert [ids.tolist() for ids in batch] == [processor.encode(text) for text in texts]
    assert all(ids.dtype == np.int32 for ids in batch)
    assert [tokenizer.encode(text).input_ids[1:-1] for text in texts] == [tuple(ids.tolist()) for ids in batch]


def test_spans_cover_the_source_of_their_pieces(tokenizer):
    """In order, inside the text, no letter left out, and the piece is found in the normalised span."""
    normalize = library.SentencePieceProcessor(model_proto=model_of(tokenizer)).normalize
    for text in [*TEXTS[:50], *strange_texts(500)]:
        encoded = tokenizer.encode(text)
        spans = encoded.offsets[1:-1]
        assert all(0 <= a <= b <= len(text) for a, b in spans)
        assert [a for a, _ in spans] == sorted(a for a, _ in spans)
        covered = {i for a, b in spans for i in range(a, b)}
        assert all(i in covered for i, c in enumerate(text) if normalize(c).strip(SPACE)), (text, spans)
        for piece, (a, b) in zip(encoded.pieces[1:-1], spans, strict=True):
            assert b > a or piece == SPACE
            assert not (piece.startswith(SPACE) and text[a:b][:1].isspace())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the  cats", ["the", "cats"]),
        ("Été ﬁne", ["Été", "ﬁne"]),
        ("\U0001f600 the", ["\U0001f600", "the"]),  # characters, not bytes or UTF-16 units
        ("今天 the", ["今天", "the"]),
        ("½.", ["½."]),
    ],
)
def test_spans_join_to_words_of_the_original(tokenizer, text, expected):
    encoded = tokenizer.encode(text)
    groups: list[list[tuple[int, int]]] = []
    for piece, span in zip(encoded.pieces[1:-1], encoded.offsets[1:-1], strict=True):
        if piece.startswith(SPACE):
            groups.append([])
        groups[-1] += [span] * (span[1] > span[0])
    assert [text[min(a for a, _ in g) : max(b for _, b in g)] for g in groups] == expected


def test_a_character_that_became_several_pieces_belongs_to_each(unigram):
    encoded = unigram.encode("½.")
    of_the_half = [s for p, s in zip(encoded.pieces, encoded.offsets, strict=True) if p.strip(SPACE) in ("1", "2", "⁄")]
    assert set(of_the_half) <= {(0, 1)}


def test_word_starts(unigram):
    encoded = unigram.encode("don't (so) 很好 zzzz")
    started = [p for p, start in zip(encoded.pieces, encoded.word_starts, strict=True) if start]
    continued = [p for p, start in zip(encoded.pieces, encoded.word_starts, strict=True) if not start]
    assert all(p.startswith(SPACE) or not p[0].isalnum() or p[0] in "很好今天" for p in started)
    assert {"[CLS]", "[SEP]"} <= set(continued)
    assert not any(p.startswith(SPACE) for p in continued)
    by_id = [not unigram.is_continuation[i] for i in unigram.encode("the cats").input_ids[1:-1]]
    assert by_id == list(unigram.encode("the cats").word_starts[1:-1])
    assert not unigram.is_continuation[list(unigram.special_ids)].any()


def test_bytes_leave_nothing_unknown(tokenizers_by_name):
    tokenizer = tokenizers_by_name["bytes"]
    [ids] = tokenizer.encode_batch(["the \U0001f600 ß"])
    assert tokenizer.unk_id not in ids
    assert sum(p.type == BYTE for p in parse(model_of(tokenizer), "").pieces) == 256
    assert tokenizer.decode(ids) == "the \U0001f600 ß"
    smile = [o for p, o in zip(*(lambda e: (e.pieces, e.offsets))(tokenizer.encode("a \U0001f600")), strict=True)
             if p.startswith("<0x")]  # fmt: skip
    assert smile == [(2, 3)] * 4
    unknown = tokenizers_by_name["unigram"]
    assert unknown.unk_id in unknown.encode_batch(["\U0001f600"])[0]


def test_case(tokenizers_by_name):
    uncased, cased = tokenizers_by_name["unigram"], tokenizers_by_name["cased"]
    assert (uncased.lowercase, cased.lowercase) == (True, False)
    assert uncased.encode("THE ÉTÉ").input_ids == uncased.encode("the ete").input_ids
    assert cased.encode("The").input_ids != cased.encode("the").input_ids
    folded = sentencepiece(model_of(cased), lowercase=True)
    assert folded.lowercase
    assert folded.encode("THE e\u0301te\u0301 ﬁne").input_ids == cased.encode("the ete ﬁne").input_ids
    assert folded.encode("한국").input_ids == cased.encode("한국").input_ids
    assert sentencepiece(model_of(folded)).sha256 == folded.sha256 != cased.sha256
    assert sentencepiece(model_of(uncased), lowercase=False).lowercase  # it cannot be undone


def test_decode_is_readable(unigram):
    encoded = unigram.encode("the cats", "running", max_length=40)
    assert unigram.decode(encoded.input_ids) == "the cats running"
    masked = unigram.encode("the [MASK] cats", special_tokens_in_text=True)
    assert unigram.decode(masked.input_ids) == "the [MASK] cats"


def test_save_and_load_and_pickle_and_threads(tokenizer, tmp_path):
    assert len(set(tokenizer.surfaces)) == tokenizer.size
    tokenizer.save(tmp_path / "spiece.model")
    for copy in (load(tmp_path / "spiece.model"), pickle.loads(pickle.dumps(tokenizer))):
        assert (copy.sha256, copy.vocab, copy.lowercase) == (tokenizer.sha256, tokenizer.vocab, tokenizer.lowercase)
    assert (tmp_path / "spiece.model").read_bytes() == model_of(tokenizer)
    expected = [ids.tolist() for ids in tokenizer.encode_batch(TEXTS)]
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(tokenizer.encode_batch, [TEXTS] * 8):
            assert [ids.tolist() for ids in result] == expected


def test_tokenizer_json_gives_the_same_ids(tokenizer):
    library = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json())
    for text in [*TEXTS, "  the   cat ", "", "THE Été\tﬁne", "今天\u3000很好", "zzz \U0001f600!"]:
        assert tuple(library.encode(text).ids) == tokenizer.encode(text).input_ids, text
    for text in ("the [MASK] cats", "the[MASK]s.", "[MASK]", "a [MASK] [MASK] b"):
        assert tuple(library.encode(text).ids) == tokenizer.encode(text, special_tokens_in_text=True).input_ids, text
    pair, ours = library.encode("the cats", "running"), tokenizer.encode("the cats", "running")
    assert (tuple(pair.ids), tuple(pair.type_ids)) == (ours.input_ids, ours.token_type_ids)


def without_specials(model: bytes, renamed: dict[str, str]) -> bytes:
    """``model`` with other names for special pieces, which are of the type that texts are cut into."""
    message = parse(model, "")
    for piece in message.pieces:
        if piece.piece in renamed:
            piece.piece, piece.type = renamed[piece.piece], 4
    return message.SerializeToString()


def test_other_names_are_known_and_missing_tokens_appended(unigram):
    other = without_specials(
        model_of(unigram), {"[CLS]": "<s>", "[SEP]": "</s>", "[PAD]": "<pad>", "[MASK]": "<extra>"}
    )
    tokenizer = sentencepiece(other)
    assert tokenizer.special_ids == (0, 1, 2, 3, unigram.size)
    assert (tokenizer.size, tokenizer.vocab[-1]) == (unigram.size + 1, "[MASK]")
    assert {parse(model_of(tokenizer), "").pieces[i].type for i in (0, 2, 3, unigram.size)} == {CONTROL}
    assert not {0, 2, 3} & set(tokenizer.encode_batch(["<s> </s> <pad>"])[0].tolist())
    encoded = tokenizer.encode("a <s> [MASK]", special_tokens_in_text=True)
    assert [i for i in encoded.input_ids if i in (2, unigram.size)] == [2, 2, unigram.size]
    assert [surface for surface, goes_on in tokenizer.surfaces if goes_on is None] == [*SPECIAL_TOKENS[:4], "[MASK]"]
    again = sentencepiece(model_of(tokenizer))
    assert (again.size, again.sha256) == (tokenizer.size, tokenizer.sha256)


@pytest.mark.parametrize("content", [b"", b"[PAD]\n[UNK]\n", b"\x00\xff" * 50])
def test_what_is_no_model_is_explained(tmp_path, content):
    (tmp_path / "x.model").write_bytes(content)
    with pytest.raises(UserError, match=r"x.model is not a sentencepiece model; give"):
        load(tmp_path / "x.model")
    with pytest.raises(UserError, match="no vocabulary file .*none.model; learn one"):
        load(tmp_path / "none.model")


def test_a_damaged_table_or_piece_is_explained(unigram):
    cut, spoilt, twice = (parse(model_of(unigram), "") for _ in range(3))
    table = cut.normalizer_spec.precompiled_charsmap
    cut.normalizer_spec.precompiled_charsmap = table[:9]
    spoilt.normalizer_spec.precompiled_charsmap = table[:-2] + b"\xff\0"
    twice.pieces[-1].piece = twice.pieces[-2].piece
    piece = parse(model_of(unigram), "").pieces[-1].piece.encode()
    for data, reason in (
        (cut.SerializeToString(), r"\(.*exceeds the input.*\)"),
        (spoilt.SerializeToString(), "a piece or a replacement is not UTF-8, or a score is not finite"),
        (
            model_of(unigram).replace(piece, b"\xff" * len(piece)),
            "a piece or a replacement is not UTF-8, or a score is not finite",
        ),
        (twice.SerializeToString(), r"\(.*already defined.*\)"),
    ):
        with pytest.raises(UserError, match=f"the model is damaged:? {reason}; copy it again"):
            sentencepiece(data)


def test_models_of_other_conventions_are_refused(unigram):
    message = parse(model_of(unigram), "")
    message.trainer_spec.treat_whitespace_as_suffix = True
    with pytest.raises(UserError, match="does not mark spaces"):
        sentencepiece(message.SerializeToString())
    message.trainer_spec.model_type = 3
    with pytest.raises(UserError, match="is a word or character model"):
        sentencepiece(message.SerializeToString())


@pytest.mark.parametrize(
    "name", ["t5_tokenizer_base", "spm_example", "test_model", "test_ja_model", "chinese_xlnet_spiece"]
)
def test_published_models(shared_data, name):
    path = shared_data("vocab") / f"{name}.model"
    tokenizer = load(path)
    processor = library.SentencePieceProcessor(model_file=str(path))
    texts = ["Hello  Wörld, ﬁne.", "今天很好。", *strange_texts(100)]
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == [processor.encode(text) for text in texts]
    assert tokenizer.size == len(processor) + (0 if name == "chinese_xlnet_spiece" else 2)
    assert len(set(tokenizer.special_ids)) == 5
    assert not set(tokenizer.encode_batch(["<s> </s> <pad> [MASK] <mask>"])[0]) & (
        set(tokenizer.special_ids) - {tokenizer.unk_id}
    )


def test_chinese_text(shared_data):
    texts = chinese_lines(shared_data("zh_modern_prose"), 3000)
    tokenizer = sentencepiece(learn_sentencepiece(texts, 6000))
    ids = np.concatenate(tokenizer.encode_batch(texts))
    assert np.mean(ids == tokenizer.unk_id) < 2e-3
    assert len(ids) < 0.75 * sum(map(len, texts))  # common words have become pieces
    library = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json())
    theirs = [e.ids for e in library.encode_batch(texts, add_special_tokens=False)]
    different = sum(a.tolist() != b for a, b in zip(tokenizer.encode_batch(texts), theirs, strict=True))
    assert different <= 3  # ties
