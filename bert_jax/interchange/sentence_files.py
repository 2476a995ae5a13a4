"""Reads and writes the files by which sentence-transformers makes vectors of texts.

``modules.json`` lists modules and their folders: a Transformer, a Pooling, and further modules. Every key of a module
is obeyed or refused by its name. ``config_sentence_transformers.json`` has the prompts and the similarity.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast, get_args

import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.sentence_vectors import ACTIVATIONS, SentenceVectors, Similarity, Step
from bert_jax.interchange.json_files import read_json, write_json
from bert_jax.interchange.tensors import WEIGHTS, read_tensors, write_tensors
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.heads import Pooling
from bert_jax.storage import reading

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
# (place of a module, its classes). In older folders, the class of the first module is named after a family.
PLACES = (
    ("first", ("Transformer", "BERT", "RoBERTa", "DistilBERT", "ALBERT", "CamemBERT", "XLMRoBERTa")),
    ("second", ("Pooling",)),
    ("after the pooling", ("Dense", "Normalize", "Dropout")),
)
_FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta")
# Older files have a flag for each pooling, and join several in this order.
FLAGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_VECTOR = ("sentence_embedding", None)
# Key that is not obeyed -> its values that ask for nothing else than the usual computation.
_PLAIN_TRANSFORMER: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction", None),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}}, None),
    "module_output_name": ("token_embeddings", None),
    **dict.fromkeys(("query_length", "document_length", "query_expansion", "tokenizer_name_or_path"), (None,)),
    "unpad_inputs": (True, False, None),
}
_TORCH = {
    "identity": "linear.Identity",
    **{name.lower(): f"activation.{name}" for name in ("Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")},
}
ARGUMENTS = (
    *(f"{of}_args" for of in ("model", "tokenizer", "config")),
    *(f"{of}_kwargs" for of in ("model", "processor", "config", "processing")),
)
# Keys of these groups that tell transformers how to load a model and change no output.
_LOADING = ("attn_implementation", "torch_dtype", "dtype", "add_pooling_layer", "trust_remote_code", "use_safetensors")
Fields = Mapping[str, Any]


class Module(NamedTuple):
    """A module of ``modules.json``: the name of its class, such as Pooling, and its folder, "" for the model's own."""

    name: str
    path: str


def read_modules(folder: Path, where: str) -> list[Module]:
    """Return the modules that a folder lists, or [] if it has no list.

    Raises ``UserError`` if the list is damaged, or has a module that is not known or not in its place.
    """
    path = folder / MODULES
    if not path.exists():
        return []
    shown = f"{where}/{MODULES}"
    try:
        entries = json.loads(reading.read_bytes(path))
        found = [(str(one["type"]), one["path"]) for one in entries if one["path"] is not None]
    except (ValueError, TypeError, LookupError, RecursionError):
        found, entries = [], []
    if not found or len(found) < len(entries) or not all(isinstance(at, str) for _, at in found):
        raise UserError(f"{shown} is no list of modules, each with a type and a path; copy it again")
    if outside := [at for _, at in found if PurePosixPath(at).is_absolute() or ".." in PurePosixPath(at).parts]:
        raise UserError(f"{shown} has the path {outside[0]!r}, outside its folder; copy the whole folder again")
    first = found[0][1].strip("/.")
    alone = f"to read the encoder alone, {f'give {where}/{first}' if first else f'remove {shown}'}"
    if kwargs := [one for one in entries if one.get("kwargs")]:
        raise UserError(f"{shown} has a module with kwargs {kwargs[0]['kwargs']!r}, which are not obeyed; {alone}")
    for (kind, at), (place, known) in zip(found, (*PLACES, *PLACES[2:] * len(found)), strict=False):
        if not kind.startswith("sentence_transformers.") or kind.rpartition(".")[2] not in known:
            raise UserError(
                f"{shown} has {kind!r} (path {at!r}) {place}; readable there: {', '.join(known)} of "
                f"sentence_transformers; {alone}"
            )
    return [Module(kind.rpartition(".")[2], at.strip("/")) for kind, at in found]


