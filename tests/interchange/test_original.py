"""Google's TensorFlow checkpoints without TensorFlow. The folder ``original`` was written by TensorFlow itself
(``original_checkpoint.py``); tests/parity/test_original.py writes others on the spot."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.architectures import HeadClass
from bert_jax.interchange.conversion import leaf
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import import_model
from bert_jax.interchange.loading import load
from bert_jax.interchange.original import current_name, import_original
from bert_jax.interchange.tensor_bundle import crc32c, read_bundle
from bert_jax.text.case import Case
from tests.interchange.numpy_models import assert_same_outputs
from tests.interchange.original_checkpoint import FOLDER, LAYERS, D, values


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A copy by a name that says the case, to be spoilt."""
    return Path(shutil.copytree(FOLDER, tmp_path / "uncased_L-2_H-8_A-2"))


def test_every_tensor_is_read() -> None:
    found, expected = read_bundle(FOLDER / "bert_model.ckpt"), values("pretraining")
    assert set(found) == {*expected, "global_step", "bert/pooler/dense/bias/adam_m", "bert/pooler/dense/bias/adam_v"}
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert (found["global_step"].dtype, int(found["global_step"])) == (np.int64, 7)


def test_every_tensor_has_its_place(released: Path) -> None:
    imported, stored = import_original(released), values("pretraining")
    assert (imported.report.missing, imported.head) == ((), HeadClass("BertForPreTraining"))
    assert_same_outputs(stored, imported.params, imported.config, imported.head)
    layers = [f"bert/encoder/layer_{i}" for i in range(LAYERS)]
    query = stored[f"{layers[1]}/attention/self/query/kernel"]
    output = stored[f"{layers[0]}/attention/output/dense/kernel"]
    places = {
        "encoder/layer_1/attention/query/kernel": query.reshape(D, 2, 4),
        "encoder/layer_0/attention/output/kernel": output.reshape(2, 4, D),
        "encoder/layer_0/attention_layer_norm/scale": stored["bert/encoder/layer_0/attention/output/LayerNorm/gamma"],
        "encoder/layer_1/mlp/input/kernel": stored["bert/encoder/layer_1/intermediate/dense/kernel"],
        "encoder/layer_1/mlp_layer_norm/bias": stored["bert/encoder/layer_1/output/LayerNorm/beta"],
        "pooler/dense/kernel": stored["bert/pooler/dense/kernel"],
        "mlm_head/transform/kernel": stored["cls/predictions/transform/dense/kernel"],
        "mlm_head/output_bias": stored["cls/predictions/output_bias"],
        "nsp_head/dense/kernel": stored["cls/seq_relationship/output_weights"].T,
    }  # fmt: skip
    for path, array in places.items():
        np.testing.assert_array_equal(leaf(imported.params, path), array)
    assert set(imported.report.tensors) == set(stored)
    assert "skipped: 3 tensors of the optimizer" in str(imported.report)


def test_the_map_names_every_variable_once() -> None:
    originals = {*values("pretraining"), *values("classification"), *values("span_qa")}
    theirs = [entry.theirs for entry in family_of("bert").entries(LAYERS)]
    assert sorted(theirs) == sorted(map(current_name, originals))


def test_into_a_workdir_and_to_hugging_face(released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir, output = tmp_path / "workdir", tmp_path / "out"
    assert run(["import", f"--input={released}", f"--workdir={workdir}"]) == 0
    out = capsys.readouterr().out
    assert ": 46 tensors; " in out
    assert "the vocabulary is read as lower-case" in out
    assert run(["export", f"--workdir={workdir}", f"--output={output}"]) == 0
    exported, imported = import_model(output), import_original(released)
    for path, array in (
        (e.ours, leaf(imported.params, e.ours)) for e in family_of("bert").entries(LAYERS) if "qa_" not in e.ours
    ):
        if array is not None:
            np.testing.assert_array_equal(leaf(exported.params, path), array)
    assert exported.tokenizer.lowercase
    assert load(str(released)).head == HeadClass("BertForPreTraining")


@pytest.mark.parametrize(
    ("name", "flag", "lowercase"),
    [
        ("cased_L-12", None, False),
        ("multi_cased_L-12", None, False),
        ("wwm_Uncased", None, True),
        ("chinese_L-12", "true", True),
        ("uncased", "false", False),
        ("chinese_L-12", None, None),
    ],
)
def test_the_case_is_in_the_name_or_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, flag: str | None, lowercase: bool | None
) -> None:
    shutil.copytree(FOLDER, tmp_path / name)
    flags = [f"--lowercase={flag}"] if flag else []
    code = run(["import", f"--input={tmp_path / name}", f"--workdir={tmp_path / 'workdir'}", *flags])
    if lowercase is None:
        assert code == 2
        assert "add --lowercase=true (as the Chinese model) or --lowercase=false" in capsys.readouterr().err
        assert not (tmp_path / "workdir").exists()
    else:
        assert code == 0
        run_json = json.loads((tmp_path / "workdir" / "run.json").read_text())
        assert run_json["facts"]["lowercase"] is lowercase


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


