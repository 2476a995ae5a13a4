"""A Unigram ``tokenizer.json``, as transformers writes it for ALBERT, read as a sentencepiece model."""

import json
import random

import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors

from bert_jax.errors import UserError
from bert_jax.text import json_engine
from bert_jax.text.sentencepiece_model import quiet_library, replacement_table
from bert_jax.text.tokenizer import load

SPECIAL = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["(", '"', "▁", "▁the", "▁cat", "s", "e", "t", "c", "a", "h", "fi", "n", "▁e", "1", "⁄", "2", "今", "天"]
PIECES = [(piece, 0.0) for piece in SPECIAL] + [(piece, -2.0 - i / 8) for i, piece in enumerate(WORDS)]
GOLDEN = {
    "The  CATS\tthe\u2028cat ": [8, 9, 10, 8, 9],
    "Été e\u0301 ﬁn": [18, 12, 11, 18, 7, 16, 17],
    "``the'' '''": [7, 6, 12, 15, 11, 6, 7, 6, 1],
    "½ (ſ 今\u3000天 \U0001f44d\U0001f3fd\ufe0f": [7, 19, 20, 21, 7, 5, 10, 7, 22, 7, 23, 7, 1],
    "": [],
    " \n ": [],
    "각 cat\u200d": [7, 1, 9, 1],
    "the [MASK]": [8, 7, 1, 14, 10, 1],  # a special token in a text is plain text
}


STRANGE = [*filter(None, GOLDEN), "the", "cats", "\u0301cat", "\u0600", "\u0d4e", "e\u0301", "ﬁn", "\u200dthe", "½"]


def albert() -> dict:
    tokenizer = tokenizers.Tokenizer(models.Unigram(PIECES, unk_id=1))
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    folding = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    steps = [
        *quotes,
        *folding,
        normalizers.Precompiled(replacement_table(quiet_library().SentencePieceNormalizer(rule_name="nmt_nfkc"))),
    ]
    tokenizer.normalizer = normalizers.Sequence(steps)
    split = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    layout = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}
    tokenizer.post_processor = processors.TemplateProcessing(**layout, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False) for piece in SPECIAL])
    return json.loads(tokenizer.to_str())


ALBERT = albert()
SINGLE = ALBERT["post_processor"]["single"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("albert")
    (folder / "tokenizer.json").write_text(json.dumps(ALBERT))
    return folder


@pytest.fixture(scope="module")
def ours(folder):
    return load(folder)


def ids_of(content: str, texts) -> list[list[int]]:
    library = tokenizers.Tokenizer.from_str(content)
    library.encode_special_tokens = True
    return [library.encode(text, add_special_tokens=False).ids for text in texts]


def test_ids_are_those_of_the_library(ours):
    assert (ours.special_ids, ours.size, ours.lowercase) == ((0, 1, 2, 3, 4), len(PIECES), True)
    assert [ids.tolist() for ids in ours.encode_batch(list(GOLDEN))] == list(GOLDEN.values())
    assert ids_of(json.dumps(ALBERT), GOLDEN) == list(GOLDEN.values())
    assert ours.encode("The cats", "the").input_ids == (2, 8, 9, 10, 3, 8, 3)
    assert ours.encode("the [MASK]", special_tokens_in_text=True).input_ids == (2, 8, 4, 3)


def test_what_is_written_gives_the_same_ids_and_is_read_again(ours, folder, tmp_path):
    assert ids_of(ours.tokenizer_json(), GOLDEN) == list(GOLDEN.values())
    ours.save(tmp_path / ours.file_name)
    assert ours.file_name == "tokenizer.json"
    assert load(tmp_path).sha256 == load(tmp_path, lowercase=False).sha256 == ours.sha256


def test_the_cache_of_words_never_changes_the_ids(ours, monkeypatch):
    rng = random.Random(0)
    texts = [" ".join(rng.choices(STRANGE, k=rng.randint(1, 8))) for _ in range(2000)]
    texts += ["the \u0301cat", "\u0600 the", "\u0d4e cats", "the  cat", " the ", *GOLDEN]
    expected = ids_of(json.dumps(ALBERT), texts)
    monkeypatch.setattr(json_engine, "CACHED_WORDS", 3)  # forgets all the time
    assert [ids.tolist() for ids in ours.encode_batch(texts)] == expected


def changed(**steps) -> dict:
    """Return ALBERT's content with other steps; a dict replaces some keys of a step."""
    return ALBERT | {name: ALBERT[name] | step if isinstance(step, dict) else step for name, step in steps.items()}


REFUSED = {
    "takes '.CLS.' for cls and sep": changed(
        post_processor={"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[CLS]", 2]}
    ),
    "lays a pair out as": changed(post_processor={"pair": SINGLE}),
    "lays a text out as A:0 .SEP.:0 ": changed(post_processor={"single": SINGLE[1:]}),
    "lays a text out as .CLS.:0 A:1 .SEP.:0 ": changed(
        post_processor={"single": [SINGLE[0], {"Sequence": {"id": "A", "type_id": 1}}, SINGLE[2]]}
    ),
    "cuts a long text at its Left end .truncation.direction.; Right alone can be read": ALBERT
    | {"truncation": {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}},
    "has 2 post-processors": changed(post_processor={"type": "Sequence", "processors": [ALBERT["post_processor"]] * 2}),
    "is damaged .*; copy it again": changed(model={"vocab": [["the"]]}),
    "is damaged, or a Unigram tokenizer that cannot be read: .*; save it as": changed(
        normalizer={"normalizers": [{"type": "Lowercase"}, {"type": "Precompiled", "precompiled_charsmap": "aaaa"}]}
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_the_library_cannot_do_is_refused(tmp_path, message):
    (tmp_path / "tokenizer.json").write_text(json.dumps(REFUSED[message]))
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_an_ordinary_piece_does_not_become_the_unknown_one(tmp_path):
    """Classes of transformers save a fixed ``unk_id``, whatever piece has it."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed(model={"unk_id": 7})))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"unk_token": PIECES[1][0]}))
    with pytest.raises(
        UserError, match=r"for unknown characters \(unk_id 7\), the files beside it '.*unk>'; correct the"
    ):
        load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(ALBERT))
    assert load(tmp_path).unk_id == 1
