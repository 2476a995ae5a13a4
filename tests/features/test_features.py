"""Vectors of texts are the vectors of the encoder, in order, whatever the batches, devices and files."""

import dataclasses
import functools
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.features import extract, writing
from bert_jax.features.extract import LAYERS, Extractor, check_layers
from bert_jax.features.inputs import Input, Item, read_texts
from bert_jax.features.writing import check_output, write_vectors
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.encoders import bert
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.tokenizer import wordpiece
from tests.features.reading import read_features
from tests.models.helpers import random_params, tiny

TOKENIZER = wordpiece((*SPECIAL_TOKENS, *"abcdefgh", *(f"##{c}" for c in "abcdefgh"), "bank", "river", ",", "."))
CONFIG = tiny(vocab_size=TOKENIZER.size, num_layers=4, hidden_size=24, mlp_dim=16)
PARAMS = random_params(CONFIG)
ENCODER = TrainedModel("", PARAMS, CONFIG, TOKENIZER)
TEXTS = ["a bank.", "abc dé, river", "h", "a b c d e f g h a b c d", "bank bank river", "fed cab", "gaga"]
ALL = jax.jit(functools.partial(bert.Encoder(CONFIG).apply, hidden_states="all"))
LAST_ALL_MEAN = ("last", "all", "mean")  # compiled once for all tests
ONE = jax.devices()[:1]
ITEMS = [Item(str(i), text) for i, text in enumerate(TEXTS)]


def hidden_states(ids: np.ndarray, types: np.ndarray | None = None) -> np.ndarray:
    """[N + 1, T, D] of one text by itself."""
    row = np.pad(ids, (0, 32 - len(ids)))[None]
    types = np.zeros_like(row) if types is None else np.pad(types, (0, 32 - len(types)))[None]
    batch = {"input_ids": row, "token_type_ids": types.reshape(1, -1), "attention_mask": np.arange(32)[None] < len(ids)}
    return np.asarray(ALL({"params": PARAMS["encoder"]}, batch).hidden)[:, 0, : len(ids)]


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.shape == expected.shape and bool(np.abs(found - expected).max() < 2e-5)


def test_every_layer_is_that_of_the_encoder_in_the_order_of_the_texts():
    found = list(Extractor(ENCODER, LAYERS, batch_size=2, devices=ONE).run(ITEMS))
    assert [one.item for one in found] == ITEMS
    for one in found:
        h = hidden_states(one.tokens.input_ids)
        expected = {
            "embeddings": h[0],
            "second_to_last": h[3],
            "last": h[4],
            "sum_last_four": h[1] + h[2] + h[3] + h[4],
            "concat_last_four": np.concatenate([h[1], h[2], h[3], h[4]], axis=1),
            "all": h.transpose(1, 0, 2),
            "mean": h[4].mean(axis=0),
            "cls": h[4][0],
            "sentence": h[4].mean(axis=0),
        }
        assert one.vectors.keys() == expected.keys()
        for name, vectors in expected.items():
            assert close(one.vectors[name], vectors), name


def test_the_same_on_one_device_and_on_eight():
    names = LAST_ALL_MEAN
    assert len(jax.devices()) == 8
    one, eight = (list(Extractor(ENCODER, names, devices=devices).run(ITEMS)) for devices in (ONE, jax.devices()))
    for a, b in zip(one, eight, strict=True):
        assert a.item == b.item
        for name in names:
            assert close(a.vectors[name], b.vectors[name])


def test_windows_change_nothing(monkeypatch: pytest.MonkeyPatch):
    whole = list(Extractor(ENCODER, ["last"], batch_size=2, devices=ONE).run(ITEMS))
    monkeypatch.setattr(extract, "WINDOW_BYTES", 1)
    cut = list(Extractor(ENCODER, ["last"], batch_size=2, devices=ONE).run(iter(ITEMS)))
    assert [one.item.id for one in cut] == [one.item.id for one in whole]
    for a, b in zip(whole, cut, strict=True):
        assert close(a.vectors["last"], b.vectors["last"])


def test_offsets_and_words_align_with_the_text():
    [one] = Extractor(ENCODER, ["last"], devices=ONE).run([Item("x", "abc dé, river")])
    pieces = [TOKENIZER.vocab[i] for i in one.tokens.input_ids]
    assert pieces == ["[CLS]", "a", "##b", "##c", "d", "##e", ",", "river", "[SEP]"]
    spans = [one.item.text[a:b] for a, b in one.tokens.offsets]
    assert spans == ["", "a", "b", "c", "d", "é", ",", "river", ""]
    assert one.tokens.word_ids.tolist() == [-1, 0, 0, 0, 1, 1, 2, 3, -1]
    assert one.vectors["last"].shape == (9, CONFIG.hidden_size)


def test_pairs_have_types():
    [one] = Extractor(ENCODER, ["last"], devices=ONE).run([Item("x", "a b", pair="bank")])
    assert one.tokens.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1]
    assert close(one.vectors["last"], hidden_states(one.tokens.input_ids, one.tokens.token_type_ids)[-1])


def test_what_is_cut_is_counted():
    extractor = Extractor(ENCODER, ["last"], max_length=8, devices=ONE)
    found = list(extractor.run([Item("1", "a b c d e f g h"), Item("2", "a b"), Item("3", " ".join("a" * 10))]))
    assert [len(one.tokens.input_ids) for one in found] == [8, 4, 8]
    assert all(one.tokens.input_ids[-1] == TOKENIZER.sep_id for one in found)
    assert extractor.counts == {"texts": 3, "tokens": 20, "cut_texts": 2, "cut_tokens": 2 + 4}


