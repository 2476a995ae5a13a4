"""A checkpoint of Composer, converted by launch/flexbert.py, beside the formulas of FlexBERT and transformers.

The checkpoint is made here, with the names and shapes of AnswerDotAI/ModernBERT (src/bert_layers) and with what
Composer saves beside the weights. No published file is read.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.interchange.hugging_face import import_model
from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.models.model import LM_HEAD, Model
from tests.interchange.heads import TOKENIZER
from tests.launch.flexbert import FLEX, ROOT

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]
SCRIPT = ROOT / "launch" / "flexbert.py"
HIDDEN, WIDE, LAYERS, HEADS, VOCAB = 32, 48, 4, 4, 72  # 64 pieces, padded to a multiple of 8 and by one more


class Time:
    """Stands for a class of Composer that is not installed where the checkpoint is read."""

    def __init__(self, value: int):
        self.value, self.unit = value, "tok"


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, function: Any, *words: Any):
        self.call = (function, words)

    def __reduce__(self) -> Any:
        return self.call


def weights() -> dict[str, Any]:
    """Random weights under FlexBERT's names, as Composer's wrapper of Hugging Face models saves them."""
    layer = {"attn.Wqkv": (3 * HIDDEN, HIDDEN), "attn.Wo": (HIDDEN, HIDDEN), "mlp.Wi": (2 * WIDE, HIDDEN)}
    layer |= {"mlp.Wo": (HIDDEN, WIDE), "attn_norm": (HIDDEN,), "mlp_norm": (HIDDEN,)}
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.tok_embeddings": (VOCAB, HIDDEN),
        "bert.embeddings.norm": (HIDDEN,),
        **{f"bert.encoder.layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()},
        "bert.final_norm": (HIDDEN,),
        "head.dense": (HIDDEN, HIDDEN),
        "head.norm": (HIDDEN,),
    }
    del shapes["bert.encoder.layers.0.attn_norm"]  # skip_first_prenorm
    torch.manual_seed(0)
    found = {f"model.{k}.weight": torch.randn(v) * 0.2 + (1.0 if len(v) == 1 else 0.0) for k, v in shapes.items()}
    found["model.decoder.weight"] = found["model.bert.embeddings.tok_embeddings.weight"]
    return found | {"model.decoder.bias": torch.randn(VOCAB) * 0.2}


def checkpoint(folder: Path, **changes: Any) -> Path:
    """Write a checkpoint as Composer does, with its state, and return the path."""
    folder.mkdir()
    write_tokenizer(folder, import_config(), TOKENIZER)
    kept = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    files = {name: {"file_extension": ".json", "content": json.loads((folder / name).read_text())} for name in kept}
    model = {
        "config": {"file_extension": ".json", "content": FLEX, "class": "src.bert_layers.model.FlexBertForMaskedLM"}
    }
    moments = {name: {"exp_avg": torch.zeros_like(x)} for name, x in weights().items()}
    state = {
        "model": weights(),
        "optimizers": {
            "DecoupledStableAdamW": {"state": moments, "param_groups": [{"lr": 3e-4, "betas": (0.9, 0.98)}]}
        },
        "schedulers": {"LambdaLR": {"base_lrs": [8e-4], "last_epoch": 7}},
        "timestamp": {
            "Timestamp": {"batch": 52_988, "token": 99_000_000_000, "total_wct": datetime.timedelta(hours=3)}
        },
        "callbacks": [Time(7)],
        "run_name": "modernbert-base-context-extension",
        "integrations": {"huggingface": {"model": model, "tokenizer": files}},
    }
    rng = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.random.get_rng_state()}
    path = folder / "ep0-ba52988-rank0.pt"
    torch.save({"state": state | changes, "rng": [rng]}, path)
    return path


def import_config() -> Any:
    from bert_jax.models.encoders.modernbert import Config
    from tests.models.golden_modernbert import FIELDS

    return Config(VOCAB, **FIELDS)


def convert(source: Path, output: Path, *flags: str) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPT), f"--input={source}", f"--output={output}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def flexbert(w: dict[str, Any], ids: Any, mask: Any) -> Any:
    """Return the logits [B, L, V] of FlexBertForMaskedLM, by the formulas of src/bert_layers.

    ``Wqkv`` makes q, k and v one after another, ``Wi`` the activated half and then the gate; rotary positions turn the
    halves of a head; a token of a local layer sees half a window to each side.
    """
    w = {name.removeprefix("model."): x.double() for name, x in w.items()}
    places = torch.arange(ids.shape[1])

    def norm(x: Any, name: str) -> Any:
        return torch.nn.functional.layer_norm(x, (HIDDEN,), w[f"{name}.weight"], eps=1e-5)

    def turned(x: Any, base: float) -> Any:  # [B, H, L, K]
        width = x.shape[-1]
        angles = places[:, None].double() * base ** (-torch.arange(0, width, 2).double() / width)
        first, second = x.chunk(2, dim=-1)
        return torch.cat(
            (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), dim=-1
        )

    x = norm(w["bert.embeddings.tok_embeddings.weight"][ids], "bert.embeddings.norm")
    near = (places[:, None] - places[None]).abs() <= FLEX["sliding_window"] // 2
    for i in range(LAYERS):
        name, sees_all = f"bert.encoder.layers.{i}", i % FLEX["global_attn_every_n_layers"] == 0
        base = FLEX["rotary_emb_base"] if sees_all else FLEX["local_attn_rotary_emb_base"]
        read = x if i == 0 else norm(x, f"{name}.attn_norm")
        qkv = (read @ w[f"{name}.attn.Wqkv.weight"].T).view(*ids.shape, 3, HEADS, HIDDEN // HEADS)
        q, k, v = qkv.transpose(1, 3).unbind(dim=2)  # [B, H, L, K]
        scores = turned(q, base) @ turned(k, base).transpose(2, 3) / (HIDDEN // HEADS) ** 0.5
        sees = mask[:, None, None] & (torch.ones_like(near) if sees_all else near)
        mixed = scores.masked_fill(~sees, -torch.inf).softmax(-1).nan_to_num() @ v
        x = x + mixed.transpose(1, 2).reshape(*ids.shape, HIDDEN) @ w[f"{name}.attn.Wo.weight"].T
        inner, gate = (norm(x, f"{name}.mlp_norm") @ w[f"{name}.mlp.Wi.weight"].T).chunk(2, dim=-1)
        x = x + (torch.nn.functional.gelu(inner) * gate) @ w[f"{name}.mlp.Wo.weight"].T
    x = torch.nn.functional.gelu(norm(x, "bert.final_norm") @ w["head.dense.weight"].T)
    return norm(x, "head.norm") @ w["decoder.weight"].T + w["decoder.bias"]


def test_a_converted_checkpoint_computes_what_flexbert_does(tmp_path: Path) -> None:
    code, said = convert(checkpoint(tmp_path / "composer"), tmp_path / "out")
    assert code == 0, said
    assert "run modernbert-base-context-extension, step 52,988, 99,000,000,000 tokens, learning rate 0.0003" in said
    assert "--config.schedule.peak_learning_rate=0.0003 --config.schedule.decay_fraction=1.0" in said
    rng = np.random.default_rng(0)
    mask = np.arange(120)[None] < np.array([[120], [91]])
    ids = np.where(mask, rng.integers(5, 64, mask.shape), 0).astype(np.int32)
    given = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(mask).long()}
    wanted = flexbert(weights(), given["input_ids"], torch.tensor(mask)).numpy()

    theirs = transformers.ModernBertForMaskedLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    with torch.no_grad():
        np.testing.assert_allclose(theirs(**given).logits.numpy()[mask], wanted[mask], atol=2e-5, rtol=2e-5)

    imported = import_model(tmp_path / "out")
    assert imported.report is not None
    assert imported.report.missing == imported.report.unused == ()
    assert imported.tokenizer.vocab == TOKENIZER.vocab
    assert (imported.config.attention_output_dropout_rate, imported.config.max_length) == (0.1, 8192)
    everywhere = np.tile(np.arange(120, dtype=np.int32), (2, 1))
    read = {"input_ids": ids, "attention_mask": mask.astype(np.int32), "masked_positions": everywhere}
    ours = Model(imported.config, (LM_HEAD,)).apply({"params": imported.params}, read)["mlm_logits"]
    np.testing.assert_allclose(np.asarray(ours)[mask], wanted[mask], atol=2e-5, rtol=2e-5)


def test_a_file_of_weights_alone_takes_config_and_tokenizer_of_the_released_model(tmp_path: Path) -> None:
    assert convert(checkpoint(tmp_path / "composer"), tmp_path / "whole")[0] == 0
    torch.save({name.removeprefix("model."): x for name, x in weights().items()}, tmp_path / "bare.pt")
    assert "does not say its architecture; give --config=FILE" in convert(tmp_path / "bare.pt", tmp_path / "out")[1]
    config = f"--config={tmp_path / 'whole' / 'config.json'}"
    assert "no tokenizer.json; give --tokenizer=DIR" in convert(tmp_path / "bare.pt", tmp_path / "out", config)[1]
    assert not (tmp_path / "out").exists()
    code, said = convert(tmp_path / "bare.pt", tmp_path / "out", config, f"--tokenizer={tmp_path / 'whole'}")
    assert code == 0, said
    assert "no step, no tokens and no rate are recorded" in said
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_no_code_of_a_file_runs(tmp_path: Path) -> None:
    """A command hidden in the state is left empty; one of a module that torch blocks ends the conversion."""
    mark = tmp_path / "ran"
    hidden = Hostile(subprocess.call, ["touch", str(mark)])
    code, said = convert(checkpoint(tmp_path / "hidden", callbacks=[hidden]), tmp_path / "one")
    assert (code, mark.exists()) == (0, False), said
    hidden = Hostile(os.system, f"touch {mark}")
    code, said = convert(checkpoint(tmp_path / "blocked", callbacks=[hidden]), tmp_path / "other")
    assert (code, mark.exists(), (tmp_path / "other").exists()) == (1, False, False)
    assert "error:" in said
    assert "cannot be read safely" in said
    assert "Traceback" not in said


def test_another_flexbert_is_refused(tmp_path: Path) -> None:
    untied = weights() | {"model.decoder.weight": torch.zeros(VOCAB, HIDDEN)}
    code, said = convert(checkpoint(tmp_path / "untied", model=untied), tmp_path / "out")
    assert (code, "has a decoder that is not its word embeddings" in said) == (1, True), said
    parallel = weights() | {"model.bert.encoder.layers.0.Wqkvff.weight": torch.zeros(2, 2)}
    code, said = convert(checkpoint(tmp_path / "parallel", model=parallel), tmp_path / "out")
    assert (code, "such as model.bert.encoder.layers.0.Wqkvff.weight" in said) == (1, True), said
    (tmp_path / "text.pt").write_text("latest-rank0.pt")
    code, said = convert(tmp_path / "text.pt", tmp_path / "out")
    assert (code, "cannot be read safely" in said, "Traceback" in said) == (1, True, False), said
