"""Writes a Hugging Face directory from a training checkpoint of ModernBERT or of an encoder of Ettin.

    python launch/flexbert.py --input=ep0-ba52988-rank0.pt --output=modernbert-52988

The checkpoint is a ``.pt`` file of MosaicML's Composer with a FlexBERT (AnswerDotAI/ModernBERT, src/bert_layers).
Needed: torch 2.6 or newer, and safetensors; nothing of bert_jax, Composer or transformers. The names and the config are
mapped as by ``convert_to_hf.py`` of AnswerDotAI/ModernBERT (branch pretraining_documentation).

A checkpoint is a pickle, which could run code. ``torch.load(weights_only=True)`` reads it: an object of any class that
torch does not know, such as a time of Composer, is left empty, and no code of such a class is imported or run.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

MAX_LENGTH = 8192  # of transformers' ModernBERT; rotary positions have no table that could be shorter
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
# Name in FlexBERT, without the prefix of Composer's wrapper -> name in transformers.
NAMES = (
    (re.compile(r"bert\.embeddings\.(tok_embeddings|norm)\.weight"), r"model.embeddings.\1.weight"),
    (re.compile(r"bert\.encoder\.layers\.(\d+)\.(attn_norm|mlp_norm)\.weight"), r"model.layers.\1.\2.weight"),
    (re.compile(r"bert\.encoder\.layers\.(\d+)\.(attn\.W(qkv|o)|mlp\.W[io])\.weight"), r"model.layers.\1.\2.weight"),
    (re.compile(r"bert\.final_norm\.weight"), "model.final_norm.weight"),
    (re.compile(r"head\.(dense|norm)\.weight"), r"head.\1.weight"),
    (re.compile(r"decoder\.(weight|bias)"), r"decoder.\1"),
)
# Keys of FlexBertConfig that are layers and options: the values that a ModernBERT has.
NEEDED: Mapping[str, tuple[Any, ...]] = {
    "attention_layer": ("rope",),
    "bert_layer": ("prenorm",),
    "embedding_layer": ("sans_pos",),
    "mlp_layer": ("glu",),
    "normalization": ("layernorm", "triton_layernorm"),
    **dict.fromkeys(
        ("embed_norm", "final_norm", "skip_first_prenorm", "head_pred_norm", "tie_word_embeddings"), (True,)
    ),
    **dict.fromkeys(("attn_out_bias", "attn_qkv_bias", "mlp_in_bias", "mlp_out_bias", "head_pred_bias"), (False,)),
    **dict.fromkeys(("initial_attention_layer", "initial_bert_layer", "initial_mlp_layer"), (None,)),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (None,),
    "causal_mask": (False, None),  # true in a decoder of Ettin
}
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
# What FlexBERT takes for a key that its config lacks, where that is not the first value above.
DEFAULTS: Mapping[str, Any] = {
    "attention_layer": "base",
    "embedding_layer": "absolute_pos",
    "mlp_layer": "mlp",
    "normalization": "rmsnorm",
    "final_norm": False,
    "skip_first_prenorm": False,
}


class Unread:
    """Stands for an object of a class that torch does not know. It keeps nothing of it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def fail(problem: str) -> NoReturn:
    sys.exit(f"error: {problem}")


def read(path: str) -> dict[str, Any]:
    """Return the content of a checkpoint, whose tensors stay on disk until they are used."""
    try:
        import torch
    except ImportError:
        fail("this environment has no torch; `make test-parity` of bert_jax makes .venv-parity, which has it")
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        with torch.serialization.safe_globals([(Unread, name) for name in unknown]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, OSError, EOFError) as problem:
        reason = str(problem).strip().splitlines() or [type(problem).__name__]
        fail(f"{path} cannot be read safely ({reason[0]}); give a whole .pt file of Composer")
    if not isinstance(content, dict):
        fail(f"{path} holds a {type(content).__name__}, no checkpoint of Composer")
    return content


