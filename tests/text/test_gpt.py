"""Tokenizers of GPT-1 and GPT-2: ids as published and as the library gives them, roles that they lack, word ends."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from bert_jax.errors import UserError
from bert_jax.rows.interfaces import TokenFacts
from bert_jax.text.tokenizer import Tokenizer, load, of_json
from tests.text.gpt_files import END, FORMS, gpt, gpt2, gpt2_files, gpt_files, write
from tests.text.test_byte_bpe import text_of

PUBLISHED = Path(os.environ.get("GPT2_FILES", "/nowhere"))  # a folder with OpenAI's encoder.json and vocab.bpe


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any], Tokenizer]:
    content = FORMS[request.param][0]()
    return request.param, content, of_json(content)


def words_of(rng: random.Random) -> str:
    """Text of a few letters, so that merges of GPT-1's form happen, with white space and signs of all kinds."""
    return "".join(
        rng.choice([*"thecat  12.!é中 \n\tTÉ", "the ", "ca ", text_of(rng)]) for _ in range(rng.randrange(9))
    )


def test_published_ids_do_not_shift(form: Any) -> None:
    """No token is added, so V stays; what is lacking is known, and the end token has a role in GPT-2 alone."""
    kind, content, tokenizer = form
    vocab = content["model"]["vocab"]
    assert tokenizer.size == len(vocab)
    assert {piece: i for i, piece in enumerate(tokenizer.vocab)} == vocab
    end = len(vocab) - 1
    assert tokenizer.role_ids == ({"end": end} if kind == "gpt2" else {"unk": 0})
    assert (tokenizer.pad_id, tokenizer.unk_id) == ((end, -1) if kind == "gpt2" else (0, 0))
    assert tokenizer.around == ((), (end,) if kind == "gpt2" else ())
    facts = TokenFacts.of(tokenizer)
    assert (facts.cls, facts.sep, facts.mask, facts.end) == (-1, -1, -1, end if kind == "gpt2" else -1)
    assert facts.around == (0, int(kind == "gpt2"))
    assert (tokenizer.lowercase, tokenizer.joiner) == ((False, " ") if kind == "gpt2" else (True, ""))


def test_ids_are_those_of_the_library_on_5_000_texts(form: Any) -> None:
    kind, content, tokenizer = form
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    library.encode_special_tokens = True
    exported = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json())
    rng = random.Random(kind)
    texts = [(text_of if i % 2 else words_of)(rng) for i in range(5_000)]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.tolist() == library.encode(text).ids, repr(text)
    for text in texts[:500]:
        wanted = exported.encode(text)
        ids, after = wanted.ids, tokenizer.around[1]
        assert tokenizer.encode(text, special_tokens_in_text=True).input_ids == (*ids, *after), repr(text)
        assert exported.encode(text, text).ids == ids * 2
        if kind == "gpt2":
            assert tokenizer.decode(tokenizer.encode(text).input_ids) == text, repr(text)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("says", ["nothing", "its class", "all roles"])