def lines_file(folder: Path, texts: list[str] = TEXTS) -> Input:
    (folder / "texts.txt").write_text("\n".join(["", *texts, ""]), encoding="utf-8")
    return Input(str(folder / "texts.txt"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_written_is_read_again(tmp_path: Path, dtype: Any):
    layers = LAST_ALL_MEAN
    notes: list[str] = []
    texts = read_texts(lines_file(tmp_path))
    write_vectors(str(tmp_path / "out.parquet"), Extractor(ENCODER, layers, dtype=dtype), texts, notes.append)
    expected = list(Extractor(ENCODER, layers, dtype=dtype).run(texts))
    found = list(read_features(tmp_path / "out.parquet"))
    assert [one.item for one in found] == [one.item for one in expected]
    assert [one.item.text for one in found] == TEXTS
    for a, b in zip(expected, found, strict=True):
        for field in ("input_ids", "token_type_ids", "offsets", "word_ids"):
            x, y = getattr(a.tokens, field), getattr(b.tokens, field)
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
        assert list(b.vectors) == list(layers)
        for layer in layers:
            assert b.vectors[layer].dtype == dtype
            np.testing.assert_array_equal(a.vectors[layer], b.vectors[layer])
    assert [path.name for path in tmp_path.iterdir() if ".tmp" in path.name] == []
    assert "7 texts" in notes[-1]


def test_readers_of_labelled_data(tmp_path: Path):
    (tmp_path / "x.conll").write_text("a B\nbank O\n\nriver O\n", encoding="utf-8")
    found = read_texts(Input(str(tmp_path / "x.conll"), column="words"))
    assert [one.text for one in found] == ["a bank", "river"]
    (tmp_path / "x.tsv").write_text("n\tone\ttwo\nk1\ta\tb\nk2\tc\td\n", encoding="utf-8")
    found = read_texts(Input(str(tmp_path / "x.tsv"), column="one", pair_column="two", id_column="n"))
    assert found == [Item("k1", "a", "b"), Item("k2", "c", "d")]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": "gone.txt"}, "no file"),
        ({"path": "bad.txt"}, r"2 of 3 texts are bad: .*bad.txt:1 is not UTF-8; .*bad.txt:3"),
        ({"path": "empty.txt"}, "has no text"),
        ({"path": "x.tsv"}, r"has no column 'text' \(.*valid: one, two\)"),
        ({"path": "x.bin"}, "give --format, one of lines, "),
        ({"path": "x.tsv", "format": "tsv"}, "unknown --format 'tsv'"),
        ({"path": "x.tsv", "options": {"headers": True}}, "unknown key --options.headers; did you mean 'header'"),
    ],
)
def test_bad_input_is_an_error(tmp_path: Path, fields: dict[str, Any], message: str):
    (tmp_path / "bad.txt").write_bytes(b"\xff\nb\n\xfe\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "x.tsv").write_text("one\ttwo\na\tb\n")
    source = Input(**{**fields, "path": str(tmp_path / fields["path"])})
    with pytest.raises(UserError, match=message):
        read_texts(source)


def test_bad_texts_are_skipped_where_asked(tmp_path: Path):
    (tmp_path / "bad.txt").write_bytes(b"\xff\nb\n")
    source = Input(str(tmp_path / "bad.txt"), bad_examples="skip")
    notes: list[str] = []
    assert [one.text for one in read_texts(source, notes.append)] == ["b"]
    assert "1 of 2 texts are bad" in notes[0]


def test_bad_requests(tmp_path: Path):
    (tmp_path / "texts.parquet").write_text("")
    for call, argument, message in (
        (check_layers, ["lsat"], "unknown layer 'lsat'; did you mean 'last'"),
        (check_layers, ["last", "last"], "last twice"),
        (check_layers, [], "layers names none"),
        (check_output, "x.npz", r"is called \*.parquet"),
        (check_output, str(tmp_path / "texts.parquet"), "exists already"),
    ):
        with pytest.raises(UserError, match=message):
            call(argument)
    for options, message in (({"max_length": 33}, "from 4 to the model's 32"), ({"batch_size": 0}, "at least 1")):
        with pytest.raises(UserError, match=message):
            Extractor(ENCODER, ["last"], **options)
    shallow = dataclasses.replace(ENCODER, config=tiny(vocab_size=TOKENIZER.size))
    with pytest.raises(UserError, match="2 layers, too few for sum_last_four, concat_last_four; allowed: embeddings"):
        Extractor(shallow, ["last", "sum_last_four", "concat_last_four"])


def test_what_is_written_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """While a window is computed, at most the group that was written last is still there."""
    compute, vectors, kept = Extractor._vectors, list[weakref.ref[np.ndarray]](), list[int]()

    def watched(extractor: Extractor, window: Any) -> Any:
        kept.append(sum(one() is not None for one in vectors))
        features = compute(extractor, window)
        vectors.extend(weakref.ref(one.vectors["last"]) for one in features)
        return features

    monkeypatch.setattr(Extractor, "_vectors", watched)
    monkeypatch.setattr(extract, "WINDOW_BATCHES", 1)
    monkeypatch.setattr(writing, "GROUP_BYTES", 1)
    items = [Item(str(i), TEXTS[i % len(TEXTS)]) for i in range(24)]
    write_vectors(str(tmp_path / "out.parquet"), Extractor(ENCODER, ["last"], batch_size=8), items, print)
    assert kept == [0, 1, 1]
    assert [one.item.id for one in read_features(tmp_path / "out.parquet")] == [item.id for item in items]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any) -> Any:
        raise RuntimeError("the machine is gone")

    monkeypatch.setattr("bert_jax.features.writing._facts", broken)
    with pytest.raises(RuntimeError):
        write_vectors(str(tmp_path / "out.parquet"), Extractor(ENCODER, LAST_ALL_MEAN), ITEMS, print)
    assert not list(tmp_path.iterdir())