def with_sentence_files(
    model: TrainedModel, modules: Sequence[Module], folder_of: Callable[[str], Path], where: str
) -> TrainedModel:
    """Return ``model``, which the first of ``modules`` holds, with the facts and parameters of the other modules.

    Args:
      folder_of: returns the local folder of a path below the model's folder.
      where: the folder's name for error messages.

    Raises:
      UserError: a file is missing or damaged, or asks for something that is not computed here.
    """
    settings = _object(folder_of("") / SETTINGS)
    kind = settings.get("model_type", "SentenceTransformer")
    if kind not in ("SentenceTransformer", "CrossEncoder"):
        raise UserError(f"{where}/{SETTINGS} says model_type {kind!r}; readable: SentenceTransformer, CrossEncoder")
    if len(modules) == 1:  # the model of a cross-encoder, or no more than an encoder
        return dataclasses.replace(model, source=where)
    paths = {module: f"{where}/{module.path}/config.json" for module in modules}
    for module in modules[1:]:
        if module.name in ("Pooling", "Dense") and not (folder_of(module.path) / "config.json").exists():
            raise UserError(
                f"{where}/{MODULES} names {module.path}, which has no config.json; copy the whole folder again, or, to "
                f"read the encoder alone, remove {where}/{MODULES}"
            )
    pooling, include_prompt = _pooling(read_json(folder_of(modules[1].path) / "config.json"), paths[modules[1]], model)
    steps, layers = [], {}
    for number, module in enumerate(modules[2:], 2):
        if module.name == "Dense":
            name = f"{number}_Dense"
            content = read_json(folder_of(module.path) / "config.json")
            layers[name], activation = _dense(folder_of(module.path), content, f"{where}/{module.path}")
            steps.append(Step(name, cast(Any, activation)))
        elif module.name == "Normalize":
            content = _object(folder_of(module.path) / "config.json")
            _check(content, {"module_input_name": _VECTOR, "module_output_name": _VECTOR}, paths[module])
            steps.append(Step())
    max_length, lowercase = _transformer(folder_of(modules[0].path), where, model)
    vectors = dataclasses.replace(
        _settings(settings, where),
        pooling=pooling,
        steps=tuple(steps),
        max_length=max_length,
        lowercase=lowercase,
        include_prompt=include_prompt,
    )
    params = {**model.params, **layers}
    vectors.size(params, model.config.hidden_size)
    report = model.report and dataclasses.replace(model.report, notes=(*model.report.notes, f"vectors: {vectors}"))
    facts = {**model.facts, "sentence_vectors": dataclasses.asdict(vectors)}
    return dataclasses.replace(model, source=where, params=params, facts=facts, report=report)


