"""Imports of Hugging Face directories that others wrote: older names, shards, missing heads, and damage."""

import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError
from bert_jax.interchange.card import CARD
from bert_jax.interchange.hugging_face import import_model
from bert_jax.interchange.loading import load
from bert_jax.interchange.tensors import WEIGHTS
from bert_jax.interchange.tokenizer_files import is_padded
from bert_jax.interchange.workdir import export_trained, import_into_workdir
from bert_jax.storage.checksums import CHECKSUMS
from tests.interchange.small_model import PARAMS, TOKENIZER, assert_same


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    """A copy of the export that a test may spoil; without its sha256, as others write models."""
    for file in exported.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / CHECKSUMS).unlink()
    (tmp_path / CARD).write_text("the card of somebody else\n")
    return tmp_path


def rewrite(folder: Path, change: Any) -> None:
    """Pass the tensors through ``change``, a function of the dictionary."""
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, {"format": "pt"})


def edit_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def test_old_names_are_read(copy: Path) -> None:
    def old(name: str) -> str:
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return name.removeprefix("bert.")

    rewrite(copy, lambda tensors: {old(name): x for name, x in tensors.items()})
    assert_same(import_model(copy).params, PARAMS)


def test_buffers_and_copies_are_read_past(copy: Path) -> None:
    def add(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return tensors | {
            "bert.embeddings.position_ids": np.arange(32)[None],
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].copy(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].copy(),
        }

    rewrite(copy, add)
    assert_same(import_model(copy).params, PARAMS)


@pytest.mark.parametrize(
    "name", ["qa_outputs.weight", "classifier.bias", "bert.embeddings.task", "bert.ids", "fit_dense.weight"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_tensor_without_a_place_is_refused(copy: Path, name: str, dtype: Any) -> None:
    rewrite(copy, lambda tensors: tensors | {name: np.zeros((2, 32), dtype)})
    with pytest.raises(UserError, match=f"1 tensors have no place in the BertForPreTraining of config.json: {name} "):
        import_model(copy)


def test_a_quantized_model_is_refused(copy: Path) -> None:
    name = "bert.pooler.dense.weight"
    rewrite(copy, lambda tensors: tensors | {name: tensors[name].astype(np.int8)})
    with pytest.raises(UserError, match=f"{name} holds int8 numbers; a quantized model cannot be read"):
        import_model(copy)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "I4", "a dtype of later versions"])
def test_numbers_of_8_bits_or_fewer_are_refused(copy: Path, dtype: str) -> None:
    """As in public FP8 weights; safetensors does not know the last two, and says that the header is damaged."""
    name = "bert.pooler.dense.weight"
    rewrite(copy, lambda tensors: tensors | {name: tensors[name].astype(np.int8)})
    data = (copy / WEIGHTS).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header[name]["dtype"] = dtype
    changed = json.dumps(header).encode()
    (copy / WEIGHTS).write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + size :])
    with pytest.raises(UserError, match=f"holds {dtype} numbers; a quantized model cannot be read: give one with flo"):
        import_model(copy)


def test_a_head_in_part_is_refused(copy: Path) -> None:
    without("cls.predictions.transform.dense.weight")(copy)
    with pytest.raises(UserError, match=r"1 tensors of the mlm_head are missing, such as cls.predictions.transform.d"):
        import_model(copy)
    edit_config(copy, architectures=["BertForNextSentencePrediction"])
    with pytest.raises(UserError, match=r"4 tensors have no place in the BertForNextSentencePrediction"):
        import_model(copy)


def test_the_bias_of_a_decoder_is_the_bias_of_the_head(copy: Path) -> None:
    def alias(name: str) -> str:
        return name.replace("cls.predictions.bias", "cls.predictions.decoder.bias")

    rewrite(copy, lambda tensors: {alias(name): x for name, x in tensors.items()})
    imported = import_model(copy)
    assert_same(imported.params, PARAMS)
    assert imported.report.missing == ()


def test_a_decoder_that_is_not_tied_is_refused(copy: Path) -> None:
    untied = {"cls.predictions.decoder.weight": np.zeros((64, 32), np.float32)}
    rewrite(copy, lambda tensors: tensors | untied)
    with pytest.raises(UserError, match="decoder that is not its word embeddings"):
        import_model(copy)


