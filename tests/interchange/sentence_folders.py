"""Folders of sentence-transformers around a small BERT, in the forms of published models."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bert_jax.interchange.architectures import HeadClass
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.trained_model import TrainedModel
from tests.interchange.small_model import CONFIG, PARAMS, TOKENIZER

TEXTS = ["abc de", "f", "Bad cab 12 a b c d e f g", "the f"]
OLD = {"Transformer": "sentence_transformers.models.", "Pooling": "sentence_transformers.models."}
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.",
    "Dense": "sentence_transformers.base.modules.dense.",
    "Normalize": "sentence_transformers.base.modules.normalize.",
}


@dataclasses.dataclass(frozen=True)
class Form:
    """A folder: the file of the pooling and of each dense layer, whether vectors get length 1, and the other files."""

    pooling: Mapping[str, Any]
    dense: Mapping[str, Any] | None = None
    normalize: bool = False
    transformer: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"max_seq_length": 32})
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    inner: str = ""  # the folder of the encoder
    file: str = "sentence_bert_config.json"
    types: Mapping[str, str] = dataclasses.field(default_factory=lambda: OLD)
    model_max_length: int = 512


def flags(*modes: str, **more: Any) -> dict[str, Any]:
    """The content of a pooling's file of an older version."""
    every = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    return {"word_embedding_dimension": 32, **{f"pooling_mode_{one}": one in modes for one in every}, **more}


TANH = {"in_features": 32, "out_features": 8, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}
E5 = {"prompts": {"query": "a b ", "passage": "c "}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
FORMS = {
    "all-MiniLM-L6-v2": Form(flags("mean_tokens"), normalize=True, transformer={"max_seq_length": 6}),
    "bge": Form(flags("cls_token"), normalize=True, settings={"prompts": {}, "default_prompt_name": None}),
    "e5": Form(flags("mean_tokens"), normalize=True, settings=E5),
    "gte": Form({"word_embedding_dimension": 32, "pooling_mode_cls_token": True}),
    "LaBSE": Form(flags("cls_token"), TANH, True),
    "msmarco-distilbert": Form(
        flags("mean_tokens"),
        inner="0_Transformer",
        file="sentence_distilbert_config.json",
        settings={"__version__": {}},
    ),
    "joined": Form(flags("mean_sqrt_len_tokens", "cls_token", "max_tokens")),
    "newer": Form(
        {"embedding_dimension": 32, "pooling_mode": ["weightedmean", "max"], "include_prompt": True},
        {**TANH, "in_features": 64, "bias": False, "activation_function": "torch.nn.modules.activation.GELU"},
        transformer={
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
        },
        settings={"model_type": "SentenceTransformer", "prompts": {"query": "", "document": ""}, "truncate_dim": 5},
        types=NEW,
        model_max_length=7,
    ),
    "instructor": Form(
        flags("mean_tokens", "cls_token", include_prompt=False),
        settings={"prompts": {"task": "a bc "}, "default_prompt_name": "task"},
    ),
    "last": Form({"embedding_dimension": 32, "pooling_mode": "lasttoken"}, transformer={"max_seq_length": None}),
    "lower": Form(flags("max_tokens"), transformer={"max_seq_length": 9, "do_lower_case": True}),
}


def write_encoder(folder: Path) -> Path:
    """Write the encoder of every folder and return its own."""
    export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER, HeadClass("BertModel")), folder, "card")
    (folder / "SHA256SUMS").unlink()
    return folder


def write(folder: Path, form: Form, encoder: Path) -> Path:
    """Write a folder around ``encoder`` and return it; the numbers of its dense layer are drawn."""
    inner = folder / form.inner if form.inner else folder
    shutil.copytree(encoder, inner)
    tokenizer = json.loads((inner / "tokenizer_config.json").read_text())
    put(inner / "tokenizer_config.json", tokenizer | {"model_max_length": form.model_max_length})
    put(inner / form.file, form.transformer)
    modules = [(form.inner, "Transformer"), ("1_Pooling", "Pooling")]
    put(folder / "1_Pooling" / "config.json", form.pooling)
    if form.dense:
        modules.append(("2_Dense", "Dense"))
        put(folder / "2_Dense" / "config.json", form.dense)
        rng = np.random.default_rng(7)
        weight = rng.normal(0, 0.3, (form.dense["out_features"], form.dense["in_features"])).astype(np.float32)
        bias = {"linear.bias": rng.normal(0, 0.3, len(weight)).astype(np.float32)} if form.dense["bias"] else {}
        save_file({"linear.weight": weight} | bias, folder / "2_Dense" / "model.safetensors")
    if form.normalize:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
    types = [form.types.get(name, OLD["Pooling"]) + name for _, name in modules]
    listed = enumerate(zip(modules, types, strict=True))
    put(folder / "modules.json", [{"idx": i, "name": str(i), "path": m[0], "type": kind} for i, (m, kind) in listed])
    if form.settings:
        put(folder / "config_sentence_transformers.json", form.settings)
    return folder


def put(path: Path, content: Any) -> None:
    """Write a JSON file, and its folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
