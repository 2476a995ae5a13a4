"""Byte-level BPE: published forms, ids beside an independent implementation and the library, spans, word starts."""

import json
import pickle
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import regex
import tokenizers
from tokenizers import pre_tokenizers

import bert_jax
from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.rows import units
from bert_jax.rows.interfaces import TokenFacts
from bert_jax.text import json_engine
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.marks import ALPHABET
from bert_jax.text.tokenizer import Tokenizer, load, of_json
from tests.text.byte_level_files import MERGES, SPECIAL, released, roberta

WORDS = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
ODD = [*"\x00\x1c\x1d\x1e\x1f\x85\xa0\u180e\u200b\u2028\u3000\ufeff\u0301\u00ad\t\n🦙", "\r\n", "e\u0301", "👨‍👩‍👧"]
COMMON = [
    *("the", " the", " world", "Hello", "'ll", "'LL", "cat", "##", "# #", " ", "  ", " " * 7, " " * 30),
    *("[unused3]", "|||EMAIL_ADDRESS|||", "é", "日本", "3", "½", "!"),
]


def text_of(rng: random.Random) -> str:
    parts = [
        rng.choice(COMMON) if rng.random() < 0.6 else rng.choice(ODD) if rng.random() < 0.7 else chr(rng.choice(PLANES))
        for _ in range(rng.randrange(1, 12))
    ]
    return rng.choice(["", "", " "]).join(parts)


# Code with its line breaks and indentation, and pages: each block between blank lines, and each line.
FILES = [p for ending in ("py", "md") for p in sorted(Path(bert_jax.__file__).parent.rglob(f"*.{ending}"))][::-3]
BLOCKS = [block for path in FILES for block in path.read_text("utf-8").split("\n\n")]
LINES = [line for block in BLOCKS for line in block.splitlines(keepends=True)]
NAMES = (*SPECIAL, *SPECIAL_TOKENS)  # plain text to us, where no caller asks for them
REAL = [text for text in [*BLOCKS[:400], *LINES] if not any(name in text for name in NAMES)]

# Without characters that this Python does not know: two libraries may disagree on them.
PLANES = [code for code in range(0x20, 0x20000, 37) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]


