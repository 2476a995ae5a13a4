"""Every class of every family: written, read again, the same bits; and what its own files say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
from flax import linen as nn
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError
from bert_jax.features.trained_model import TrainedModel
from bert_jax.interchange.architectures import HeadClass, config_fields, of_facts, of_pretraining
from bert_jax.interchange.family import families, family_of
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.models.heads import Classifier
from bert_jax.models.model import Model, Part, config_facts, encoder_file, fresh_params
from bert_jax.objectives import replaced_tokens
from bert_jax.text.tokenizer import of_json
from tests.interchange.heads import TAGS, TOKENIZER
from tests.interchange.numpy_models import assert_same_outputs
from tests.interchange.test_sentencepiece_models import TOKENIZER as SENTENCEPIECE
from tests.text.byte_level_files import roberta

CLASSES = [  # those of left-to-right models are in test_heads.py
    (name, ending)
    for name, family in sorted(families().items())
    for ending in family.classes
    if ending != family.causal
]
BYTE_BPE = of_json(roberta())
LABELS = {"ForSequenceClassification": ("no", "yes", "maybe"), "ForTokenClassification": TAGS}


def config_of(encoder: str) -> Any:
    """Return a tiny config; a ModernBERT has two local layers, whose window is shorter than the rows of the tests."""
    more = {"num_layers": 4, "local_attention": 6} if encoder == "modernbert" else {}
    return encoder_file(encoder).Config(
        TOKENIZER.size, 32, num_heads=4, mlp_dim=64, max_length=32, **{"num_layers": 2, **more}
    )


def head_of(encoder: str, ending: str) -> HeadClass:
    problem = "single_label_classification" if ending == "ForSequenceClassification" else None
    return HeadClass(f"{family_of(encoder).name}{ending}", LABELS.get(ending, ()), problem)  # type: ignore[arg-type]


def params_of(config: Any, head: HeadClass) -> Any:
    """Every parameter from N(0, 0.2), gains around 1."""
    last = {"classifier": head.num_outputs, "qa_outputs": 2, "sop_head": 2}
    parts = tuple(Part.of(name, Classifier, num_outputs=n, vectors="sequence") for name, n in last.items())
    ids = np.ones((1, 4), np.int32)
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": ids}
    above = jax.eval_shape(lambda: nn.unbox(Model(config, parts).init(jax.random.key(0), batch))["params"])
    shapes = {**above, **jax.eval_shape(lambda: fresh_params(config))}
    shapes["token_head"] = shapes["pooler"]
    if config.encoder == "electra":
        module = Model(config, (replaced_tokens.DISCRIMINATOR,))
        shapes |= jax.eval_shape(lambda: nn.unbox(module.init(jax.random.key(0), batch))["params"])
    rng = np.random.default_rng(0)

    def draw(path: Any, leaf: Any) -> np.ndarray:
        return (rng.normal(0.0, 0.2, leaf.shape) + (path[-1].key == "scale")).astype(leaf.dtype)

    drawn = jax.tree_util.tree_map_with_path(draw, shapes)
    return {name: tree for name, tree in drawn.items() if name in head.parts}


@pytest.mark.parametrize(("encoder", "ending"), CLASSES, ids=lambda value: value)
def test_there_and_back(tmp_path: Path, encoder: str, ending: str) -> None:
    config, head = config_of(encoder), head_of(encoder, ending)
    params = params_of(config, head)
    export_model(TrainedModel("", params, config, TOKENIZER, head), tmp_path / "model", "card")
    read = import_model(tmp_path / "model")
    assert (read.head, read.config, read.report.missing) == (head, config, ())
    jax.tree.map(np.testing.assert_array_equal, read.params, params)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    assert_same_outputs(tensors, params, config, head)
    described = json.loads((tmp_path / "model" / "config.json").read_text())
    assert described["model_type"] == encoder
    assert described["architectures"] == [head.architecture]
    from tests import floor  # it draws its models by the functions above

    wanted = json.loads(floor.FILE.read_text())[f"export {encoder} {ending}"]
    assert floor.arrays(tensors) == wanted


def test_positions_of_roberta_are_counted_from_after_the_padding(tmp_path: Path) -> None:
    """Rows of their table before the first position in use are not ours."""
    config, head = config_of("roberta"), head_of("roberta", "ForMaskedLM")
    params = params_of(config, head)
    export_model(TrainedModel("", params, config, TOKENIZER, head), tmp_path / "model", "card")
    described = json.loads((tmp_path / "model" / "config.json").read_text())
    assert described["max_position_embeddings"] == config.max_length + TOKENIZER.pad_id + 1
    assert described["type_vocab_size"] == 1
    assert described["layer_norm_eps"] == 1e-5


def test_a_distilbert_of_transformers_has_a_second_copy_of_its_word_embeddings(tmp_path: Path) -> None:
    """It is read past if it is one, and refused if it is another table."""
    config, head = config_of("distilbert"), head_of("distilbert", "ForMaskedLM")
    params, folder = params_of(config, head), tmp_path / "model"
    export_model(TrainedModel("", params, config, TOKENIZER, head), folder, "card")
    (folder / "SHA256SUMS").unlink()
    tensors = load_file(folder / "model.safetensors")
    assert "vocab_projector.bias" in tensors
    words = tensors["distilbert.embeddings.word_embeddings.weight"]
    save_file(tensors | {"vocab_projector.weight": words}, folder / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, import_model(folder).params, params)
    save_file(tensors | {"vocab_projector.weight": words + 1}, folder / "model.safetensors")
    with pytest.raises(UserError, match="has an MLM decoder that is not its word embeddings"):
        import_model(folder)


def test_albert_is_read_where_its_layers_are_all_one() -> None:
    family, config = family_of("albert"), config_of("albert")
    described = family.to_config(config, TOKENIZER.pad_id)
    assert (described["embedding_size"], described["num_hidden_groups"], described["inner_group_num"]) == (128, 1, 1)
    assert described["hidden_act"] == "gelu_new"
    del described["hidden_act"], described["num_hidden_groups"], described["inner_group_num"]
    assert family.from_config(described, "folder") == config  # as transformers takes what is not there
    for field in ("num_hidden_groups", "inner_group_num"):
        with pytest.raises(
            UserError, match=f"^folder/config.json has {field} 2; of the ALBERT family, only models with 1 can be read"
        ):
            family.from_config(described | {field: 2}, "folder")
    head = HeadClass("AlbertForSequenceClassification", ("no", "yes"), classifier_dropout=0.2)
    assert config_fields(head)["classifier_dropout_prob"] == 0.2
    assert "classifier_dropout_prob" not in config_fields(dataclasses.replace(head, classifier_dropout=None))


@pytest.mark.parametrize("tokenizer", [TOKENIZER, BYTE_BPE, SENTENCEPIECE], ids=["wordpiece", "byte_bpe", "unigram"])
@pytest.mark.parametrize(
    ("name", "fields", "types"), [("roberta", {}, 1), ("bert", {"type_vocab_size": 1}, 1), ("bert", {}, 2)]
)
def test_an_exported_tokenizer_makes_no_type_that_the_model_lacks(
    tmp_path: Path, tokenizer: Any, name: str, fields: Any, types: int
) -> None:
    config = dataclasses.replace(config_of(name), vocab_size=tokenizer.size, **fields)
    write_tokenizer(tmp_path, config, tokenizer)
    pair = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("the cat", "the dog")
    expected = tokenizer.encode("the cat", "the dog")
    assert tuple(pair.ids) == expected.input_ids
    assert tuple(pair.type_ids) == (expected.token_type_ids if types > 1 else (0,) * len(pair.ids))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    default = ["token_type_ids"] if settings["tokenizer_class"] == "BertTokenizer" else []
    assert ("token_type_ids" in settings.get("model_input_names", default)) == (types > 1)


def with_tasks(folder: Path, row: Any) -> np.ndarray:
    """Write a random ErnieModel with three task embeddings, the first of which is ``row``; its word vectors."""
    config, head = config_of("ernie"), head_of("ernie", "Model")
    export_model(TrainedModel("", params_of(config, head), config, TOKENIZER, head), folder, "card")
    tensors = load_file(folder / "model.safetensors")
    tasks = np.random.default_rng(1).normal(0.0, 0.2, (3, config.hidden_size)).astype(np.float32)
    tasks[0] += row
    save_file(tensors | {"embeddings.task_type_embeddings.weight": tasks}, folder / "model.safetensors")
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"use_task_id": True, "task_type_vocab_size": 3}))
    (folder / "SHA256SUMS").unlink()
    (folder / "README.md").unlink()
    return tasks


def test_an_ernie_with_task_ids_has_task_0_in_its_token_types(tmp_path: Path) -> None:
    tasks = with_tasks(tmp_path / "model", 1.0)
    raw = load_file(tmp_path / "model" / "model.safetensors")
    read = import_model(tmp_path / "model")
    found = read.params["encoder"]["embeddings"]["token_type_embeddings"]
    np.testing.assert_array_equal(found, raw["embeddings.token_type_embeddings.weight"] + tasks[0])
    assert read.report.missing == ()
    assert_same_outputs(raw, read.params, read.config, read.head)
    assert "embedding of task 0 is added to each token type" in read.report.line
    export_model(TrainedModel("", read.params, read.config, TOKENIZER, read.head), tmp_path / "again", "card")
    assert not json.loads((tmp_path / "again" / "config.json").read_text()).get("use_task_id")


def test_no_tensor_is_dropped(tmp_path: Path) -> None:
    with_tasks(tmp_path, 0.0)
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | {"use_task_id": False}))
    with pytest.raises(UserError, match=r"1 tensors have no place in the ErnieModel .*: ernie.embeddings.task_type"):
        import_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(described | {"num_hidden_layers": 1}))
    with pytest.raises(UserError, match=r"16 tensors have no place .*: ernie.encoder.layer.1.* and 11 more \(tr"):
        import_model(tmp_path)


def test_the_class_of_what_was_trained() -> None:
    bert, roberta = config_of("bert"), config_of("roberta")
    assert of_pretraining(bert, ("pooler", "mlm_head", "nsp_head")) == "BertForPreTraining"
    assert of_pretraining(bert, ("mlm_head",)) == "BertForMaskedLM"
    assert of_pretraining(bert, ("pooler", "mlm_head", "sop_head")) == "BertForMaskedLM"
    assert of_pretraining(config_of("albert"), ("pooler", "mlm_head", "sop_head")) == "AlbertForPreTraining"
    assert of_pretraining(config_of("albert"), ("pooler", "mlm_head", "nsp_head")) == "AlbertForMaskedLM"
    assert of_pretraining(roberta, ("pooler", "mlm_head", "nsp_head")) == "RobertaForMaskedLM"
    assert of_pretraining(dataclasses.replace(bert, attention="causal"), ("mlm_head",)) == "BertLMHeadModel"
    task = {"model": config_facts(roberta), "task": {"name": "tagging"}, "labels": ["O", "B-X"]}
    assert of_facts(task) == HeadClass("RobertaForTokenClassification", ("O", "B-X"))
    assert (
        of_facts({"model": {"vocab_size": 8}, "task": {"name": "span_qa"}}).architecture == "BertForQuestionAnswering"
    )


def test_an_encoder_that_transformers_does_not_have_is_an_error() -> None:
    with pytest.raises(
        UserError,
        match="the encoder 'own' cannot be exported: transformers has no class for it.* bert, distilbert, electra",
    ):
        family_of("own")
