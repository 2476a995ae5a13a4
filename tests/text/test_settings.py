"""The files beside a tokenizer's file are obeyed, or refused in one line."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bert_jax.errors import UserError
from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.marks import ALPHABET
from bert_jax.text.sentencepiece_model import parse
from bert_jax.text.tokenizer import load, wordpiece
from tests.models.helpers import tiny

WORDS = (
    *("the", "cat", "##s", "sat", "on", "a", "mat", "der", "hund", "Der", "Hund", "über", "läuft", "uber", "lauft"),
    *("café", "cafe", "12", ",", ".", "東", "京", "都", "東京", "##京都", "<"),
)
TEXTS = ["Über 東京都 läuft Der Hund café 12.", "the cats sat on THE mat", "``It'' é 각 ﬁne  x", "12,12 cat'''s"]
OTHERS = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes((content if isinstance(content, str) else json.dumps(content)).encode())
    return folder


def lines(*more: str) -> str:
    return "".join(f"{line}\n" for line in (*SPECIAL_TOKENS, *WORDS, *more))


def google_lines(text: str) -> dict[str, int]:
    """Return piece -> id as ``load_vocab`` of google-research/bert does: lines are stripped, a last equal line wins."""
    return {line.strip(): i for i, line in enumerate(text.removesuffix("\n").split("\n"))}


@pytest.mark.parametrize("seed", range(30))
def test_a_vocab_txt_with_odd_lines_gives_the_ids_of_googles_rule(tmp_path, seed):
    """White space around pieces, blank and repeated lines, ids after tabs, no last line feed, any flags, any names."""
    rng = random.Random(seed)
    special = list(OTHERS.values()) if rng.random() < 0.4 else list(SPECIAL_TOKENS)
    rows = [*special, *WORDS, *rng.choices(["", "the", "cat", "\u2028", "##s", "12", *special], k=rng.randint(0, 8))]
    rng.shuffle(rows)
    ends = ["", "", " ", "\t", "\u3000", "\r", "\u2028"]
    odd = [rng.choice(["", "", "", " "]) + row + rng.choice(ends) for row in rows]
    text = "\n".join(odd) + "\n" * rng.randint(0, 3)
    flags = {
        name: rng.choice([True, False, None]) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    }
    named = {f"{role}_token": token for role, token in zip(OTHERS, special, strict=True)}
    write(tmp_path, {"vocab.txt": text, "tokenizer_config.json": flags, "special_tokens_map.json": named})
    vocab = google_lines(text)
    library = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=special[1]))
    library.normalizer = normalizers.BertNormalizer(
        True, flags["tokenize_chinese_chars"] is not False, flags["strip_accents"], flags["do_lower_case"] is not False
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ours = load(tmp_path)
    assert ours.size == len(text.removesuffix("\n").split("\n"))
    assert ours.special_ids == tuple(vocab[token] for token in special)
    for ids, sample in zip(ours.encode_batch(TEXTS), TEXTS, strict=True):
        assert ids.tolist() == library.encode(sample).ids, sample
    (tmp_path / "again").mkdir()
    ours.save(tmp_path / "again" / ours.file_name)
    again = load(tmp_path / "again", ours.lowercase)
    assert (again.sha256, again.size) == (ours.sha256, ours.size)


@pytest.mark.parametrize(
    ("flags", "pieces"),
    [
        ({"do_lower_case": True, "strip_accents": False}, "über 東 京 都 läuft [UNK] hund café 12 ."),
        ({"do_lower_case": False, "strip_accents": True}, "[UNK] 東 京 都 lauft Der Hund cafe 12 ."),
        ({"do_lower_case": False, "tokenize_chinese_chars": False}, "[UNK] 東京 läuft Der Hund café 12 ."),
        ({"do_lower_case": True, "strip_accents": None}, "uber 東 京 都 lauft [UNK] hund cafe 12 ."),
        ({}, "uber 東 京 都 lauft [UNK] hund cafe 12 ."),
    ],
)
def test_the_flags_of_bert_come_in_and_go_out(tmp_path, flags, pieces):
    """Expected: what ``AutoTokenizer`` of transformers 5 gives."""
    vocabulary = lines().replace("der\n", "[unused]\n")
    flags = {"tokenizer_class": "BertTokenizer", **flags}
    write(tmp_path, {"vocab.txt": vocabulary, "tokenizer_config.json": flags})
    text = TEXTS[0].replace("都", "") if flags.get("tokenize_chinese_chars") is False else TEXTS[0]
    ours = load(tmp_path)
    assert " ".join(ours.encode(text).pieces[1:-1]) == pieces
    (out := tmp_path / "out").mkdir()
    write_tokenizer(out, tiny(vocab_size=ours.size), ours)
    assert load(out).sha256 == ours.sha256
    said = json.loads((out / "tokenizer_config.json").read_text())
    assert {**said, **{name: value for name, value in flags.items() if value is not None}} == said
    (out / "tokenizer.json").unlink()
    assert load(out).sha256 == ours.sha256, "vocab.txt and the flags say all"


def test_a_tokenizer_json_comes_first_and_no_file_may_contradict_it(tmp_path):
    write(tmp_path, {"vocab.txt": lines(), "tokenizer_config.json": {"strip_accents": False}})
    wanted = load(tmp_path)
    write(tmp_path, {"tokenizer.json": wanted.tokenizer_json(), "tokenizer_config.json": {}})
    for place in (tmp_path, tmp_path / "vocab.txt", tmp_path / "tokenizer.json"):
        assert load(place).sha256 == wanted.sha256
    for name, value in {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}.items():
        write(tmp_path, {"tokenizer_config.json": {name: value}})
        said, done = map(json.dumps, (value, not value))
        message = f"says {name} {said}, but the tokenizer's file does as if it were {done}"
        with pytest.raises(UserError, match=message):
            load(tmp_path)
    write(tmp_path, {"tokenizer_config.json": {}, "vocab.txt": lines("more")})
    with pytest.raises(UserError, match=r"vocab.txt has 'more' on line 32, but tokenizer.json has 31 pieces: one of"):
        load(tmp_path)


@pytest.mark.parametrize("said", [True, False])
def test_the_files_decide_the_case(tmp_path, said):
    """Where a user types another case, ``Case.check`` refuses it."""
    write(tmp_path, {"vocab.txt": lines(), "tokenizer_config.json": {"do_lower_case": said}})
    for place in (tmp_path, tmp_path / "vocab.txt"):
        assert [load(place, asked).lowercase for asked in (None, said, not said)] == [said] * 3


BAD = [
    ("tokenizer_config.json", {"do_lower_case": "false"}, 'has "false" for do_lower_case; true or false is needed'),
    ("tokenizer_config.json", {"strip_accents": 0}, "has 0 for strip_accents; true or false"),
    ("tokenizer_config.json", {"do_basic_tokenize": False}, "has false for do_basic_tokenize; true alone can be read"),
    ("tokenizer_config.json", {"never_split": ["cat"]}, r'has \["cat"\] for never_split; \[\] alone can be read'),
    ("tokenizer_config.json", {"word_tokenizer_type": "mecab"}, 'has "mecab" for word_tokenizer_type; "basic" alone'),
    ("tokenizer_config.json", {"subword_tokenizer_type": "character"}, "for subword_tokenizer_type"),
    ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "the tokenizer_class BertJapanese"),
    ("tokenizer_config.json", {"tokenizer_class": "KoBertTokenizer"}, "names the tokenizer_class KoBertTokenizer"),
    ("tokenizer_config.json", {"tokenizer_class": "MPNetTokenizerFast"}, "MPNetTokenizer, whose rules are not known"),
    ("tokenizer_config.json", {"tokenizer_class": ["x"]}, r'has \["x"\] for tokenizer_class; a name is needed'),
    ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["a.B", None]}}, r"is a program \(auto_map\)"),
    ("tokenizer_config.json", {"unk_token": 5}, "has 5 for unk_token; a token's text is needed"),
    ("tokenizer_config.json", {"unk_token": "<unk>"}, "lacks the special token <unk>; add each"),
    ("tokenizer_config.json", {"additional_special_tokens": "<e1>"}, "a list of tokens is needed"),
    ("tokenizer_config.json", {"additional_special_tokens": [5]}, "has 5 for additional_special_tokens"),
    ("tokenizer_config.json", {"additional_special_tokens": [""]}, "a token without text cannot be found"),
    ("tokenizer_config.json", {"added_tokens_decoder": ["<e1>"]}, "an object, id -> token, is needed"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"30": "<e1>"}}, 'an object with "content" is needed'),
    ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "<e1>"}}}, 'has "x" for the id of a token'),
    ("tokenizer_config.json", {"added_tokens_decoder": {"30": {"content": "x", "lstrip": "false"}}}, "30.lstrip; true"),
    ("tokenizer_config.json", [1], "tokenizer_config.json holds no JSON object, but a list"),
    ("tokenizer_config.json", '{"do_low', "tokenizer_config.json is not JSON"),
    ("added_tokens.json", {"<e1>": "x"}, 'has "x" for the id of a token; a number is needed'),
    ("added_tokens.json", {"<e1>": True}, "has true for the id of a token"),
    ("added_tokens.json", {"<e1>": {"id": 30}}, "for the id of a token; a number is needed"),
    ("added_tokens.json", {"<e1>": 77}, "its 32 pieces from 0 to 31: no piece has the id 31, but '<e1>' has 77 "),
    ("added_tokens.json", {"the": 31, "<e1>": 32}, "that is a piece already keeps the piece's id"),
    ("added_tokens.json", {"<e1>": 3}, "'.SEP.' and '<e1>' both have the id 3; correct the id of one of them"),
    ("tokenizer_config.json", {"split_special_tokens": True}, "has true for split_special_tokens; false alone"),
    ("tokenizer_config.json", {"truncation_side": "left"}, 'has "left" for truncation_side; "right" alone can be read'),
    ("special_tokens_map.json", {"additional_special_tokens": "<e1>"}, "special_tokens_map.json has .* a list of"),
    ("config.json", {"tokenizer_class": "PhobertTokenizer"}, "names the tokenizer_class PhobertTokenizer"),
    ("config.json", {"model_type": "roformer"}, "names the tokenizer_class RoFormerTokenizer"),
    ("config.json", {"model_type": "xlm-roberta"}, "names the tokenizer_class XLMRobertaTokenizer"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_what_cannot_be_obeyed_is_refused(tmp_path, name, content, message):
    write(tmp_path, {"vocab.txt": lines(), name: content})
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "RoFormerTokenizerFast", "PhobertTokenizer"])
def test_a_class_that_splits_by_a_program_is_refused_beside_a_tokenizer_json(tmp_path, name):
    whole = wordpiece((*SPECIAL_TOKENS, *WORDS)).tokenizer_json()
    write(tmp_path, {"tokenizer.json": whole, "tokenizer_config.json": {"tokenizer_class": name}})
    with pytest.raises(UserError, match=f"{name.removesuffix('Fast')}, .*: it splits text by a program"):
        load(tmp_path)
    write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "SomeTokenizerFast"}})
    assert load(tmp_path).size == 31


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[PAD]\t1\n[UNK]\t0\n", "has '\\[PAD\\]\\\\t1' on line 1, a piece, a tab and a number that is not its line's"),
        ("tôi 900\nlà 800\n", "has 'tôi 900' on line 1, a piece and its count; it is a dictionary of fairseq"),
        ("\n".join((*SPECIAL_TOKENS, "▁나", "는")), "has '▁나' and no piece with ##"),
        ("\n".join((*SPECIAL_TOKENS, "đại_học@@", "công")), "has 'đại_học@@' and no piece with ##"),
    ],
)
def test_vocabularies_of_other_kinds_are_named(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        load(write(tmp_path, {"vocab.txt": content}))


def test_pieces_with_their_own_numbers_are_read(tmp_path):
    """PaddlePaddle writes them. Lines in another order are refused, with the advice to sort them."""
    plain = lines()
    numbered = "".join(f"{line}\t{i}\n" for i, line in enumerate(plain.splitlines()))
    assert load(write(tmp_path, {"vocab.txt": numbered})).sha256 == wordpiece(plain.split("\n")[:-1]).sha256
    askew = "".join(reversed(numbered.splitlines(keepends=True)))
    with pytest.raises(UserError, match="sort the lines by their numbers, from 0 on"):
        load(write(tmp_path, {"vocab.txt": askew}))


DECODER = {str(31 + i): {"content": token, "special": True} for i, token in enumerate(("<e1>", "</e1>"))}
IDS = {"<e1>": 31, "</e1>": 32}


@pytest.mark.parametrize(
    ("files", "normalized"),
    [
        ({"added_tokens.json": {"<e1>": 31, "</e1>": "32"}}, True),
        ({"added_tokens.json": IDS, "special_tokens_map.json": {"additional_special_tokens": [*IDS]}}, False),
        ({"added_tokens.json": IDS, "special_tokens_map.json": {"eos_token": {"content": "<e1>"}}}, False),
        ({"tokenizer_config.json": {"added_tokens_decoder": DECODER}}, False),
        ({"special_tokens_map.json": {"extra_special_tokens": {"a": "<e1>", "b": {"content": "</e1>"}}}}, False),
    ],
)
def test_each_file_alone_declares_added_tokens(tmp_path, files, normalized):
    write(tmp_path, {"vocab.txt": lines(), **files})
    ours = load(tmp_path)
    assert ours.encode("the <e1>cat</e1> sat").input_ids == (2, 5, 31, 6, 32, 8, 3)
    assert (31 in ours.encode("the <E1>").input_ids) == normalized, (
        "transformers: found after lower case if not special"
    )


def test_a_special_token_may_be_an_added_one(tmp_path):
    content = lines().replace("[MASK]\n", "[other]\n")
    write(tmp_path, {"vocab.txt": content, "added_tokens.json": {"<mask>": 31}})
    write(tmp_path, {"tokenizer_config.json": {"mask_token": "<mask>"}})
    assert load(tmp_path).special_ids == (0, 1, 2, 3, 31)


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({}, (0, 10, 3, 1)),
        ({"mask_token": {"content": "<mask>", "lstrip": False}}, (0, 10, 5, 3, 1)),
        ({"mask_token": {"content": "<mask>", "lstrip": True}}, (0, 10, 3, 1)),
        ({"cls_token": "<cls>"}, (4, 10, 3, 1)),
    ],
)
def test_the_special_tokens_of_bare_merges_are_the_ones_that_the_files_name(tmp_path, config, ids):
    """Expected: the ids of ``RobertaTokenizer`` of transformers 4, whose mask takes the space if no file says it."""
    pieces = ["<s>", "</s>", "<pad>", "<mask>", "<cls>", "\u0120", "<unk>"]
    pieces += [f"<{i}>" for i in range(7, 10)] + ["a"]
    pieces += [letter for letter in ALPHABET if letter not in pieces]
    write(tmp_path, {"vocab.json": {piece: i for i, piece in enumerate(pieces)}, "merges.txt": "#version: 0.2\n"})
    write(tmp_path, {"tokenizer_config.json": config})
    assert load(tmp_path).encode("a <mask>", special_tokens_in_text=True).input_ids == ids


def test_bare_merges_of_other_names_are_laid_out_as_roberta_does(tmp_path):
    """Two separators, and token type 0 of both texts, whatever the names; <s> and </s> are not guessed."""
    pieces = ["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", *ALPHABET]
    write(tmp_path, {"vocab.json": {piece: i for i, piece in enumerate(pieces)}, "merges.txt": "#version: 0.2\n"})
    write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "RobertaTokenizerFast"}})
    with pytest.raises(UserError, match="takes '<s>' for cls, which the vocabulary lacks; add it as an added token"):
        load(tmp_path)
    write(tmp_path, {"added_tokens.json": {"<s>": len(pieces), "</s>": len(pieces) + 1}})
    assert load(tmp_path).special_ids == (2, 3, len(pieces), len(pieces) + 1, 4)
    (tmp_path / "added_tokens.json").unlink()
    write(tmp_path, {"special_tokens_map.json": {"cls_token": "[CLS]", "sep_token": "[SEP]"}})
    encoded = load(tmp_path).encode("a", "b")
    a, b = (pieces.index(letter) for letter in "ab")
    assert encoded.input_ids == (0, a, 1, 1, b, 1)
    assert {*encoded.token_type_ids} == {0}
    (tmp_path / "tokenizer_config.json").unlink()
    write(tmp_path, {"special_tokens_map.json": {}, "config.json": {"model_type": "roberta"}})
    with pytest.raises(UserError, match="takes '<s>' for cls"):
        load(tmp_path)


@pytest.mark.parametrize("flags", [{}, {"do_lower_case": False}, {"keep_accents": True}, {"add_prefix_space": False}])
def test_alberts_model_is_read_by_alberts_rules(tmp_path, flags):
    """Expected: the rules of ``AlbertTokenizer`` of transformers, put together with ``tokenizers``."""
    data = learn_sentencepiece([*TEXTS, 'He said "no" to it'] * 20, 100, num_threads=1, lowercase=False)
    (tmp_path / "spiece.model").write_bytes(data)
    write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "AlbertTokenizer", **flags}})
    model = parse(data, "")
    library = tokenizers.Tokenizer(models.Unigram([(p.piece, p.score) for p in model.pieces], unk_id=1))
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [] if flags.get("keep_accents") else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if flags.get("do_lower_case", True) else []
    library.normalizer = normalizers.Sequence(
        [*steps, normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)]
    )
    scheme = "always" if flags.get("add_prefix_space", True) else "never"
    space = pre_tokenizers.Metaspace("▁", scheme)
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
    ours = load(tmp_path)
    for text in TEXTS:
        assert ours.encode_batch([text])[0].tolist() == library.encode(text).ids, text
    (out := tmp_path / "out").mkdir()
    write_tokenizer(out, tiny(vocab_size=ours.size), ours)
    assert load(out).sha256 == ours.sha256
    other = scheme == "never"
    write(out, {"tokenizer_config.json": {"tokenizer_class": "AlbertTokenizer", "add_prefix_space": other}})
    with pytest.raises(UserError, match=f"says add_prefix_space {json.dumps(other)}, but the tokenizer's file does as"):
        load(out)
    write(tmp_path, {"tokenizer_config.json": {}, "config.json": {"model_type": "albert"}})
    assert (load(tmp_path).sha256 == ours.sha256) == (not flags)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_special_tokens_that_albert_names_are_not_guessed(tmp_path, file):
    """``AlbertTokenizer`` of transformers appends [CLS] where a model has <s> alone; named or added, it is read."""
    model = parse(learn_sentencepiece(TEXTS * 20, 100, num_threads=1), "")
    for i, piece in ((2, "<s>"), (3, "</s>")):
        model.pieces[i].piece = piece
    (tmp_path / "spiece.model").write_bytes(model.SerializeToString())
    write(tmp_path, {file: {"model_type": "albert", "tokenizer_class": "AlbertTokenizer"}})
    with pytest.raises(
        UserError, match=r"takes '\[CLS\]' for cls, which the vocabulary lacks; add it as an added token"
    ):
        load(tmp_path)
    size = len(model.pieces)
    write(tmp_path, {"added_tokens.json": {"[CLS]": size, "[SEP]": size + 1}})
    assert load(tmp_path).special_ids == (0, 1, size, size + 1, 4)
    (tmp_path / "added_tokens.json").unlink()
    write(tmp_path, {"special_tokens_map.json": {"cls_token": "<s>", "sep_token": "</s>"}})
    assert load(tmp_path).special_ids == (0, 1, 2, 3, 4)


def test_ids_that_fairseq_shifts_are_refused(tmp_path):
    data = learn_sentencepiece(TEXTS * 20, 100, num_threads=1)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(data)
    for place in (tmp_path, tmp_path / "sentencepiece.bpe.model"):
        with pytest.raises(
            UserError, match="fairseq shifts them; give the tokenizer.json .* call the file spiece.model"
        ):
            load(place)
    (tmp_path / "sentencepiece.bpe.model").rename(tmp_path / "spiece.model")
    assert load(tmp_path).file_name == "spiece.model"


PATTERNS = [r"(a+)+$", r"(x+x+)+y", r"((ab)+)+c", r"(\d+)*z", r"(\w+\s?)+$", r"([a-z]+)*[0-9]!"]


@pytest.mark.parametrize("pattern", [*PATTERNS, r"\w+|[^\w\s]+"])
def test_a_pattern_that_runs_away_is_refused(tmp_path, pattern, capfd):
    content = json.loads(wordpiece((*SPECIAL_TOKENS, *WORDS)).tokenizer_json())
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, content["pre_tokenizer"]]}
    write(tmp_path, {"tokenizer.json": content})
    if pattern in PATTERNS:
        with pytest.raises(UserError, match=f"has a pattern that runs away, {re.escape(repr(pattern))}: "):
            load(tmp_path)
    else:
        assert load(tmp_path).encode("the cat").input_ids == (2, 5, 6, 3)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"type": "WordPiece", "unk_token": "<unk>"}, "the unk_token '<unk>' is no piece"),
        ({"type": "WordLevel", "unk_token": "<unk>"}, "the unk_token '<unk>' is no piece"),
        ({"type": "BPE", "unk_token": "<unk>", "merges": []}, "the unk_token '<unk>' is no piece"),
    ],
)
def test_a_token_for_unknown_words_that_is_no_piece_is_refused(tmp_path, model, message):
    content = json.loads(wordpiece((*SPECIAL_TOKENS, *WORDS)).tokenizer_json())
    content["model"] = {**content["model"], **model}
    with pytest.raises(UserError, match=message):
        load(write(tmp_path, {"tokenizer.json": content}))


def test_rows_without_a_piece_are_read_from_a_tokenizer_json(tmp_path):
    """So transformers saves a vocab.txt with repeated lines."""
    content = json.loads(wordpiece((*SPECIAL_TOKENS, *WORDS)).tokenizer_json())
    content["model"]["vocab"] |= {"dog": 33}
    ours = load(write(tmp_path, {"tokenizer.json": content}))
    assert (ours.size, ours.encode("the dog").input_ids) == (34, (2, 5, 33, 3))
    assert 31 not in ours.encode(" ".join(ours.vocab)).input_ids


def test_lower_case_as_a_step_of_its_own_does_not_contradict_the_step_of_bert(tmp_path):
    """As sentence-transformers saves a tokenizer to which its option do_lower_case added a step."""
    content = json.loads(wordpiece(lines().split(), lowercase=False).tokenizer_json())
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, content["normalizer"]]}
    write(tmp_path, {"tokenizer.json": content, "tokenizer_config.json": {"do_lower_case": False}})
    assert load(tmp_path).lowercase
    write(tmp_path, {"tokenizer_config.json": {"do_lower_case": True}})
    assert load(tmp_path).lowercase
    content["normalizer"] = content["normalizer"]["normalizers"][1]
    write(tmp_path, {"tokenizer.json": content})
    with pytest.raises(UserError, match="says do_lower_case true, but"):
        load(tmp_path)