def merged(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Return the pieces of one word (Sennrich et al. 2016): the pair of lowest rank is joined, leftmost first."""
    pieces = [ALPHABET[byte] for byte in word.encode()]
    while len(pieces) > 1:
        best = min(zip(pieces, pieces[1:], strict=False), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        joined, i = [], 0
        while i < len(pieces):
            step = 2 if tuple(pieces[i : i + 2]) == best else 1
            joined.append("".join(pieces[i : i + step]))
            i += step
        pieces = joined
    return pieces


@pytest.fixture(scope="module", params=[roberta, released])
def content(request):
    return request.param()


@pytest.fixture(scope="module")
def tokenizer(content) -> Tokenizer:
    return of_json(content)


@pytest.fixture(scope="module")
def learned() -> Tokenizer:
    texts = ["the cats run to the river.", "The dog's cat, and the naïve café in 日本!"] * 20
    return learn_byte_bpe(texts, 320)


def test_each_byte_has_a_character():
    assert set(ALPHABET) == set(pre_tokenizers.ByteLevel.alphabet())
    assert len(set(ALPHABET)) == 256
    assert (ALPHABET[ord(" ")], ALPHABET[ord("\n")], ALPHABET[0x7F], ALPHABET[0xAD]) == ("Ġ", "Ċ", "ġ", "Ń")


def test_ids_are_those_of_an_independent_implementation():
    rng, tokenizer = random.Random(0), of_json(roberta())
    ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(MERGES)}
    texts = [text_of(rng) for _ in range(2000)]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        wanted = [piece for word in WORDS.findall(text) for piece in merged(word, ranks)]
        assert [tokenizer.vocab[i] for i in ids] == wanted, repr(text)


def test_ids_are_those_of_the_published_file_in_its_library(content, tokenizer):
    rng = random.Random(1)
    library = tokenizers.Tokenizer.from_str(json.dumps({**content, "truncation": None}))
    ours = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json())
    mask = tokenizer.vocab[tokenizer.mask_id]
    texts = [text_of(rng) for _ in range(1000)] + REAL[:1000]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.tolist() == library.encode(text, add_special_tokens=False).ids, repr(text)
    for text, pair in zip(texts[900:1100], texts[800:1000], strict=True):
        text = f"{text}{mask}{pair}"
        found = tokenizer.encode(text, pair, special_tokens_in_text=True)
        wanted = library.encode(text, pair)
        assert list(found.input_ids) == wanted.ids == ours.encode(text, pair).ids, repr((text, pair))
        assert list(found.token_type_ids) == wanted.type_ids == ours.encode(text, pair).type_ids


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_cache_of_words_never_changes_the_ids(lowercase, monkeypatch):
    rng = random.Random(3)
    tokenizer = learn_byte_bpe([" ".join(COMMON)] * 9, 320, lowercase=lowercase)
    library = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json())
    library.encode_special_tokens = True
    texts = [text_of(rng) for _ in range(1000)] + ["", " ", "the", "the ", " the", "the<mask> cat", "<s> a", "Él è Á"]
    expected = [library.encode(text, add_special_tokens=False).ids for text in texts]
    monkeypatch.setattr(json_engine, "CACHED_WORDS", 3)  # forgets all the time
    for _ in range(2):
        assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == expected


def test_golden_ids_and_templates():
    """Ids by hand: special tokens 0 to 3, bytes 4 to 259 in the order of their characters, merges from 260."""
    tokenizer = of_json(roberta())
    place = {piece: i for i, piece in enumerate(tokenizer.vocab)}
    assert [place[p] for p in ("<s>", "<pad>", "</s>", "<unk>", "!", "Ġ", "Ġt", "Ġthe", "<mask>")] == [
        *(0, 1, 2, 3, 4, 224, 260, 262, 275)
    ]
    one = tokenizer.encode("Hello the<mask>", special_tokens_in_text=True)
    assert one.input_ids == (0, 273, place["o"], 262, 275, 2)
    two = tokenizer.encode("cat", "cat the", max_length=10)
    assert two.input_ids == (0, 264, 2, 2, 264, 262, 2, 1, 1, 1)
    assert two.token_type_ids == (0,) * 10
    assert two.attention_mask == (1,) * 7 + (0,) * 3
    assert tokenizer.pair_separators == 2
    with pytest.raises(UserError, match="max_length is 4; at least 5"):
        tokenizer.encode("cat", "cat", max_length=4)
    other = of_json(released())
    assert other.pair_separators == 1
    assert other.encode("cat", "cat").pieces == ("[CLS]", "cat", "[SEP]", "cat", "[SEP]")
    assert other.encode("cat  cat").pieces == ("[CLS]", "cat", "  ", "cat", "[SEP]")


def test_special_tokens_have_roles(tokenizer, learned):
    names = set(SPECIAL_TOKENS) if "[CLS]" in tokenizer.vocab else set(SPECIAL)
    assert {tokenizer.vocab[i] for i in tokenizer.special_ids} == names
    assert [learned.vocab[i] for i in range(4)] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert learned.mask_id == learned.size - 1
    for each in (tokenizer, learned):
        name = each.vocab[each.mask_id]
        found = [each.encode(f"the {mask} cat", special_tokens_in_text=True) for mask in (name, "[MASK]")]
        assert found[0].input_ids == found[1].input_ids
        assert found[0].input_ids.count(each.mask_id) == 1
        [plain] = each.encode_batch([f"the {name} cat"])
        assert not set(plain.tolist()) & set(each.special_ids)
        assert each.decode(found[0].input_ids) == "the [MASK] cat"


def test_text_comes_back(tokenizer, learned):
    rng = random.Random(2)
    for text in (text_of(rng) for _ in range(1000)):
        normal = unicodedata.normalize("NFC", text) if "[CLS]" in tokenizer.vocab else text
        [ids] = tokenizer.encode_batch([text])
        assert tokenizer.decode(ids) == normal
        if not text.startswith(" "):
            assert learned.decode(learned.encode_batch([text])[0]) == text


def test_spans_slice_the_text_back(tokenizer, learned):
    text = "Hello  world, the cat's naïve café \t🦙"
    for each in (tokenizer, learned):
        encoded = each.encode(text)
        covered = set()
        for token, (start, stop) in list(zip(encoded.input_ids, encoded.offsets, strict=True))[1:-1]:
            covered.update(range(start, stop))
            surface = each.surfaces[token][0]
            if "<0x" in surface:  # some bytes of a character have the span of the whole character
                assert stop == start + 1
            else:
                assert text[start:stop] == surface.strip()
        assert covered == {i for i, character in enumerate(text) if not character.isspace()}
    marked = tokenizer.encode("the [MASK] cat", "cat", special_tokens_in_text=True)
    assert "the [MASK] cat"[slice(*marked.offsets[marked.input_ids.index(tokenizer.mask_id)])] == "[MASK]"
    assert marked.offsets[-2] == (0, 3)


def test_words_start_where_white_space_ends(tokenizer, learned):
    text = "Hello world! It's the cat's 3rd café, said\nthe naïve (one)\tin日本"
    for each in (tokenizer, learned):
        encoded = each.encode(text)
        starts = {start for (start, _), begins in zip(encoded.offsets, encoded.word_starts, strict=True) if begins}
        assert starts == {match.start() for match in regex.finditer(r"\S+", text)}
    line = "Hello world! It's the cat."
    [ids] = learned.encode_batch([line])
    assert (~learned.is_continuation[ids]).sum() == len(line.split())
    [ids] = tokenizer.encode_batch([line])  # nothing is put before the first word
    assert (~tokenizer.is_continuation[ids]).sum() == len(line.split()) - 1
    marked = tokenizer.encode("the [MASK]cat", special_tokens_in_text=True)
    assert [piece for piece, begins in zip(marked.pieces, marked.word_starts, strict=True) if begins][-1] == "cat"


def test_rows_mask_the_words_that_a_text_has(tokenizer, learned):
    """A word starts after a tab, a line break, a run of spaces or an added token too, where no piece shows a space."""
    text = "Hello world!  the\tcat\nthe 🦙 naïve|||EMAIL_ADDRESS|||cat\n\n   in the"
    for each in (tokenizer, learned):
        encoded = each.encode(text)
        ids = np.array([encoded.input_ids])
        candidates = ~np.isin(ids, each.special_ids)
        starts = units.starts(units.WORD, ids, candidates, TokenFacts.of(each), None)[0]
        pieces = each.surfaces
        shown = np.array([bool(pieces[i][0].strip()) for i in encoded.input_ids])
        assert starts[shown].tolist() == np.array(encoded.word_starts)[shown].tolist()


def test_a_copy_is_the_same(tokenizer, learned, tmp_path):
    for each in (tokenizer, learned):
        each.save(tmp_path / "tokenizer.json")
        for copy in (load(tmp_path), load(tmp_path / "tokenizer.json"), pickle.loads(pickle.dumps(each))):
            assert isinstance(copy, Tokenizer)
            assert (copy.sha256, copy.vocab, copy.special_ids) == (each.sha256, each.vocab, each.special_ids)
        assert len(set(each.surfaces)) == each.size
    assert of_json(roberta()).sha256 != of_json(released()).sha256


def test_a_vocabulary_with_its_merges(tmp_path):
    """The older form says the same as RoBERTa's ``tokenizer.json``; only its first line is a comment."""
    (tmp_path / "vocab.json").write_text(json.dumps(roberta()["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES, ""]), encoding="utf-8")
    for path in (tmp_path, tmp_path / "merges.txt", tmp_path / "vocab.json"):
        assert load(path).sha256 == of_json(roberta()).sha256
    assert load(tmp_path).encode("##").pieces == ("<s>", "##", "</s>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    assert load(tmp_path).encode("the").pieces == ("<s>", "Ġthe", "</s>")
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(UserError, match="vocab.json has no merges.txt beside it"):
        load(tmp_path / "vocab.json")


def test_special_tokens_that_only_a_file_beside_names(tmp_path):
    content = json.loads(json.dumps(roberta()).replace("<mask>", "<blank>").replace("<pad>", "<fill>"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    fresh = load(tmp_path)  # with tokens of its own for both
    assert (fresh.vocab[-2:], fresh.size) == (("[PAD]", "[MASK]"), len(content["model"]["vocab"]) + 2)
    named = {"mask_token": {"content": "<blank>", "lstrip": True}, "pad_token": "<fill>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(named))
    tokenizer = load(tmp_path)
    assert (tokenizer.vocab[tokenizer.mask_id], tokenizer.vocab[tokenizer.pad_id]) == ("<blank>", "<fill>")
    tokenizer.save(tmp_path / "alone" / "tokenizer.json")
    assert load(tmp_path / "alone").special_ids == tokenizer.special_ids


def changed(**keys):
    return {**roberta(), **keys}


def with_model(**keys):
    return changed(model={**roberta()["model"], **keys})


BAD = {
    "or a Special tokenizer that cannot be read: .*; save it as a tokenizer.json of": with_model(type="Special"),
    "BPE tokenizer whose pieces do not show where words begin .*; save it": changed(
        pre_tokenizer={"type": "Whitespace"}
    ),
    "is damaged, .*`zz` out of vocabulary": with_model(merges=[*MERGES, "zz q"]),
    "is damaged, .*cannot be read: ": with_model(merges=["a b c"]),
    "no piece for 1 of the bytes of text, such as 0x61": with_model(
        vocab={("zz" if piece == "a" else piece): i for piece, i in roberta()["model"]["vocab"].items()}
    ),
    "does not number its 276 pieces from 0 to 275": with_model(
        vocab={piece: i - (i > 200) for piece, i in roberta()["model"]["vocab"].items()}
    ),
    "has no 'model'": {"version": "1.0"},
    "is damaged, .*Missing vocab/merges": changed(model={"type": "BPE", "vocab": roberta()["model"]["vocab"]}),
    "takes '<nil>' for cls, which the vocabulary lacks": changed(
        post_processor={"type": "RobertaProcessing", "cls": ["<nil>", 0], "sep": ["</s>", 2]}
    ),
    "takes '<s>' for cls and sep": changed(
        post_processor={"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["<s>", 0]}
    ),
    "is damaged, or a BPE tokenizer": changed(normalizer={"type": "Unheard"}),
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_read(tmp_path, message):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(BAD[message]))
    with pytest.raises(UserError, match=f"tokenizer.json .*{message}") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b'{"model": {"type": "BPE", "vo', b"\xff\xfe", b"[1, 2]"])
def test_files_that_are_cut_short(tmp_path, data):
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(UserError, match="tokenizer.json (is not JSON|holds no JSON object)"):
        load(tmp_path)
    with pytest.raises(UserError, match="no vocabulary file .*nowhere.json; learn one"):
        load(tmp_path / "nowhere.json")
