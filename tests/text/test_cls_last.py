"""Tokenizers of XLNet, which put [CLS] after a text: a tokenizer.json and a model of sentencepiece, in and out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from bert_jax.corpora.prepare import VocabularyConfig, learn_tokenizer
from bert_jax.corpora.shard_job import _spans
from bert_jax.errors import UserError
from bert_jax.inspection.fertility import measure_fertility
from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.models.encoders import bert, xlnet
from bert_jax.rows.example_rows import pair_sequences
from bert_jax.tasks.windows import read_passage
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.sentencepiece_model import parse
from bert_jax.text.tokenizer import Tokenizer, load

TEXTS = ["The cats run to the river.", "A dog, it runs!", "Été, naïve ﬁne", 'He said ``no"', ""]
NAMES = {"[PAD]": "<pad>", "[UNK]": "<unk>", "[CLS]": "<cls>", "[SEP]": "<sep>", "[MASK]": "<mask>"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published folder: a model of sentencepiece with XLNet's names, and a config.json."""
    folder = tmp_path_factory.mktemp("xlnet")
    model = parse(learn_sentencepiece(TEXTS[:-1] * 20, 100, num_threads=1, lowercase=False), "")
    for piece in model.pieces:
        piece.piece = NAMES.get(piece.piece, piece.piece)
    (folder / "spiece.model").write_bytes(model.SerializeToString())
    (folder / "config.json").write_text(json.dumps({"model_type": "xlnet"}))
    return folder


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    return load(folder)


def test_cls_is_last_and_has_a_type_of_its_own(ours: Tokenizer) -> None:
    cls, sep = ours.cls_id, ours.sep_id
    assert (ours.vocab[cls], ours.vocab[sep], ours.cls_last, ours.around) == ("<cls>", "<sep>", True, ((), (sep, cls)))
    first, second = (ids.tolist() for ids in ours.encode_batch(["the cats", "run"]))
    one = ours.encode("the cats", max_length=len(first) + 4)
    assert one.input_ids == (*first, sep, cls, ours.pad_id, ours.pad_id)
    assert one.token_type_ids == (*[0] * (len(first) + 1), 2, 0, 0)
    pair = ours.encode("the cats", "run")
    assert pair.input_ids == (*first, sep, *second, sep, cls)
    assert pair.token_type_ids == (*[0] * (len(first) + 1), *[1] * (len(second) + 1), 2)
    assert not ours.lowercase
    assert ours.decode(one.input_ids) == "the cats"


@pytest.mark.parametrize("length", [32, 7])
def test_rows_of_examples_are_laid_out_alike(ours: Tokenizer, length: int) -> None:
    texts, pairs = ["the cats run to it", "the cats run to it", ""], [None, "it runs to the river", "run"]
    rows = pair_sequences(ours, texts, pairs, length)
    for text, pair, ids, types in zip(texts, pairs, rows["input_ids"], rows["token_type_ids"], strict=True):
        wanted = ours.encode(text, pair, length)
        assert tuple(ids) == wanted.input_ids[: len(ids)]
        assert tuple(types) == wanted.token_type_ids[: len(ids)]
        assert sum(wanted.attention_mask) == len(ids)
        assert ids[-1] == ours.cls_id


def test_an_export_has_the_layout_and_is_padded_at_the_left(ours: Tokenizer, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, xlnet.Config(vocab_size=ours.size), ours)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        for pair in (None, "it runs"):
            encoded, wanted = library.encode(text, pair), ours.encode(text, pair)
            assert (tuple(encoded.ids), tuple(encoded.type_ids)) == (wanted.input_ids, wanted.token_type_ids)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["padding_side"] == "left"
    assert "token_type_ids" in settings["model_input_names"]
    assert load(tmp_path).sha256 == ours.sha256
    (other := tmp_path / "one_type").mkdir()
    write_tokenizer(other, dataclasses.replace(bert.Config(ours.size), type_vocab_size=1), ours)
    one_type = tokenizers.Tokenizer.from_file(str(other / "tokenizer.json")).encode("the cats", "run")
    assert {*one_type.type_ids} == {0}
    assert "padding_side" not in json.loads((other / "tokenizer_config.json").read_text())  # a BERT counts positions


def test_added_tokens_and_trimming_keep_the_layout(ours: Tokenizer) -> None:
    grown = ours.with_added([{"content": "<eod>"}])
    assert (grown.around, grown.size) == (ours.around, ours.size + 1)
    smaller, old = ours.trimmed(TEXTS)
    assert smaller.cls_last
    assert np.array_equal(old[list(smaller.encode("the cats").input_ids)], ours.encode("the cats").input_ids)


def test_a_text_is_found_among_its_special_tokens(ours: Tokenizer) -> None:
    """As in answers, fertility and columns of a corpus."""
    passage = read_passage(ours, "the cats run")
    assert passage.ids.tolist() == ours.encode_batch(["the cats run"])[0].tolist()
    assert (passage.starts[0], passage.ends[-1]) == (0, 12)
    assert measure_fertility(ours, ["the cats run"]).pieces == len(passage.ids)
    assert len(_spans(ours, "the cats run", passage.ids)) == len(passage.ids)


@pytest.mark.parametrize("single", ["<sep>:0 $A:0 <cls>:2", "$A:0 <sep>:0 <cls>:0"])
def test_another_layout_is_refused_in_one_line(ours: Tokenizer, tmp_path: Path, single: str) -> None:
    library = tokenizers.Tokenizer.from_str(ours.tokenizer_json())
    pair = "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2"
    special = [("<sep>", ours.sep_id), ("<cls>", ours.cls_id)]
    library.post_processor = tokenizers.processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="lays a text out as .* can be read") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_a_vocabulary_of_a_run_may_have_cls_last(kind: Any, tmp_path: Path) -> None:
    """The pieces and ids of a text are the same."""
    settings = VocabularyConfig(kind=kind, size=90, lowercase=False, num_threads=1, min_frequency=1, cls_last=True)
    plain = learn_tokenizer(settings, TEXTS[:-1] * 20)
    moved = settings.with_added(plain)
    assert (moved.cls_last, plain.cls_last) == (True, False)
    assert moved.encode("the cats").input_ids[-2:] == (plain.sep_id, plain.cls_id)
    for one, other in zip(moved.encode_batch(TEXTS), plain.encode_batch(TEXTS), strict=True):
        np.testing.assert_array_equal(one, other)
    assert settings.file_name == moved.file_name == "tokenizer.json"
    moved.save(tmp_path / moved.file_name)
    assert load(tmp_path).sha256 == moved.sha256
    assert settings.with_added(moved) is moved