def test_shards_are_read(copy: Path) -> None:
    tensors = load_file(copy / WEIGHTS)
    (copy / WEIGHTS).unlink()
    places = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for place in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == place}, copy / place)
    (copy / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": places}))
    assert_same(import_model(copy).params, PARAMS)
    first, second = sorted({*places.values()})
    others = {name: tensors[name] for name in tensors if places[name] == second}
    save_file({**others, sorted(tensors)[0]: np.zeros_like(tensors[sorted(tensors)[0]])}, copy / second)
    assert_same(import_model(copy).params, PARAMS)  # of a tensor in two files, the index says which one counts
    save_file({name: others[name] for name in sorted(others)[1:]}, copy / second)
    with pytest.raises(UserError, match=f"index.json has {sorted(others)[0]} in {second}, which lacks it; copy the wh"):
        import_model(copy)
    (copy / second).unlink()
    with pytest.raises(UserError, match=f"{second} cannot be read"):
        import_model(copy)
    for damaged in ({"a": f"../{first}"}, {"a": 1}, [first], {}, None):
        (copy / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": damaged}))
        with pytest.raises(UserError, match="index.json has no weight_map of names and files"):
            import_model(copy)
    save_file(tensors, copy / WEIGHTS)
    assert_same(import_model(copy).params, PARAMS)  # as transformers, which does not look at the index then


def test_embeddings_may_be_padded(copy: Path) -> None:
    """Published vocabularies are often padded to a round number of embeddings; the reverse is damage."""
    cut_vocabulary(copy)
    (copy / "tokenizer.json").unlink()
    assert_same(import_model(copy).params, PARAMS)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_are_widened(copy: Path, dtype: Any) -> None:
    rewrite(copy, lambda tensors: {name: x.astype(dtype) for name, x in tensors.items()})
    expected = jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), PARAMS)
    assert_same(import_model(copy).params, expected)


