"""Every class of every family: written, read again, the same bits; and what its own files say."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
from flax import linen as nn
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError
from bert_jax.interchange.architectures import HeadClass, config_fields, of_facts, of_pretraining
from bert_jax.interchange.family import families, family_of
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.heads import Classifier
from bert_jax.models.model import Model, Part, config_facts, encoder_file, fresh_params
from bert_jax.objectives import replaced_tokens
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.tokenizer import of_json
from tests.interchange.heads import TAGS, TOKENIZER
from tests.interchange.numpy_models import assert_same_outputs
from tests.interchange.outputs import module_outputs
from tests.interchange.test_sentencepiece_models import TOKENIZER as SENTENCEPIECE
from tests.text.byte_level_files import roberta

CLASSES = [  # classes of left-to-right models are in test_heads.py
    (name, ending)
    for name, family in sorted(families().items())
    for ending in family.classes
    if ending != family.causal
]
BYTE_BPE = of_json(roberta())
LEARNED = learn_byte_bpe(["the cat sees the dog"] * 9, 280)
# encoder -> names of the decoder, of the word embeddings and of the decoder's bias in transformers.
DECODERS = {
    "albert": ("predictions.decoder", "albert.embeddings.word_embeddings.weight", "predictions.decoder.bias"),
    "bert": ("cls.predictions.decoder", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.bias"),
    "distilbert": ("vocab_projector", "distilbert.embeddings.word_embeddings.weight", "vocab_projector.bias"),
    "electra": ("generator_lm_head", "electra.embeddings.word_embeddings.weight", "generator_lm_head.bias"),
    "ernie": ("cls.predictions.decoder", "ernie.embeddings.word_embeddings.weight", "cls.predictions.decoder.bias"),
    "modernbert": ("decoder", "model.embeddings.tok_embeddings.weight", "decoder.bias"),
    "roberta": ("lm_head.decoder", "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.bias"),
    "xlnet": ("lm_loss", "transformer.word_embedding.weight", "lm_loss.bias"),
}
# Of the piece at position 20, by ModernBertForMaskedLM of transformers 4.57.6; with a base of 10,000 -2.2241, -0.3697.
LOGITS_OF_VERSION_4 = (-2.25635123, -0.37492716, 1.04301667)
LABELS = {"ForSequenceClassification": ("no", "yes", "maybe"), "ForTokenClassification": TAGS}


def config_of(encoder: str) -> Any:
    """Return a tiny config; a ModernBERT has two local layers, whose window is shorter than the rows of the tests."""
    own = {
        "modernbert": {"num_layers": 4, "local_attention": 6},
        "gpt": {"mlp_dim": 128},
        "xlnet": {"memory_length": 8, "reuse_length": 4, "attention_dropout_rate": 0.0},
    }
    fields = {"num_layers": 2, "mlp_dim": 64, "max_length": 32, **own.get(encoder, {})}
    return encoder_file(encoder).Config(TOKENIZER.size, 32, num_heads=4, **fields)


def head_of(encoder: str, ending: str) -> HeadClass:
    problem = "single_label_classification" if ending == "ForSequenceClassification" else None
    name = family_of(encoder).class_name(ending)
    return HeadClass(name, LABELS.get(ending, ()), problem)  # type: ignore[arg-type]


@functools.cache
def shapes_of(config: Any) -> Any:
    """Return the shapes of the parameters of every head; a classifier has one output."""
    last = {"classifier": 1, "qa_outputs": 2, "sop_head": 2}
    parts = tuple(Part.of(name, Classifier, num_outputs=n, vectors="sequence") for name, n in last.items())
    ids = np.ones((1, 4), np.int32)
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": ids}
    above = jax.eval_shape(lambda: nn.unbox(Model(config, parts).init(jax.random.key(0), batch))["params"])
    shapes = {**above, **jax.eval_shape(lambda: fresh_params(config))}
    if "pooler" in shapes:  # the pooler of a GPT has no parameters
        shapes["token_head"] = shapes["pooler"]
    if config.encoder == "electra":
        module = Model(config, (replaced_tokens.DISCRIMINATOR,))
        shapes |= jax.eval_shape(lambda: nn.unbox(module.init(jax.random.key(0), batch))["params"])
    return shapes


def params_of(config: Any, head: HeadClass) -> Any:
    """Every parameter from N(0, 0.2), gains around 1."""
    rng = np.random.default_rng(0)

    def draw(path: Any, leaf: Any) -> np.ndarray:
        shape = (*leaf.shape[:-1], head.num_outputs) if path[0].key == "classifier" else leaf.shape
        return (rng.normal(0.0, 0.2, shape) + (path[-1].key == "scale")).astype(leaf.dtype)

    drawn = jax.tree_util.tree_map_with_path(draw, shapes_of(config))
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
    assert described["model_type"] == family_of(encoder).model_type
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


@pytest.mark.parametrize("encoder", DECODERS)
def test_a_decoder_is_a_second_copy_of_the_word_embeddings(tmp_path: Path, encoder: str) -> None:
    """It is read past if it is one. If it is another table, or missing though nothing is tied, the file is refused."""
    config, head = config_of(encoder), head_of(encoder, "ForMaskedLM")
    params, folder = params_of(config, head), tmp_path / "model"
    export_model(TrainedModel("", params, config, TOKENIZER, head), folder, "card")
    (folder / "SHA256SUMS").unlink()
    tensors = load_file(folder / "model.safetensors")
    decoder, table, bias = DECODERS[encoder]
    words, own = tensors[table], {bias} & tensors.keys()
    described = json.loads((folder / "config.json").read_text())
    for tied in (True, False):
        (folder / "config.json").write_text(json.dumps(described | {"tie_word_embeddings": tied}))
        save_file(tensors | {f"{decoder}.weight": words}, folder / "model.safetensors")
        jax.tree.map(np.testing.assert_array_equal, import_model(folder).params, params)
        save_file(tensors | {f"{decoder}.weight": words + 1}, folder / "model.safetensors")
        with pytest.raises(UserError, match="has an MLM decoder that is not its word embeddings"):
            import_model(folder)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=f"says tie_word_embeddings false, but there is no {decoder}.weight; set it to"):
        import_model(folder)
    (folder / "config.json").write_text(json.dumps(described))
    jax.tree.map(np.testing.assert_array_equal, import_model(folder).params, params)
    if not own:  # its bias has another name than the decoder's
        save_file(tensors | {bias: np.ones(len(words), np.float32)}, folder / "model.safetensors")
        with pytest.raises(UserError, match=f"has {bias} and .*bias, which differ; keep the one with which"):
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


TOKENIZERS = {  # name -> tokenizer, ids of its first, last and padding piece, what a file says of a space before all
    "wordpiece": (TOKENIZER, 2, 3, 0, None),
    "byte_bpe": (BYTE_BPE, 0, 2, 1, False),
    "learned": (LEARNED, 0, 2, 1, True),
    "unigram": (SENTENCEPIECE, 2, 3, 0, None),
}


@pytest.mark.parametrize(
    ("encoder", "name"),
    [(e, n) for e in DECODERS for n in TOKENIZERS if n == "byte_bpe" or e in ("bert", "roberta")],
)
def test_an_export_says_the_ids_of_its_own_tokenizer(tmp_path: Path, encoder: str, name: str) -> None:
    """Without them, transformers takes the ids of a published model, such as 50,281 as the first of a ModernBERT."""
    tokenizer, begin, end, pad, space = TOKENIZERS[name]
    config, head = dataclasses.replace(config_of(encoder), vocab_size=tokenizer.size), head_of(encoder, "Model")
    params = params_of(config, head)
    export_model(TrainedModel("", params, config, tokenizer, head), tmp_path, "card", into=contextlib.nullcontext)
    described = json.loads((tmp_path / "config.json").read_text())
    ids = {"bos": begin, "cls": begin, "eos": end, "sep": end, "pad": pad}
    assert {name: described[f"{name}_token_id"] for name in ids} == ids
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings.get("add_prefix_space") is space  # or transformers 4 puts none there


def test_a_roberta_whose_padding_is_not_that_of_its_tokenizer_is_refused(tmp_path: Path) -> None:
    config, head = config_of("roberta"), head_of("roberta", "Model")
    export_model(TrainedModel("", params_of(config, head), config, TOKENIZER, head), tmp_path / "model", "card")
    (tmp_path / "model" / "SHA256SUMS").unlink()
    path = tmp_path / "model" / "config.json"
    described = json.loads(path.read_text())
    for said, message in ((1, "has pad_token_id 1, the tokenizer 0; positions of"), (None, "pad_token_id None; pos")):
        path.write_text(json.dumps(described | {"pad_token_id": said}))
        with pytest.raises(UserError, match=message):
            import_model(tmp_path / "model")
    del described["pad_token_id"]  # 1 in transformers
    path.write_text(json.dumps(described))
    with pytest.raises(UserError, match="has pad_token_id 1, the tokenizer 0; .* give both the id with which the"):
        import_model(tmp_path / "model")


@pytest.fixture
def modern(tmp_path: Path) -> Path:
    """A ModernBertForMaskedLM, with the keys of transformers 4 alone."""
    config, head = config_of("modernbert"), head_of("modernbert", "ForMaskedLM")
    export_model(TrainedModel("", params_of(config, head), config, TOKENIZER, head), tmp_path / "model", "card")
    (tmp_path / "model" / "SHA256SUMS").unlink()
    edit(tmp_path / "model", rope_parameters=None, layer_types=None)
    return tmp_path / "model"


def edit(folder: Path, **keys: Any) -> None:
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | keys))


def test_null_as_the_base_of_local_layers_is_that_of_global_ones(modern: Path) -> None:
    edit(modern, local_rope_theta=None)
    read = import_model(modern)
    assert (read.config.global_theta, read.config.local_theta) == (160_000.0, 160_000.0)
    ids = (np.arange(24, dtype=np.int32) % 50 + 5)[None]
    rows = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": 0 * ids + 1}
    found = module_outputs(read.params, read.config, rows, read.head)["mlm_logits"]
    np.testing.assert_allclose(found[0, 20, :3], LOGITS_OF_VERSION_4, atol=2e-5)


def test_a_modernbert_without_a_bias_of_its_decoder(modern: Path) -> None:
    before = import_model(modern).params
    edit(modern, decoder_bias=False, mlp_dropout=0.1)
    with pytest.raises(
        UserError, match="decoder_bias false in config.json and a decoder.bias; set it to true or remove"
    ):
        import_model(modern)
    tensors = load_file(modern / "model.safetensors")
    del tensors["decoder.bias"]
    save_file(tensors, modern / "model.safetensors")
    read = import_model(modern)
    before["mlm_head"]["output_bias"][:] = 0
    jax.tree.map(np.testing.assert_array_equal, read.params, before)
    assert "mlp_dropout 0.1 is not used" in read.report.line
    assert "the bias of the decoder begins with zeros" in read.report.line
    for key in ("decoder_bias", "mlp_dropout"):
        edit(modern, **{key: None})
        with pytest.raises(UserError, match=f"has {key} None; "):
            import_model(modern)
        edit(modern, **{key: False})


def test_an_activation_is_blamed_by_its_own_key(modern: Path) -> None:
    edit(modern, hidden_activation="silu")
    with pytest.raises(UserError, match="has hidden_activation 'silu'; known: gelu, gelu_new, relu"):
        import_model(modern)
    edit(modern, hidden_activation="gelu_new", classifier_activation="gelu_pytorch_tanh")
    assert import_model(modern).config.activation == "gelu_tanh"
    edit(modern, classifier_activation="silu")
    with pytest.raises(UserError, match="has classifier_activation 'silu'; only 'gelu_new', as in the layers, can"):
        import_model(modern)
    described = json.loads((modern / "config.json").read_text())
    del described["classifier_activation"]
    (modern / "config.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match="has classifier_activation 'gelu' by default; only 'gelu_new', as in the lay"):
        import_model(modern)


def test_a_class_is_not_guessed_where_two_have_the_same_tensors(modern: Path) -> None:
    """A text and a token classifier of ModernBERT; a number of another type is blamed by its name before."""
    config, head = config_of("modernbert"), head_of("modernbert", "ForSequenceClassification")
    export_model(TrainedModel("", params_of(config, head), config, TOKENIZER, head), modern / "a", "card")
    (modern / "a" / "SHA256SUMS").unlink()
    edit(modern / "a", architectures=None)
    with pytest.raises(UserError, match="names no class, and the tensors are .*; add (.*), or the other") as error:
        import_model(modern / "a")
    advised = re.search("add (.*), or the other", str(error.value))
    edit(modern / "a", **json.loads("{" + (advised[1] if advised else "") + "}"))
    assert import_model(modern / "a").head == head
    for value in ({"a": 1}, [3], True):
        edit(modern / "a", global_attn_every_n_layers=value)
        with pytest.raises(UserError, match="config.json does not describe .*global_every"):
            import_model(modern / "a")


def with_tasks(folder: Path) -> np.ndarray:
    """Write a random ErnieModel with three task embeddings, which transformers does not name; the embeddings."""
    config, head = config_of("ernie"), head_of("ernie", "Model")
    export_model(TrainedModel("", params_of(config, head), config, TOKENIZER, head), folder, "card")
    tensors = load_file(folder / "model.safetensors")
    tasks = np.random.default_rng(1).normal(0.0, 0.2, (3, config.hidden_size)).astype(np.float32)
    save_file(tensors | {"embeddings.task_type_embeddings.weight": tasks}, folder / "model.safetensors")
    described = json.loads((folder / "config.json").read_text())
    assert not {"use_task_id", "task_type_vocab_size"} & described.keys()
    (folder / "config.json").write_text(json.dumps(described | {"use_task_id": True}))
    (folder / "SHA256SUMS").unlink()
    (folder / "README.md").unlink()
    return tasks


def test_an_ernie_with_task_ids_goes_in_and_out(tmp_path: Path) -> None:
    """Without ``task_type_ids``, each token has the embedding of task 0; transformers has 3 tasks if nothing says."""
    tasks = with_tasks(tmp_path / "model")
    raw = load_file(tmp_path / "model" / "model.safetensors")
    read = import_model(tmp_path / "model")
    assert (read.report.missing, read.config.task_type_vocab_size) == ((), 3)
    np.testing.assert_array_equal(read.params["encoder"]["embeddings"]["task_type_embeddings"], tasks)
    assert_same_outputs(raw, read.params, read.config, read.head)
    export_model(TrainedModel("", read.params, read.config, TOKENIZER, read.head), tmp_path / "again", "card")
    described = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (described["use_task_id"], described["task_type_vocab_size"]) == (True, 3)
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == raw.keys()
    for name, array in raw.items():
        np.testing.assert_array_equal(again[name], array)


def test_an_ernie_that_lacks_its_task_embeddings_is_refused(tmp_path: Path) -> None:
    with_tasks(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["embeddings.task_type_embeddings.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"1 tensors of the encoder are missing, such as ernie.embeddings.task_type_"):
        import_model(tmp_path)


def test_no_tensor_is_dropped(tmp_path: Path) -> None:
    with_tasks(tmp_path)
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
