"""Every head out and back; what a file calls itself, lacks or has too much of; damaged files."""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError
from bert_jax.interchange import names, tensors
from bert_jax.interchange.architectures import HeadClass, of_pretraining
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.tensors import INDEX, WEIGHTS
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.interchange.workdir import import_into_workdir
from tests.interchange import test_families as families
from tests.interchange.heads import CONFIG, HEADS, TOKENIZER, assert_same, params_of
from tests.interchange.numpy_models import assert_same_outputs


def edit_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    changed = {name: value for name, value in (config | fields).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(changed))


def rewrite(folder: Path, change: Any) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


@pytest.mark.parametrize("name", HEADS)
def test_what_goes_out_comes_back(exports: Path, name: str) -> None:
    imported = import_model(exports / name)
    assert_same(imported.params, params_of(HEADS[name], CONFIG))
    assert (imported.head, imported.config) == (HEADS[name], CONFIG)
    assert imported.report.missing == ()


@pytest.mark.parametrize("name", [name for name in HEADS if name != "multiple_choice"])
def test_the_tensors_tell_the_class_where_the_config_does_not(copy_of: Any, name: str) -> None:
    folder = copy_of(name)
    edit_config(folder, architectures=..., problem_type=...)
    assert import_model(folder).head == HEADS[name]


def test_every_class_has_its_own_names(exports: Path) -> None:
    """As transformers names them; nothing else is in the files."""
    heads = {name: {n for n in load_file(exports / name / WEIGHTS) if not n.startswith("bert.")} for name in HEADS}
    assert heads.pop("encoder") == {
        n.removeprefix("bert.") for n in load_file(exports / "pretraining" / WEIGHTS) if n.startswith("bert.")
    }
    last = {"classifier.weight", "classifier.bias"}
    for name in ("classification", "regression", "tagging", "multiple_choice"):
        assert heads[name] == last
    assert heads["span_qa"] == {"qa_outputs.weight", "qa_outputs.bias"}
    with_pooler = {n for n in HEADS if any("pooler" in t for t in load_file(exports / n / WEIGHTS))}
    assert with_pooler == {
        "encoder", "pretraining", "next_sentence", "classification", "regression", "multiple_choice"
    }  # fmt: skip


def test_labels_and_the_kind_of_problem_are_written(exports: Path) -> None:
    config = json.loads((exports / "classification" / "config.json").read_text())
    assert config["id2label"] == {"0": "no", "1": "yes", "2": "été"}
    assert config["label2id"] == {"no": 0, "yes": 1, "été": 2}
    assert (config["problem_type"], config["classifier_dropout"]) == ("single_label_classification", 0.25)
    number = json.loads((exports / "regression" / "config.json").read_text())
    assert (number["id2label"], number["problem_type"]) == ({"0": "LABEL_0"}, "regression")


def test_a_report_counts_tensors_and_names_what_is_left_out(exports: Path, tmp_path: Path) -> None:
    head = HEADS["masked_lm"]
    params = params_of(HEADS["pretraining"], CONFIG)
    report = export_model(TrainedModel("", params, CONFIG, TOKENIZER, head), tmp_path / "out", "card")
    assert sorted(report.tensors) == sorted(load_file(tmp_path / "out" / WEIGHTS))
    assert report.unused == ("nsp_head", "pooler")
    text = str(report)
    assert "left out: pooler" in text
    assert "checked: read back, every parameter has the same bits" in text
    assert f": {len(report.tensors)} tensors; " in text


def test_shards_go_out_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = params_of(HEADS["tagging"], CONFIG)
    monkeypatch.setattr(tensors, "MAX_SHARD_BYTES", 20_000)
    export_model(TrainedModel("", params, CONFIG, TOKENIZER, HEADS["tagging"]), tmp_path / "out", "card")
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) > 3
    assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    sizes = [sum(x.nbytes for x in load_file(tmp_path / "out" / shard).values()) for shard in shards]
    assert max(sizes) <= 20_000
    assert sum(sizes) == index["metadata"]["total_size"]
    assert not (tmp_path / "out" / WEIGHTS).exists()
    assert_same(import_model(tmp_path / "out").params, params)


def test_pooling_files(tmp_path: Path, exports: Path) -> None:
    params = params_of(HEADS["encoder"], CONFIG)
    export_model(TrainedModel("", params, CONFIG, TOKENIZER, HEADS["encoder"]), tmp_path / "out", "card", "cls")
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling"]
    pooling = json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == 32
    assert {mode for mode, on in pooling.items() if on is True} == {"pooling_mode_cls_token"}
    assert not (exports / "encoder" / "modules.json").exists()
    with pytest.raises(
        UserError, match="only an encoder without heads can have pooling files, this is a BertForMaskedLM"
    ):
        export_model(TrainedModel("", params, CONFIG, TOKENIZER, HEADS["masked_lm"]), tmp_path / "no", "card", "mean")