def tensors_of(weights: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the weights under transformers' names, without the decoder, which is the word embeddings."""
    found, unknown = dict[str, Any](), list[str]()
    for name, tensor in weights.items():
        bare = re.sub(r"^(module\.|_orig_mod\.|model\.)*", "", name).replace("_orig_mod.", "")
        renamed = next((pattern.sub(to, bare) for pattern, to in NAMES if pattern.fullmatch(bare)), None)
        if renamed is None:
            unknown.append(name)
        else:
            found[renamed] = tensor
    if unknown:
        fail(f"{where} has {len(unknown)} weights that no ModernBERT has, such as {unknown[0]}; FlexBERT's other forms")
    words, decoder = found.get("model.embeddings.tok_embeddings.weight"), found.pop("decoder.weight", None)
    if words is None:
        fail(f"{where} has no word embeddings (bert.embeddings.tok_embeddings.weight); give a checkpoint of a FlexBERT")
    if decoder is not None and not (decoder.shape == words.shape and bool((decoder == words).all())):
        fail(f"{where} has a decoder that is not its word embeddings; only tied ones can be converted")
    return found


def config_of(flex: Mapping[str, Any], vocab_size: int, where: str) -> dict[str, Any]:
    """Return the ``config.json`` of transformers for a ``FlexBertConfig``."""
    if lacking := [key for key in SIZES if not isinstance(flex.get(key), int)]:
        fail(f"the config of {where} lacks {', '.join(lacking)}; give --config=FILE, a whole config.json")
    heads = flex["hidden_size"] // flex["num_attention_heads"]
    given = {key: flex.get(key, DEFAULTS.get(key, allowed[0])) for key, allowed in NEEDED.items()}
    problems = [
        f"{key} {given[key]!r} (a ModernBERT has {' or '.join(map(repr, allowed))})"
        for key, allowed in NEEDED.items()
        if given[key] not in allowed
    ]
    for key in ("rotary_emb_dim", "local_attn_rotary_emb_dim"):
        if flex.get(key) not in (None, heads):
            problems.append(f"{key} {flex[key]} (a ModernBERT has {heads}, the width of a head)")
    norm = flex.get("norm_kwargs") or {}
    if norm.get("bias", True):
        problems.append("norms with biases")
    if problems:
        fail(f"{where} is no ModernBERT: {', '.join(problems)}")
    base, local = flex.get("rotary_emb_base", 10_000.0), flex.get("local_attn_rotary_emb_base") or -1
    window = flex.get("sliding_window", -1)
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        "vocab_size": vocab_size,
        "hidden_size": flex["hidden_size"],
        "num_hidden_layers": flex["num_hidden_layers"],
        "num_attention_heads": flex["num_attention_heads"],
        "intermediate_size": flex["intermediate_size"],
        "max_position_embeddings": MAX_LENGTH,
        "hidden_activation": flex.get("hidden_act", "gelu"),
        "classifier_activation": flex.get("head_pred_act", "silu"),  # in transformers, of the masked-LM head too
        "norm_eps": norm.get("eps", 1e-5),
        "global_attn_every_n_layers": 1 if window == -1 else flex["global_attn_every_n_layers"],
        "local_attention": 128 if window == -1 else window,
        "global_rope_theta": base,
        "local_rope_theta": base if local == -1 else local,
        "attention_dropout": flex.get("attention_probs_dropout_prob", 0.0),
        "attn_out_dropout_prob": flex.get("attn_out_dropout_prob", 0.0),  # FlexBERT's key, which bert_jax reads
        "embedding_dropout": flex.get("embed_dropout_prob", 0.0),
        "mlp_dropout": flex.get("mlp_dropout_prob", 0.0),
        "initializer_range": flex.get("initializer_range", 0.02),
        "decoder_bias": flex.get("decoder_bias", True),
        "tie_word_embeddings": True,
        **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
    }


def _config(state: Mapping[str, Any], file: str | None, vocab_size: int, where: str) -> dict[str, Any]:
    """Return the ``config.json`` of transformers, from ``file`` (which may be of FlexBERT too) or the checkpoint."""
    if file:
        given = json.loads(_text(Path(file)))
        if given.get("model_type") == "modernbert":
            return given | {"vocab_size": vocab_size}
        return config_of(given, vocab_size, file)
    kept = (_huggingface(state).get("model") or {}).get("config")
    if not kept:
        fail(
            f"{where} does not say its architecture; give --config=FILE, the config.json of the released model with "
            "the rotary bases of the checkpoint's stage"
        )
    if not (kind := kept.get("class", "ForMaskedLM")).endswith("ForMaskedLM"):
        fail(f"{where} holds a {kind.rpartition('.')[2]}; only masked language models can be converted")
    return config_of(kept["content"], vocab_size, where)


def tokenizer_files(state: Mapping[str, Any], folder: str | None, where: str) -> dict[str, str]:
    """Return the name and the text of each file of the tokenizer: of ``folder``, or kept in the checkpoint."""
    if folder:
        found = {name: _text(Path(folder, name)) for name in TOKENIZER if Path(folder, name).exists()}
    else:
        kept = _huggingface(state).get("tokenizer") or {}
        named = {name.removesuffix(one["file_extension"]) + one["file_extension"]: one for name, one in kept.items()}
        found = {
            name: json.dumps(named[name]["content"], ensure_ascii=False, indent=1)
            for name in TOKENIZER
            if name in named
        }
    if TOKENIZER[0] not in found:
        place = folder or where
        fail(f"{place} has no tokenizer.json; give --tokenizer=DIR, the folder of the released model")
    return found


def _text(path: Path) -> str:
    """Return the text of a JSON file. Exits with one line if it cannot be read or is no JSON."""
    try:
        text = path.read_text("utf-8")
        json.loads(text)
    except (OSError, ValueError) as problem:
        fail(f"{path} is no JSON that can be read ({problem})")
    return text