DATA = "bert_model.ckpt.data-00000-of-00001"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / DATA).unlink(), f"has no {DATA}, which holds"),
        (lambda f: cut(f / DATA, 6000), f"{DATA} is too short for .* copy the whole checkpoint again"),
        (lambda f: cut(f / "bert_model.ckpt.index", 1000), "is damaged or not the index of a TensorFlow checkpoint"),
        (lambda f: (f / "bert_model.ckpt.index").unlink(), "has no bert_model.ckpt.index"),
        (lambda f: edit_config(f, hidden_size=16), r"word_embeddings.weight is \[24, 8\], config.json says \[24, 16\]"),
        (lambda f: edit_config(f, num_hidden_layers=3), "16 tensors of the encoder are missing"),
        (lambda f: edit_config(f, vocab_size="x"), "bert_config.json does not describe a model of the BERT family"),
        (lambda f: (f / "vocab.txt").unlink(), "has no tokenizer.json or vocab.txt"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(released: Path, spoil: Any, message: str) -> None:
    spoil(released)
    with pytest.raises(UserError, match=message) as error:
        import_original(released)
    assert "\n" not in str(error.value)


def test_a_flipped_bit_of_the_index_is_found(released: Path) -> None:
    """It has checksums: whichever byte of its blocks is another, none is read."""
    index = released / "bert_model.ckpt.index"
    whole = index.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, 1500, 20):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << rng.integers(0, 8)
        index.write_bytes(spoilt)
        with pytest.raises(UserError, match="is damaged or not the index of a TensorFlow checkpoint"):
            read_bundle(released / "bert_model.ckpt")
    for place in range(len(whole) - 48, len(whole), 5):  # the footer has none; its padding may be anything
        spoilt = bytearray(whole)
        spoilt[place] ^= 0xFF
        index.write_bytes(spoilt)
        try:
            assert set(read_bundle(released / "bert_model.ckpt")) >= set(values("pretraining"))
        except UserError:
            continue


def test_a_flipped_bit_of_the_data_is_found(released: Path) -> None:
    whole = (released / DATA).read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 10):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << rng.integers(0, 8)
        (released / DATA).write_bytes(spoilt)
        with pytest.raises(UserError, match="is damaged: the checksum of .* does not match"):
            read_bundle(released / "bert_model.ckpt")


def test_the_checksum_is_that_of_the_standard() -> None:
    """RFC 3720, B.4, and a loop over bytes."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes(range(32))) == 0x46DD794E
    rng = np.random.default_rng(0)
    for size in (0, 1, 3, 4, 5, 16383, 16385, 70_001):
        message = rng.integers(0, 256, size).astype(np.uint8)
        crc = 0xFFFFFFFF
        for byte in message.tolist():
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        assert crc32c(message) == crc ^ 0xFFFFFFFF


def test_one_checkpoint_by_another_name_is_found(released: Path) -> None:
    for file in released.glob("bert_model.ckpt.*"):
        file.rename(released / file.name.replace("bert_model.ckpt", "model.ckpt-7"))
    assert import_original(released).report.missing == ()
    for file in released.glob("model.ckpt-7.*"):
        shutil.copy(file, released / file.name.replace("-7", "-8"))
    with pytest.raises(UserError, match="several checkpoints: model.ckpt-7, model.ckpt-8; leave one"):
        import_original(released)


@pytest.mark.parametrize(
    ("verb", "hint"),
    [
        ("pretrain --config=continue --config.corpus.options.paths=x.txt", "--config.vocab.lowercase=True"),
        ("fill-mask", "--lowercase=true"),
    ],
)
def test_the_case_that_nothing_says_is_asked_for_by_a_flag_of_the_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, hint: str
) -> None:
    (tmp_path / "x.txt").write_text("Some text.\n")
    model = shutil.copytree(FOLDER, tmp_path / "chinese_L-12")
    words = verb.replace("x.txt", str(tmp_path / "x.txt")).split()
    own = [f"--init={model}", f"--workdir={tmp_path / 'new'}"] if len(words) > 1 else [f"--workdir={model}", "a [MASK]"]
    assert run([*words, *own]) == 2
    error = capsys.readouterr().err
    assert f"add {hint} (as the Chinese model) or " in error
    if len(words) > 1:
        assert load(str(model), given=Case(True)).tokenizer.lowercase
        run([*words, *own, hint])
        assert "lower-cased" not in capsys.readouterr().err
    else:
        assert f"`bert-jax import --input={model} --workdir=NEW`" in error
        assert run(["import", f"--input={model}", f"--workdir={tmp_path / 'new'}", hint]) == 0