def test_a_part_that_is_not_there_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"no pooler, classifier, which BertForSequenceC.* \(it has: encoder, mlm_head\)"
    ):
        export_model(
            TrainedModel("", params_of(HEADS["masked_lm"], CONFIG), CONFIG, TOKENIZER, HEADS["classification"]),
            tmp_path / "x",
            "card",
        )
    assert list(tmp_path.iterdir()) == []


def test_what_transformers_has_no_class_for_is_refused(tmp_path: Path) -> None:
    params = params_of(HEADS["masked_lm"], CONFIG)
    for config, tree, what in (
        (causal(families.config_of("albert")), params, "no class of the ALBERT family that reads from left"),
        (CONFIG, params | {"bilstm": {}}, "no class with a BiLSTM"),
    ):
        model = TrainedModel("here", tree, config, TOKENIZER, families.head_of(config.encoder, "ForMaskedLM"))
        with pytest.raises(UserError, match=f"the model of here cannot be exported: transformers has {what}"):
            export_model(model, tmp_path / "x", "card")


def causal(config: Any) -> Any:
    return dataclasses.replace(config, attention="causal")


@pytest.mark.parametrize(
    ("encoder", "name"),
    [("bert", "BertLMHeadModel"), ("roberta", "RobertaForCausalLM"), ("ernie", "ErnieForCausalLM")],
)
def test_a_left_to_right_model_stays_one(encoder: str, name: str, tmp_path: Path) -> None:
    config = causal(families.config_of(encoder))
    head = HeadClass(of_pretraining(config, ("mlm_head",)))
    params = families.params_of(config, head)
    export_model(TrainedModel("", params, config, TOKENIZER, head), tmp_path / "model", "card")
    described = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (described["architectures"], described["is_decoder"]) == ([name], True)
    imported = import_model(tmp_path / "model")
    assert (imported.config, imported.head) == (config, head)
    assert_same(imported.params, params)


def test_a_pooler_that_reads_another_token_is_refused(copy_of: Any, tmp_path: Path) -> None:
    what, head = "we pool the last token, and the pooler of BertForSequenceClassification", HEADS["classification"]
    params = params_of(head, CONFIG)
    with pytest.raises(UserError, match=f"cannot be exported: .* {what}"):
        export_model(TrainedModel("", params, causal(CONFIG), TOKENIZER, head), tmp_path / "x", "card")
    folder = copy_of("classification")
    edit_config(folder, is_decoder=True)
    with pytest.raises(UserError, match=f"cannot be read: .* {what}"):
        import_model(folder)
    tagging = HEADS["tagging"]
    model = TrainedModel("", params_of(tagging, CONFIG), causal(CONFIG), TOKENIZER, tagging)
    export_model(model, tmp_path / "tags", "card")
    described = json.loads((tmp_path / "tags" / "config.json").read_text())
    assert (described["architectures"], described["is_decoder"]) == (["BertForTokenClassification"], True)
    assert import_model(tmp_path / "tags").config.causal


def test_published_masked_lms_keep_pooler_and_next_sentence_head(copy_of: Any) -> None:
    folder = copy_of("pretraining")
    edit_config(folder, architectures=["BertForMaskedLM"])
    imported = import_model(folder)
    assert_same(imported.params, params_of(HEADS["pretraining"], CONFIG))
    assert imported.report.missing == ()


def test_a_head_that_lacks_a_tensor_is_refused(copy_of: Any) -> None:
    folder = copy_of("classification")
    rewrite(folder, lambda t: {n: x for n, x in t.items() if n not in ("classifier.bias", "bert.pooler.dense.weight")})
    both = "1 tensors of the pooler are missing, such as bert.pooler.dense.weight; 1 tensors of the classifier"
    with pytest.raises(UserError, match=both):
        import_model(folder)