def special_ids(files: Mapping[str, str]) -> dict[str, int]:
    """Return the ids of the special tokens for ``config.json``. [CLS] is also ``bos``, and [SEP] ``eos``."""
    ids = {token["content"]: token["id"] for token in json.loads(files[TOKENIZER[0]]).get("added_tokens", [])}
    found = dict[str, int]()
    for role, token in json.loads(files.get(TOKENIZER[2], "{}")).items():
        content = token["content"] if isinstance(token, dict) else token
        if role in ("cls_token", "sep_token", "pad_token") and isinstance(content, str) and content in ids:
            found[f"{role}_id"] = ids[content]
    also = {"bos_token_id": "cls_token_id", "eos_token_id": "sep_token_id"}
    return found | {name: found[other] for name, other in also.items() if other in found}


def _huggingface(state: Mapping[str, Any]) -> dict[str, Any]:
    return (state.get("integrations") or {}).get("huggingface") or {}


def facts_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the state says of the training: the name of its run, steps, tokens and the learning rate."""
    times = state.get("timestamp") or {}
    times = times.get("Timestamp", times)
    rates = [group["lr"] for group in _groups(state.get("optimizers")) if isinstance(group.get("lr"), float)]
    facts = {"run": state.get("run_name"), "step": times.get("batch"), "tokens": times.get("token")}
    return {name: value for name, value in {**facts, "rate": max(rates, default=None)}.items() if value is not None}


def _groups(optimizers: Any) -> Iterator[dict[str, Any]]:
    """Yield the groups of parameters of an optimizer, which lies below its name in some versions of Composer."""
    if isinstance(optimizers, dict):
        yield from optimizers.get("param_groups", [])
        for inner in optimizers.values():
            if isinstance(inner, dict) and "param_groups" in inner:
                yield from inner["param_groups"]


def convert(source: str, output: str, tokenizer: str | None = None, config: str | None = None) -> list[str]:
    """Write the directory ``output``, and return lines for the user."""
    if os.path.lexists(output):
        fail(f"{output} exists already; choose another --output")
    if not Path(source).is_file():
        fail(f"there is no file {source}; --input is a .pt file of Composer")
    content = read(source)
    state = content.get("state", content)
    tensors = tensors_of(state.get("model", state), source)
    theirs = _config(state, config, tensors["model.embeddings.tok_embeddings.weight"].shape[0], source)
    files = tokenizer_files(state, tokenizer, source)
    facts = facts_of(state)
    _write(output, tensors, theirs | special_ids(files), files, _card(source, facts))
    count = sum(tensor.numel() for tensor in tensors.values())
    rate = facts.get("rate")
    schedule = f" --config.schedule.peak_learning_rate={rate:g}" if rate else ""
    return [
        f"{source}: {_in_words(facts)}",
        f"written to {output}: {len(tensors)} tensors, {count:,} parameters; the optimizer's state is left out",
        f"next: bert-jax pretrain --config=modernbert_continue --init={output} --workdir=runs/decay{schedule} "
        "--config.schedule.decay_fraction=1.0 --config.corpus.options.paths='text/*.txt'",
    ]


def _in_words(facts: Mapping[str, Any]) -> str:
    said = [f"run {facts['run']}"] if "run" in facts else []
    said += [f"step {facts['step']:,}"] if "step" in facts else []
    said += [f"{facts['tokens']:,} tokens"] if "tokens" in facts else []
    said += [f"learning rate {facts['rate']:g}"] if "rate" in facts else []
    return ", ".join(said) or "no step, no tokens and no rate are recorded"


def _card(source: str, facts: Mapping[str, Any]) -> str:
    return f"# {Path(source).name}\n\nA training checkpoint of a FlexBERT: {_in_words(facts)}.\n"


def _write(output: str, tensors: Mapping[str, Any], config: Any, files: Mapping[str, str], card: str) -> None:
    """Write the directory under a temporary name, then rename it."""
    import torch
    from safetensors.torch import save_file

    folder = Path(f"{output.rstrip('/')}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    whole = {name: tensor.to(torch.float32).contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", {"format": "pt"})
    for name, text in {"config.json": json.dumps(config, indent=1), "README.md": card, **files}.items():
        (folder / name).write_text(text, "utf-8")
    os.replace(folder, output)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--input", required=True, help="a .pt file of Composer, such as ep0-ba52988-rank0.pt")
    parser.add_argument("--output", required=True, help="the new folder to write")
    parser.add_argument("--tokenizer", metavar="DIR", help="a folder with tokenizer.json, if the file has no tokenizer")
    parser.add_argument("--config", metavar="FILE", help="a config.json of ModernBERT, if the file has no config")
    flags = parser.parse_args()
    try:
        lines = convert(flags.input, flags.output, flags.tokenizer, flags.config)
    except OSError as problem:
        fail(f"{flags.output} cannot be written ({problem})")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
