"""ModernBERT against ``transformers``: hidden states, logits, loss and every gradient, in rows of 15 windows.

Run by ``make test-parity``. It also writes the golden arrays that ``make test`` checks without torch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.interchange import names
from bert_jax.interchange.conversion import leaf
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.models.model import LM_HEAD, Model, encoder_of
from bert_jax.models.transformer import scanned_from, stack_layers, unstack_layers
from tests.interchange.heads import TOKENIZER
from tests.models.golden_modernbert import FIELDS, GOLDEN, LENGTH, V, batch_of

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def exact_angles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers has float32 angles in every model. Here they are float64, rounded to the dtype of the model."""

    def forward(self: Any, x: Any, position_ids: Any, layer_type: str) -> Any:
        base = self.config.rope_parameters[layer_type]["rope_theta"]
        width = self.config.hidden_size // self.config.num_attention_heads
        frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = position_ids[..., None].double() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def rotated(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return tuple(x * cos + modeling.rotate_half(x) * sin for x in (q, k))

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **_: Any) -> Any:
        weights = torch.softmax(q @ k.transpose(2, 3) * scaling + (0 if mask is None else mask), dim=-1)
        return (weights @ v).transpose(1, 2).contiguous(), weights

    from transformers.models.modernbert import modeling_modernbert as modeling

    monkeypatch.setattr(modeling.ModernBertRotaryEmbedding, "forward", forward)
    monkeypatch.setattr(modeling, "apply_rotary_pos_emb", rotated)
    monkeypatch.setattr(modeling, "eager_attention_forward", attention)  # theirs has a softmax in float32


def theirs(folder: Path, dtype: Any = torch.float32, ending: str = "ForMaskedLM", **changes: Any) -> Any:
    """Return a tiny random model of a transformers class, saved in ``folder``."""
    keys = {key: FIELDS[ours] for key, ours in family_of("modernbert").fields.items() if ours in FIELDS}
    for key in ("attn_out_dropout_prob", "global_rope_theta", "local_rope_theta", "global_attn_every_n_layers"):
        keys.pop(key, None)
    rope = {"full_attention": FIELDS["global_theta"], "sliding_attention": FIELDS["local_theta"]}
    fields = {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in rope.items()}}
    config = transformers.ModernBertConfig(
        vocab_size=V, **keys | fields | changes, pad_token_id=0, attn_implementation="eager", num_labels=3
    )
    model = getattr(transformers, f"ModernBert{ending}")(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters(), key=lambda item: not item[0].startswith("model.")):
            parameter.normal_(1.0 if "norm.weight" in name else 0.0, 0.2)
    model.save_pretrained(folder)
    TOKENIZER.save(folder / "vocab.txt")
    return model.to(dtype)


def tensors(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: torch.tensor(x).long() for name, x in batch.items()}


def loss_of(config: Any, params: Any, batch: Any) -> Any:
    """Return the mean loss of the labelled positions, and the logits of all positions."""
    everywhere = jnp.tile(jnp.arange(LENGTH, dtype=jnp.int32), (len(batch["input_ids"]), 1))
    read = {name: batch[name] for name in ("input_ids", "attention_mask")} | {"masked_positions": everywhere}
    logits = Model(config, (LM_HEAD,)).apply({"params": params}, read)["mlm_logits"]
    labels = batch["labels"]
    given = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return -jnp.sum(given * (labels >= 0)) / jnp.sum(labels >= 0), logits


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_hidden_states_logits_loss_and_gradients(tmp_path: Path, layers: Any, dtype: Any) -> None:
    model, batch = theirs(tmp_path, getattr(torch, dtype)), batch_of()
    imported = import_model(tmp_path)
    assert imported.report.missing == ()
    given = tensors(batch)
    out = model(**given, output_hidden_states=True)
    their_loss = torch.nn.functional.cross_entropy(out.logits.view(-1, V), given["labels"].view(-1))  # not in float32
    their_loss.backward()
    tolerance, gradient_tolerance = (2e-5, 1e-5) if dtype == "float32" else (1e-10, 1e-10)
    with jax.enable_x64(dtype == "float64"):
        config = dataclasses.replace(imported.config, dtype=dtype, layers=layers)
        groups, params = scanned_from(config.blocks), jax.tree.map(lambda x: jnp.asarray(x, dtype), imported.params)
        params = stack_layers(params, groups) if layers == "scanned" else params
        (loss, logits), grads = jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True)(params)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        hidden = encoder_of(config).apply({"params": params["encoder"]}, inputs, hidden_states="all").hidden
    real = batch["attention_mask"] > 0
    for ours, wanted in zip(hidden, out.hidden_states, strict=True):
        np.testing.assert_allclose(
            np.asarray(ours)[real], wanted.detach().numpy()[real], atol=tolerance, rtol=tolerance
        )
    np.testing.assert_allclose(
        np.asarray(logits)[real], out.logits.detach().numpy()[real], atol=tolerance, rtol=tolerance
    )
    assert float(loss) == pytest.approx(their_loss.item(), rel=tolerance)
    grads = unstack_layers(grads, groups) if layers == "scanned" else grads
    parameters, gradients = dict(model.named_parameters()), {}
    entries = [e for e in family_of("modernbert").entries(4, "ModernBertForMaskedLM") if e.part != "classifier"]
    assert len(entries) == len(jax.tree.leaves(grads)) == len(parameters)
    for entry in entries:
        wanted = parameters[entry.theirs].grad.numpy()
        error = np.abs(names.to_theirs(np.asarray(leaf(grads, entry.ours)), entry) - wanted).max()
        assert error <= gradient_tolerance * np.abs(wanted).max(), (entry.ours, error, np.abs(wanted).max())
        gradients[entry.ours] = names.to_ours(wanted, entry, np.shape(leaf(grads, entry.ours)))
    if (dtype, layers) == ("float32", "unrolled"):
        flat = {"/".join(str(k.key) for k in at): x for at, x in jax.tree_util.tree_leaves_with_path(imported.params)}
        shown = [name for name in gradients if "layer_1" in name or name.startswith("mlm_head")]
        np.savez_compressed(
            GOLDEN,
            loss=np.float32(their_loss.item()),
            logits=out.logits.detach().numpy(),
            **{f"gradients/{name}": gradients[name] for name in shown},
            **{f"params/{name}": x for name, x in flat.items()},
        )