def test_a_pooler_that_a_text_classifier_of_roberta_ignores_is_read_past(tmp_path: Path) -> None:
    """Older versions of transformers saved it beside the classifier's own."""
    config, head = families.config_of("roberta"), families.head_of("roberta", "ForSequenceClassification")
    params = families.params_of(config, head)
    export_model(TrainedModel("", params, config, TOKENIZER, head), tmp_path, "card", into=contextlib.nullcontext)
    (tmp_path / "SHA256SUMS").unlink()
    (tmp_path / "README.md").unlink()
    pooler = {
        f"roberta.pooler.dense.{name}": np.ones((32,) * axes, np.float32) for name, axes in (("weight", 2), ("bias", 1))
    }
    rewrite(tmp_path, lambda tensors: tensors | pooler)
    assert_same(import_model(tmp_path).params, params)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("tagging", {"id2label": {"0": "O", "1": "B"}}, "the classifier has 4 outputs, config.json names 2 labels"),
        ("tagging", {"id2label": {"0": "O", "1": "B", "2": "I", "7": "X"}}, "4 outputs, .* names 4 labels"),
        ("tagging", {"id2label": dict.fromkeys("0123", "O")}, "gives two labels the same name"),
        ("tagging", {"id2label": {"a": "O"}}, "id2label does not map numbers to names"),
        ("classification", {"problem_type": "guessing"}, "problem_type 'guessing'"),
        ("classification", {"classifier_dropout": "much"}, "classifier_dropout 'much'"),
        ("span_qa", {"architectures": ["RobertaForQuestionAnswering"]}, "is RobertaForQuestion.*; readable: Bert"),
        ("masked_lm", {"add_cross_attention": True}, "has add_cross_attention True; of the BERT family, only models"),
        ("masked_lm", {"pruned_heads": {"0": [1]}}, r"has pruned_heads {'0': \[1\]}; of the BERT family"),
        ("masked_lm", {"rope": 1e4, "auto_map": {"A": "own.py"}, "x": None}, r"family: rope = 10000.0, auto_map ="),
        ("encoder", {"hidden_size": 64}, r"word_embeddings.weight is \[64, 32\], config.json says \[64, 64\]"),
        ("encoder", {"model_type": "bart"}, "is a 'bart' model; readable model types: albert, bert, distilbert"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(copy_of: Any, name: str, fields: Any, message: str, tmp_path: Path) -> None:
    folder = copy_of(name)
    edit_config(folder, **fields)
    with pytest.raises(UserError, match=message):
        import_into_workdir(str(folder), str(tmp_path / "workdir"))
    assert not (tmp_path / "workdir").exists()


def test_names_of_labels_come_from_either_table_or_are_made(copy_of: Any) -> None:
    folder = copy_of("tagging")
    edit_config(folder, id2label=...)
    assert import_model(folder).head == HEADS["tagging"]
    edit_config(folder, label2id=...)
    assert import_model(folder).head.labels == ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")


@pytest.mark.parametrize("mistake", ["transposed", "exchanged", "shifted"])
def test_the_numpy_model_finds_a_wrong_map(exports: Path, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    """A mistake in the map of names changes the outputs, even if all shapes fit."""
    right = names.to_ours

    def wrong(array: np.ndarray, entry: names.Entry, shape: tuple[int, ...]) -> np.ndarray:
        if mistake == "transposed" and entry.ours == "encoder/layer_1/attention/value/kernel":
            array = array.T
        if mistake == "exchanged" and entry.ours == "encoder/layer_0/mlp_layer_norm/scale":
            array = array[::-1]
        if mistake == "shifted" and entry.ours == "classifier/dense/bias":
            array = np.roll(array, 1)
        return right(array, entry, shape)

    monkeypatch.setattr(names, "to_ours", wrong)
    imported = import_model(exports / "classification")
    tensors = load_file(exports / "classification" / WEIGHTS)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same_outputs(tensors, imported.params, CONFIG, imported.head)


def test_a_damaged_file_never_ends_in_a_traceback(copy_of: Any) -> None:
    """Cut at any place or with a flipped bit: one clear error, or (a bit of a value) another finite model."""
    folder = copy_of("span_qa")
    whole = (folder / WEIGHTS).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(0)
    refused = []
    for end in (0, 5, 8, header // 2, header, header + 1, len(whole) - 1):
        (folder / WEIGHTS).write_bytes(whole[:end])
        with pytest.raises(UserError):
            import_model(folder)
    for place in [*rng.integers(0, header, 20), *rng.integers(header, len(whole), 4)]:
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << rng.integers(0, 8)
        (folder / WEIGHTS).write_bytes(spoilt)
        try:
            import_model(folder)
        except UserError as error:
            refused.append(str(error))
    assert len(refused) >= 17
    assert not [message for message in refused if "\n" in message]


def test_values_that_are_no_numbers_are_refused(copy_of: Any) -> None:
    folder = copy_of("encoder")

    def spoil(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors["pooler.dense.bias"][3] = np.nan
        return tensors

    rewrite(folder, spoil)
    with pytest.raises(UserError, match="1 tensors hold values that are not finite numbers, such as pooler.dense.bias"):
        import_model(folder)