def test_every_published_form_gives_the_same_tokenizer(tmp_path: Path, kind: str, says: str) -> None:
    """vocab.json with merges.txt, tokenizer.json and what we save; the identity of the file does not depend on it."""
    name = {"gpt2": "GPT2Tokenizer", "gpt": "OpenAIGPTTokenizer"}[kind]
    ends = {"bos_token": END, "eos_token": END, "unk_token": END, "pad_token": END}
    config = {"nothing": {}, "its class": {"tokenizer_class": name}}.get(
        says, {"tokenizer_class": name, **(ends if kind == "gpt2" else {"unk_token": "<unk>"})}
    )
    content, files = (make() for make in FORMS[kind])
    wanted = of_json(content)
    bare = load(write(tmp_path, files, **config))
    assert bare.vocab == wanted.vocab
    assert bare.role_ids == wanted.role_ids
    texts = ["the cat's  CAT, été", "12..", END, ""]
    assert [x.tolist() for x in bare.encode_batch(texts)] == [x.tolist() for x in wanted.encode_batch(texts)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    whole = load(tmp_path)
    assert whole.role_ids == wanted.role_ids
    folder = tmp_path / "saved"
    folder.mkdir()
    whole.save(folder / whole.file_name)
    assert load(folder).sha256 == whole.sha256 == pickle.loads(pickle.dumps(whole)).sha256


def test_the_end_token_stands_after_a_text_and_pads() -> None:
    tokenizer = of_json(gpt2())
    end = tokenizer.role_ids["end"]
    one = tokenizer.encode("Hello the cat", max_length=7)
    assert one.pieces == ("Hell", "o", "Ġthe", "Ġ", "cat", END, END)
    assert one.attention_mask == (1, 1, 1, 1, 1, 1, 0)
    assert tokenizer.encode("Hello the cat", max_length=3).pieces == ("Hell", "o", END)
    assert tokenizer.decode(one.input_ids) == "Hello the cat"
    assert end not in tokenizer.encode(f"a{END}b").input_ids[:-1]  # plain text, unless it is asked for
    assert tokenizer.encode(f"a{END}b", special_tokens_in_text=True).pieces == ("a", END, "b", END)
    with pytest.raises(UserError, match="max_length is 1; at least 2 positions are needed"):
        tokenizer.encode("a", max_length=1)


def test_words_of_gpt_1_end_at_the_suffix() -> None:
    tokenizer = of_json(gpt())
    found = tokenizer.encode("The cat,cab 中中!")
    pieces = ["the</w>", "cat</w>", ",</w>", "ca", "b</w>", "中</w>", "中</w>", "!</w>"]
    assert found.pieces == tuple(pieces)
    assert found.word_starts == (True, True, True, True, False, True, True, True)
    assert found.offsets == ((0, 3), (4, 7), (7, 8), (8, 10), (10, 11), (12, 13), (13, 14), (14, 15))
    assert tokenizer.decode(found.input_ids) == "the cat , cab 中 中 !"
    ends = [piece for piece, end in zip(tokenizer.vocab, tokenizer.ends_word, strict=True) if end]
    assert all(piece.endswith("</w>") for piece in ends if piece != "<unk>")
    assert tokenizer.decode(tokenizer.encode("the Ж cat").input_ids) == "the [UNK] cat"


@pytest.mark.parametrize("kind", FORMS)
def test_who_needs_a_role_says_so_in_one_line(kind: str) -> None:
    tokenizer = of_json(FORMS[kind][0]())
    has = END if kind == "gpt2" else "<unk>"
    with pytest.raises(UserError) as raised:
        _ = tokenizer.mask_id
    assert str(raised.value) == (
        f"this needs the token [MASK], which the tokenizer lacks (its special tokens: {has}); take another vocabulary "
        "or model"
    )
    with pytest.raises(UserError, match=r"^a pair of texts needs the token \[SEP\], which the tokenizer lacks"):
        tokenizer.encode("a", "b")


def test_tokens_around_a_text_without_cls_and_sep_are_refused(tmp_path: Path) -> None:
    content = gpt2()
    end = {"SpecialToken": {"id": END, "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [end, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {END: {"id": END, "ids": [content["model"]["vocab"][END]], "tokens": [END]}},
    }
    with pytest.raises(UserError, match=r"lays a text out as <\|endoftext\|>:0 A:0 \(token:type\), and has neither"):
        of_json(content)
    vocab, merges = gpt_files()
    del vocab["<unk>"]
    with pytest.raises(UserError, match="is damaged .the unk_token '<unk>' is no piece"):
        load(write(tmp_path, ({piece: i for i, piece in enumerate(vocab)}, merges)))


def test_tokens_that_are_added_are_roles_that_it_has_then() -> None:
    """A padding token or a mask of GPT-2's may be added; the published ids stay."""
    content = gpt2()
    last = len(content["model"]["vocab"])
    content["added_tokens"] += [{"id": last + i, "content": name} for i, name in enumerate(("[PAD]", "[MASK]"))]
    tokenizer = of_json(content)
    assert tokenizer.role_ids == {"pad": last, "mask": last + 1, "end": last - 1}
    assert (tokenizer.pad_id, tokenizer.mask_id, tokenizer.size) == (last, last + 1, last + 2)
    with pytest.raises(UserError, match="needs the token"):
        _ = tokenizer.cls_id
    more = of_json(gpt2()).with_added([{"content": "[MASK]"}, {"content": "<user>"}])
    assert more.role_ids == {"mask": last, "end": last - 1}
    assert more.encode("a<user>", special_tokens_in_text=True).pieces == ("a", "<user>", END)
    # a byte-level vocabulary without an end token gets BERT's five, as ever
    vocab, merges = gpt2_files()
    del vocab[END]
    content["added_tokens"], content["model"] = [], {**content["model"], "vocab": vocab, "merges": merges}
    assert of_json(content).size == len(vocab) + 5


def test_trimmed_to_what_texts_use() -> None:
    tokenizer = of_json(gpt2())
    smaller, old = tokenizer.trimmed(["the cat", "Hello"])
    assert smaller.role_ids == {"end": smaller.size - 1}
    assert [tokenizer.vocab[i] for i in old] == list(smaller.vocab)
    with pytest.raises(UserError, match="a BPE that marks pieces in words or at their ends cannot be trimmed"):
        of_json(gpt()).trimmed(["the cat"])


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="GPT2_FILES names no folder with encoder.json and vocab.bpe")
def test_ids_of_the_published_gpt2(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_bytes((PUBLISHED / "encoder.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((PUBLISHED / "vocab.bpe").read_bytes())
    tokenizer = load(tmp_path)
    assert (tokenizer.size, tokenizer.role_ids) == (50_257, {"end": 50_256})
    golden = {
        "Hello world": "15496 995",
        " this is 🦙.cpp": "428 318 12520 99 247 13 20322",
        "w048 7tuijk dsdfhu": "86 47202 767 28047 45961 288 82 7568 13415",
        "I'll can't WE'LL": "40 1183 460 470 12887 6 3069",
        "naïve café 12345": "2616 38776 40304 17031 2231",
        "日本語🙂": "33768 98 17312 105 45739 252 8582 25081",
    }
    for text, ids in golden.items():
        assert tokenizer.encode_batch([text])[0].tolist() == [*map(int, ids.split())], text