def _object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; {} if the file is missing."""
    return read_json(path) if path.exists() else {}


def _check(content: Fields, plain: Mapping[str, Sequence[Any]], shown: str, obeyed: Sequence[str] = ()) -> None:
    """Raise ``UserError`` for a key that is not ``obeyed`` and has none of its ``plain`` values."""
    for key, value in content.items():
        if key in obeyed or (key in plain and any(value == one and type(value) is type(one) for one in plain[key])):
            continue
        allowed = f"readable: {' or '.join(map(json.dumps, plain[key]))}" if key in plain else "this key is not known"
        raise UserError(
            f"{shown} has {key} {json.dumps(value)}; {allowed}. To read the encoder alone, remove {MODULES} or give "
            "the folder of its config.json"
        )


def _typed(content: Fields, key: str, kind: type, default: Any, shown: str) -> Any:
    """Return the value of a key, or ``default`` for None. Raises ``UserError`` for a value of another class."""
    value = content.get(key)
    if value is None:
        return default
    if type(value) is not kind:
        name = {bool: "true or false", int: "a whole number", str: "a text", dict: "an object"}[kind]
        raise UserError(f"{shown} has {key} {json.dumps(value)}; {name} is needed")
    return value


def _pooling(content: Fields, shown: str, model: TrainedModel) -> tuple[tuple[Pooling, ...], bool]:
    """Return the poolings of a Pooling module, and whether the tokens of a prompt are pooled too."""
    sizes = ("word_embedding_dimension", "embedding_dimension")
    _check(content, {}, shown, (*FLAGS, *sizes, "pooling_mode", "include_prompt"))
    flags = [mode for flag, mode in FLAGS.items() if _typed(content, flag, bool, False, shown)]
    named = content.get("pooling_mode")
    modes = flags or ["mean"] if named is None else [named] if isinstance(named, str) else named
    if not isinstance(modes, list) or not modes or not all(mode in get_args(Pooling) for mode in modes):
        raise UserError(f"{shown} has pooling_mode {json.dumps(named)}; readable: {', '.join(get_args(Pooling))}")
    hidden_size = model.config.hidden_size
    for key in sizes:
        if (size := _typed(content, key, int, hidden_size, shown)) != hidden_size:
            raise UserError(f"{shown} has {key} {size}, the encoder {hidden_size}; copy the whole folder again")
    return tuple(modes), _typed(content, "include_prompt", bool, True, shown)


def _dense(folder: Path, content: Fields, where: str) -> tuple[dict[str, np.ndarray], str]:
    """Return the parameters of a Dense module and the name of its activation."""
    shown = f"{where}/config.json"
    plain = {"module_input_name": _VECTOR, "module_output_name": _VECTOR, "use_residual": (False, None)}
    _check(content, plain, shown, ("in_features", "out_features", "bias", "activation_function"))
    path = _typed(content, "activation_function", str, "torch.nn.modules.activation.Tanh", shown)
    activation = path.rpartition(".")[2].lower()
    if not path.startswith("torch.nn.") or activation not in ACTIVATIONS:
        raise UserError(
            f"{shown} has activation_function {path!r}; readable: Identity, Tanh, ReLU, GELU, Sigmoid, SiLU of torch.nn"
        )
    if not (folder / WEIGHTS).exists() and (folder / "pytorch_model.bin").exists():
        raise UserError(
            f"{where} has no {WEIGHTS}; pytorch_model.bin is a pickle, which can run code: if you trust it, load the "
            "model with sentence-transformers and save it again with model.save_pretrained(folder)"
        )
    tensors, bias = read_tensors(folder, where), _typed(content, "bias", bool, True, shown)
    inputs, outputs = (_typed(content, key, int, None, shown) for key in ("in_features", "out_features"))
    wanted = {"linear.weight": (outputs, inputs), **({"linear.bias": (outputs,)} if bias else {})}
    found = {name: array.shape for name, array in tensors.items()}
    if found != wanted or any(array.dtype != np.float32 for array in tensors.values()):
        raise UserError(f"{where} has the tensors {found}, its config.json says {wanted}; copy the whole folder again")
    layer = {"kernel": np.ascontiguousarray(tensors["linear.weight"].T)}
    return layer | ({"bias": tensors["linear.bias"]} if bias else {}), activation


def _transformer(folder: Path, where: str, model: TrainedModel) -> tuple[int, bool]:
    """Return the most tokens of a text, by files beside the encoder or its positions, and whether to lower-case it."""
    names = [f"sentence_{family}_config.json" for family in _FAMILIES]
    path = next((folder / name for name in names if (folder / name).exists()), folder / names[0])
    content, shown = dict(_object(path)), f"{where}/{path.name}"
    for key in ARGUMENTS:
        _check(_typed(content, key, dict, {}, shown), {}, f"{shown}: {key}", _LOADING)
    _check(content, _PLAIN_TRANSFORMER, shown, ("max_seq_length", "do_lower_case", *ARGUMENTS))
    length = _typed(content, "max_seq_length", int, None, shown)
    if length is not None and length < 4:
        raise UserError(f"{shown} has max_seq_length {length}; at least 4 is needed, special tokens included")
    if length is None:  # newer versions leave it to the tokenizer
        said = _object(folder / "tokenizer_config.json").get("model_max_length")
        length = int(said) if isinstance(said, int | float) and 4 <= said < model.config.max_length else 2**31
    lowercase = _typed(content, "do_lower_case", bool, False, shown) and not model.tokenizer.lowercase
    return min(length, model.config.max_length), lowercase


def _settings(content: Fields, where: str) -> SentenceVectors:
    """Return the prompts, the similarity and the number of kept values of ``config_sentence_transformers.json``."""
    shown = f"{where}/{SETTINGS}"
    prompts = {name: text or "" for name, text in _typed(content, "prompts", dict, {}, shown).items()}
    if wrong := [name for name, text in prompts.items() if not isinstance(text, str)]:
        raise UserError(f"{shown}: the prompt {wrong[0]!r} is {json.dumps(prompts[wrong[0]])}; a text is needed")
    default = _typed(content, "default_prompt_name", str, None, shown)
    if default is not None and default not in prompts:
        raise UserError(f"{shown} has default_prompt_name {default!r}, which is none of its prompts: {list(prompts)}")
    similarity = _typed(content, "similarity_fn_name", str, "cosine", shown)
    if similarity not in get_args(Similarity):
        raise UserError(f"{shown} has similarity_fn_name {similarity!r}; readable: {', '.join(get_args(Similarity))}")
    truncate_dim = _typed(content, "truncate_dim", int, None, shown)
    if truncate_dim is not None and truncate_dim < 1:
        raise UserError(f"{shown} has truncate_dim {truncate_dim}; at least 1 is needed")
    return SentenceVectors(
        truncate_dim=truncate_dim, prompts=tuple(prompts.items()), default_prompt=default, similarity=similarity
    )


def write_sentence_files(
    folder: Path, vectors: SentenceVectors, model: TrainedModel, output: str | os.PathLike[str]
) -> None:
    """Write the files, beside the model's, by which sentence-transformers makes the same vectors.

    ``output``: the folder's name for error messages.
    """
    size, modules = model.config.hidden_size, [("", "Transformer"), ("1_Pooling", "Pooling")]
    # Older versions do not know the last two flags, nor "pooling_mode".
    known = [*list(FLAGS)[:4], *(flag for flag, mode in FLAGS.items() if mode in vectors.pooling)]
    flags = {flag: FLAGS[flag] in vectors.pooling for flag in known}
    in_order = tuple(mode for mode in FLAGS.values() if mode in vectors.pooling) == vectors.pooling
    said = flags if in_order else {"pooling_mode": list(vectors.pooling)}
    content: dict[str, Any] = {"word_embedding_dimension": size, **said}
    _write(folder / "1_Pooling", content | ({} if vectors.include_prompt else {"include_prompt": False}))
    for number, step in enumerate(vectors.steps, 2):
        name = f"{number}_{'Dense' if step.dense else 'Normalize'}"
        modules.append((name, name.partition("_")[2]))
        if not step.dense:
            _write(folder / name, {})
            continue
        layer = model.params[step.dense]
        inputs, outputs = layer["kernel"].shape
        content = {"in_features": inputs, "out_features": outputs, "bias": "bias" in layer}
        _write(folder / name, content | {"activation_function": f"torch.nn.modules.{_TORCH[step.activation]}"})
        tensors = {"linear.weight": np.ascontiguousarray(layer["kernel"].T), "linear.bias": layer.get("bias")}
        write_tensors(folder / name, {name: array for name, array in tensors.items() if array is not None}, output)
    kinds = [(path, f"sentence_transformers.models.{name}") for path, name in modules]
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(kinds)]
    write_json(folder / MODULES, listed)
    # do_lower_case is False where the tokenizer itself lower-cases.
    length = {"max_seq_length": vectors.max_length or model.config.max_length, "do_lower_case": vectors.lowercase}
    write_json(folder / "sentence_bert_config.json", length)
    keys = {"prompts": dict(vectors.prompts), "default_prompt_name": vectors.default_prompt}
    truncated = {"truncate_dim": vectors.truncate_dim} if vectors.truncate_dim else {}
    write_json(folder / SETTINGS, {**keys, "similarity_fn_name": vectors.similarity, **truncated})


def _write(folder: Path, content: Fields) -> None:
    folder.mkdir()
    write_json(folder / "config.json", content)
