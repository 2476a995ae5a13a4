"""Byte-level tokenizers: ``transformers`` loads our files, and we read files that it has written."""

import dataclasses
import json
import random

import pytest

transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

import tokenizers

from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.tasks.tagging import Config, Task
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.tokenizer import load, of_json
from tests.models.helpers import tiny
from tests.tasks import toy_tasks
from tests.text.byte_level_files import MERGES, released, released_for, roberta
from tests.text.test_byte_bpe import REAL, text_of

pytestmark = pytest.mark.parity
TEXTS = ["Hello world", "the {mask} cat", "the{mask}cat {mask}", " naïve  café 日本🙂\n\tx ", "I'll can't WE'LL", ""]


@pytest.fixture(scope="module", params=["learned", "lowercase", "roberta", "released"])
def ours(request):
    if request.param in ("roberta", "released"):
        return of_json({"roberta": roberta, "released": released}[request.param]())
    return learn_byte_bpe(["the cat's naïve hello world"] * 9, 300, lowercase=request.param == "lowercase")


def check(ours, theirs):
    special = (theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id)
    assert (len(theirs), special) == (ours.size, ours.special_ids)
    for text in (text.format(mask=theirs.mask_token) for text in TEXTS):
        assert tuple(theirs(text)["input_ids"]) == ours.encode(text, special_tokens_in_text=True).input_ids, repr(text)
    pair = theirs("the cat", "Hello", padding="max_length", max_length=16)
    mine = ours.encode("the cat", "Hello", max_length=16)
    for name in ("input_ids", "attention_mask"):
        assert tuple(pair[name]) == getattr(mine, name), name
    assert tuple(pair.get("token_type_ids", mine.token_type_ids)) == mine.token_type_ids


def test_auto_tokenizer_gives_our_ids_and_saves_what_we_read(ours, tmp_path):
    write_tokenizer(tmp_path, tiny(vocab_size=ours.size), ours)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    check(ours, theirs)
    theirs.save_pretrained(tmp_path / "again")
    check(load(tmp_path / "again"), theirs)


def test_a_published_modern_bert_cuts_5000_strings_as_here(tmp_path):
    content = released_for(REAL[:2000])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(content)),
        **{f"{role}_token": f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")},
    ).save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    write_tokenizer(tmp_path, tiny(vocab_size=ours.size), ours)
    rng = random.Random(0)
    texts = [f"{text_of(rng)}{rng.choice(['', ' [MASK]', '[SEP]'])}" for _ in range(2500)] + REAL[:2500]
    wanted = [list(ours.encode(text, special_tokens_in_text=True).input_ids) for text in texts]
    for folder in (tmp_path / "theirs", tmp_path):
        assert transformers.AutoTokenizer.from_pretrained(folder)(texts)["input_ids"] == wanted


def test_we_read_what_a_roberta_tokenizer_saves(tmp_path):
    theirs = transformers.RobertaTokenizer(
        vocab=roberta()["model"]["vocab"],
        merges=[tuple(merge.split(" ")) for merge in MERGES],
        mask_token=tokenizers.AddedToken("<mask>", lstrip=True, special=True),
    )
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours.pair_separators == 2
    check(ours, theirs)


def test_words_to_tag_have_the_ids_of_is_split_into_words():
    """RoBERTa's tokenizer is read as published; transformers is asked for the space that token classification needs."""
    theirs = transformers.RobertaTokenizer(
        vocab=roberta()["model"]["vocab"],
        merges=[tuple(merge.split(" ")) for merge in MERGES],
        add_prefix_space=True,
    )
    words = ["the", "cat", "Hello", "\u200b", "中文", "naïve", "the"]
    expected = theirs(words, is_split_into_words=True)["input_ids"]
    assert "Ġthe" in theirs.convert_ids_to_tokens(expected)[1]
    setting = toy_tasks.make_task("tagging", {"train": toy_tasks.examples("tagging", 1)}).setting
    example = {"id": "0", "words": words, "tags": ["O"] * len(words)}
    tokenizer = of_json(roberta())
    setting = dataclasses.replace(setting, splits={"train": (example,)}, tokenizer=tokenizer, max_length=64)
    assert Task(Config(metrics="accuracy"), setting).rows["train"].sequences["input_ids"].tolist() == expected