def test_packed_rows_are_read_as_theirs_with_a_mask_for_each_kind_of_layer(tmp_path: Path) -> None:
    """Transformers takes one mask of four axes, without a window, for both kinds of layers, so each gets a mask."""
    model = theirs(tmp_path)
    imported = import_model(tmp_path)
    ids = np.random.default_rng(1).integers(5, V, (1, LENGTH)).astype(np.int32)
    sequences = np.array([[1] * 47 + [2] * 58 + [0] * 15], np.int32)
    positions = np.array([[*range(47), *range(58), *[0] * 15]], np.int32)
    same = (sequences[0][:, None] == sequences[0][None]) & (sequences[0][None] > 0)
    near = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None]) <= 4
    masks = {"full_attention": same, "sliding_attention": same & near}
    added = {kind: torch.tensor(np.where(mask, 0.0, -1e4))[None, None].float() for kind, mask in masks.items()}
    with torch.no_grad():
        wanted = model.model(
            torch.tensor(ids).long(), attention_mask=added, position_ids=torch.tensor(positions).long()
        ).last_hidden_state.numpy()
    batch = {"input_ids": ids, "attention_mask": (sequences > 0).astype(np.int32)}
    batch |= {"sequence_ids": sequences, "position_ids": positions}
    encoder = encoder_of(imported.config)
    found = np.asarray(encoder.apply({"params": imported.params["encoder"]}, batch).sequence)
    np.testing.assert_allclose(found[0, :105], wanted[0, :105], atol=2e-5, rtol=0)
    alone = {name: batch[name][:, 47:105] for name in ("input_ids", "attention_mask")}
    separate = np.asarray(encoder.apply({"params": imported.params["encoder"]}, alone).sequence)
    np.testing.assert_allclose(found[:, 47:105], separate, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "change",
    [{"global_theta": 10_000.0}, {"local_attention": 6}, {"local_attention": 10}, {"global_every": 2}, "gate"],
    ids=str,
)
def test_another_model_differs(tmp_path: Path, change: Any) -> None:
    """Each of these changes moves the outputs, so the parity above would notice it."""
    model, batch = theirs(tmp_path), batch_of()
    imported = import_model(tmp_path)
    params, config = imported.params, imported.config
    if change == "gate":
        kernel = params["encoder"]["layer_1"]["mlp"]["input"]["kernel"]
        params["encoder"]["layer_1"]["mlp"]["input"]["kernel"] = kernel[:, ::-1]
    else:
        config = dataclasses.replace(config, **change)
    with torch.no_grad():
        wanted = model(**tensors(batch)).logits.numpy()
    found = np.asarray(loss_of(config, params, batch)[1])
    assert np.abs(found - wanted)[batch["attention_mask"] > 0].max() > 1e-3


def test_a_decoder_without_a_bias(tmp_path: Path) -> None:
    model, batch = theirs(tmp_path, decoder_bias=False, mlp_dropout=0.1), batch_of()
    imported = import_model(tmp_path)
    assert "begins with zeros" in imported.report.line
    with torch.no_grad():
        wanted = model(**tensors(batch)).logits.numpy()
    found, real = np.asarray(loss_of(imported.config, imported.params, batch)[1]), batch["attention_mask"] > 0
    np.testing.assert_allclose(found[real], wanted[real], atol=2e-5, rtol=0)


@pytest.mark.parametrize("old", [True, False])
def test_bases_of_rotation_are_read_from_old_and_new_keys(tmp_path: Path, old: bool) -> None:
    import json

    theirs(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    if old:
        del config["rope_parameters"]
        config |= {"global_rope_theta": 20_000.0, "local_rope_theta": -1.0}
    else:
        config["rope_parameters"]["full_attention"]["rope_theta"] = 20_000.0
    path.write_text(json.dumps(config))
    read = import_model(tmp_path).config
    assert isinstance(read.global_theta, float)
    assert (read.global_theta, read.local_theta) == (20_000.0, 20_000.0 if old else 10_000.0)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_sentence_transformers_gives_our_vectors(tmp_path: Path, pooling: str) -> None:
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    theirs(tmp_path / "theirs", ending="Model")
    model = import_model(tmp_path / "theirs")
    export_model(model, tmp_path / "out", "card", pooling=pooling)
    embedder = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    texts = ["abc de", "f", "a b c d e f g h i j k l m n o p q r s t", "BAD cab"]
    for text, vector in zip(texts, embedder.encode(texts), strict=True):
        encoded = TOKENIZER.encode(text, max_length=model.config.max_length)
        batch = {name: jnp.asarray([getattr(encoded, name)]) for name in ("input_ids", "attention_mask")}
        encoder = encoder_of(model.config)
        sequence = np.asarray(encoder.apply({"params": model.params["encoder"]}, batch).sequence)[0]
        real = sequence[np.asarray(batch["attention_mask"][0]) > 0]
        np.testing.assert_allclose(vector, real.mean(0) if pooling == "mean" else real[0], atol=2e-5, rtol=0)
    assert embedder.max_seq_length == model.config.max_length