def test_missing_heads_are_reported(copy: Path) -> None:
    def bare(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: x for name, x in tensors.items() if not name.startswith(("cls.", "bert.pooler."))}

    rewrite(copy, bare)
    imported = import_model(copy)
    assert set(imported.params) == {"encoder"}
    assert imported.report.missing == (
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "cls.predictions.transform.dense.weight",
        "cls.predictions.transform.dense.bias",
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.transform.LayerNorm.bias",
        "cls.predictions.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    )


def without(name: str) -> Any:
    return lambda folder: rewrite(folder, lambda tensors: {n: x for n, x in tensors.items() if n != name})


def cut_in_a_piece(folder: Path) -> None:
    """As many lines as pieces; the last line lacks the end of its piece."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["6th"] = content["model"]["vocab"].pop("6")
    (folder / "tokenizer.json").write_text(json.dumps(content))


def cut_before_a_special_token(folder: Path) -> None:
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CL")


def add_line(path: Path) -> None:
    path.write_text(path.read_text() + "one more\n")


def no_vocabulary(folder: Path) -> None:
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").unlink()


def test_a_folder_with_a_tokenizer_json_alone_has_the_same_tokenizer(copy: Path) -> None:
    """Recent versions of transformers write no vocab.txt."""
    before = load(str(copy)).tokenizer
    (copy / "vocab.txt").unlink()
    assert load(str(copy)).tokenizer.sha256 == before.sha256
    (copy / "tokenizer_config.json").unlink()
    assert load(str(copy)).tokenizer.sha256 == before.sha256


def cut_vocabulary(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(TOKENIZER.vocab[:60]) + "\n")


def add_to_json(folder: Path, *names: str) -> None:
    """Add tokens as transformers does: after the vocabulary, in ``added_tokens`` alone."""
    content = json.loads((folder / "tokenizer.json").read_text())
    special = content["added_tokens"][0]
    content["added_tokens"] += [{**special, "id": 64 + i, "content": name} for i, name in enumerate(names)]
    (folder / "tokenizer.json").write_text(json.dumps(content))


def pad_embeddings(folder: Path) -> None:
    def padded(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            n: np.pad(x, ((0, 8), *[(0, 0)] * (x.ndim - 1))) if 64 in x.shape[:1] and "layer" not in n else x
            for n, x in tensors.items()
        }

    rewrite(folder, padded)
    edit_config(folder, vocab_size=72)


@pytest.mark.parametrize("alone", [True, False])
def test_added_tokens_stay_whole_in_and_out(copy: Path, alone: bool) -> None:
    """With a vocab.txt beside it, and without, as old and new versions of transformers save a tokenizer."""
    add_to_json(copy, *(f"<e{i}>" for i in range(8)))
    pad_embeddings(copy)
    if alone:
        (copy / "vocab.txt").unlink()
    workdir = str(copy / "run")
    import_into_workdir(str(copy), workdir)
    export_trained(load(workdir), str(copy / "out"))
    for folder in (str(copy), workdir, str(copy / "out")):
        tokenizer = load(folder).tokenizer
        assert tokenizer.size == 72
        assert tokenizer.encode("a<e0> b <e7>").input_ids[2:5:2] == (64, 71)
    assert not (copy / "run" / "vocab.txt").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", {"<e1>": 64}),
        ("special_tokens_map.json", {"additional_special_tokens": ["<e1>"]}),
        ("special_tokens_map.json", {"additional_special_tokens": [{"content": "<e1>", "lstrip": False}]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"entity_token": "<e1>"}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"0": {"content": "[PAD]"}, "64": {"content": "<e1>"}}}),
        ("tokenizer_config.json", {"bos_token": "[BOS]", "additional_special_tokens": [f"##{'a' * 9}"]}),
    ],
)
def test_added_tokens_are_found_in_every_file_that_names_them(copy: Path, name: str, content: Any) -> None:
    (copy / name).write_text(json.dumps(content))
    pad_embeddings(copy)
    tokenizer = import_model(copy).tokenizer
    assert (tokenizer.size, tokenizer.file_name) == (65, "tokenizer.json")
    assert 64 in tokenizer.encode(f"a{tokenizer.vocab[64]}").input_ids
    if "64" in json.dumps(content):
        cut_vocabulary(copy)
        (copy / "tokenizer.json").unlink()
        with pytest.raises(UserError, match="does not number its 61 pieces from 0 to 60: no piece has the id 60, but"):
            import_model(copy)


@pytest.mark.parametrize(
    ("embeddings", "pieces", "may_be"),
    [
        (30_522, 30_522, True),
        (30_528, 30_522, True),
        (30_720, 30_522, True),
        (30_522, 30_520, False),
        (30_522, 30_528, False),
        (32_768, 30_522, False),
    ],
)
def test_fewer_pieces_than_embeddings(embeddings: int, pieces: int, may_be: bool) -> None:
    """A table that is no round number was not filled up, and nobody fills up by thousands: the file was cut short."""
    assert is_padded(embeddings, pieces) == may_be


def test_rows_without_a_piece_and_lines_without_a_row(copy: Path) -> None:
    """Transformers reads both: any number of spare rows, and blank lines at the end that no row belongs to."""
    (copy / "tokenizer.json").unlink()
    pad_embeddings(copy)
    spare = import_model(copy)
    assert (spare.tokenizer.size, spare.config.vocab_size) == (64, 72)
    assert spare.report is not None
    assert any("8 of the 72 embeddings have no piece" in note for note in spare.report.notes)
    lines = (copy / "vocab.txt").read_text()
    (copy / "vocab.txt").write_text(lines.replace("\n6\n", "\n\n") + "\n" * 20)
    assert import_model(copy).tokenizer.size == 72
    cut = lines.splitlines()[:51]
    (copy / "vocab.txt").write_text("\n".join(cut))
    assert import_model(copy).tokenizer.size == 51
    (copy / "vocab.txt").write_text(lines + "".join(f"more{i}\n" for i in range(9)))
    with pytest.raises(UserError, match="vocab.txt has 73 pieces, the model 72 embeddings"):
        import_model(copy)


def truncate(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])


def only_pickle(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: edit_config(f, model_type="t5"), "is a 't5' model; readable model types: albert, bert"),
        (lambda f: edit_config(f, model_type=["bert"]), r"is a \['bert'\] model; readable model types: albert, bert"),
        (lambda f: edit_config(f, hidden_act="silu"), "hidden_act 'silu'; known: gelu, gelu_new, relu"),
        (lambda f: edit_config(f, position_embedding_type="rel"), "type 'rel'; of the BERT family, only models"),
        (lambda f: edit_config(f, vocab_size="big"), "config.vocab_size is 'big'; expected int"),
        (lambda f: edit_config(f, num_attention_heads=5), "does not divide by num_heads 5"),
        (lambda f: edit_config(f, vocab_size=72), r"word_embeddings.weight is \[64, 32\], config.json says \[72, 32\]"),
        (lambda f: edit_config(f, num_hidden_layers=3), "16 tensors of the encoder are missing, such as bert.enc"),
        (without("bert.embeddings.word_embeddings.weight"), "1 tensors of the encoder are missing"),
        (truncate, "model.safetensors cannot be read .* copy it again"),
        (only_pickle, "pytorch_model.bin is a pickle, .* model.save_pretrained"),
        (lambda f: (f / WEIGHTS).unlink(), "has no model.safetensors; is it a model's folder"),
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json holds no JSON object"),
        (lambda f: (f / "config.json").write_text("{}"), "config.json has no vocab_size"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json holds no JSON object"),
        (no_vocabulary, r"has no tokenizer.json or vocab.txt or spiece.model; save the tokenizer's vocabulary there"),
        (cut_vocabulary, r"vocab.txt has 60 lines, but .*tokenizer.json has 64 pieces, '3' as number 61: one of them"),
        (cut_in_a_piece, r"has '6' on line 64, but .*tokenizer.json has 64 pieces, '6th' as number 64: one of them"),
        (cut_before_a_special_token, r"has '\[CL' on line 3, but .* '\[CLS\]' as number 3: .* copy the whole folder"),
        (lambda f: add_line(f / "vocab.txt"), "has 'one more' on line 65, but tokenizer.json has 64 pieces: one"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(copy: Path, spoil: Any, message: str) -> None:
    spoil(copy)
    with pytest.raises(UserError, match=message) as error:
        import_model(copy)
    assert "\n" not in str(error.value)
