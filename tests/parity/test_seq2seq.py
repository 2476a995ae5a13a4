"""The encoder with a decoder against transformers: BART with MASS's positions, and a BERT that reads a BERT."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.models.encoders import seq2seq
from bert_jax.models.model import LM_HEAD, Model
from tests.models.golden import write_golden

pytestmark = pytest.mark.parity
V, D, HEADS, MLP, P = 64, 32, 4, 48, 24
Get = Callable[[str], np.ndarray]


def batch() -> dict[str, np.ndarray]:
    """Two sources, one of them padded, and fragments that begin at positions 3 and 5."""
    rng = np.random.default_rng(0)
    places = np.array([3, 5])[:, None] + np.arange(7)
    return {
        "input_ids": rng.integers(3, V, (2, 13)),
        "attention_mask": (np.arange(13)[None] < np.array([[13], [9]])).astype(int),
        "decoder_input_ids": rng.integers(3, V, (2, 7)),
        "decoder_position_ids": places,
        "masked_positions": np.tile(np.arange(7), (2, 1)),
        "labels": rng.integers(3, V, (2, 7)),
    }


def attention(get: Get, names: dict[str, str]) -> dict[str, Any]:
    """Our kernels of the linear layers query, key, value and output of these names."""
    found = {}
    for ours, theirs in names.items():
        kernel, bias = get(f"{theirs}.weight").T, get(f"{theirs}.bias")
        if ours == "output":
            found[ours] = {"kernel": kernel.reshape(HEADS, -1, D), "bias": bias}
        else:
            found[ours] = {"kernel": kernel.reshape(D, HEADS, -1), "bias": bias.reshape(HEADS, -1)}
    return found


def norm(get: Get, name: str) -> dict[str, Any]:
    return {"scale": get(f"{name}.weight"), "bias": get(f"{name}.bias")}


def dense(get: Get, name: str) -> dict[str, Any]:
    return {"kernel": get(f"{name}.weight").T, "bias": get(f"{name}.bias")}


def of_bart(get: Get) -> Any:
    """Our tree of a BART's parameters; of what MASS shares, and a BART has twice, the sum."""

    def layer(name: str, cross: bool) -> dict[str, Any]:
        def of(part: str) -> dict[str, Any]:
            kinds = {"query": "q", "key": "k", "value": "v", "output": "out"}
            return attention(get, {ours: f"{name}.{part}.{theirs}_proj" for ours, theirs in kinds.items()})

        crossing = {
            "cross_attention": of("encoder_attn") if cross else None,
            "cross_attention_layer_norm": norm(get, f"{name}.encoder_attn_layer_norm") if cross else None,
        }
        return {
            "attention": of("self_attn"),
            "attention_layer_norm": norm(get, f"{name}.self_attn_layer_norm"),
            "mlp": {"input": dense(get, f"{name}.fc1"), "output": dense(get, f"{name}.fc2")},
            "mlp_layer_norm": norm(get, f"{name}.final_layer_norm"),
            **(crossing if cross else {}),
        }

    stacks = ("model.encoder", "model.decoder")
    positions = [get(f"{stack}.embed_positions.weight")[2:] for stack in stacks]
    norms = [norm(get, f"{stack}.layernorm_embedding") for stack in stacks]
    return {
        "encoder": {
            "embeddings": {
                "word_embeddings": get("model.shared.weight"),
                "position_embeddings": sum(positions),
                "layer_norm": {name: sum(one[name] for one in norms) for name in ("scale", "bias")},
            },
            **{f"layer_{i}": layer(f"model.encoder.layers.{i}", False) for i in range(2)},
            "decoder": {f"layer_{i}": layer(f"model.decoder.layers.{i}", True) for i in range(3)},
        }
    }


def of_two_berts(get: Get) -> Any:
    """Our tree of an ``EncoderDecoderModel``; of what we share, and it has twice, the sum."""

    def layer(name: str, cross: bool) -> dict[str, Any]:
        def of(part: str) -> dict[str, Any]:
            names = {kind: f"{name}.{part}.self.{kind}" for kind in ("query", "key", "value")}
            return attention(get, {**names, "output": f"{name}.{part}.output.dense"})

        found = {
            "attention": of("attention"),
            "attention_layer_norm": norm(get, f"{name}.attention.output.LayerNorm"),
            "mlp": {
                "input": dense(get, f"{name}.intermediate.dense"),
                "output": dense(get, f"{name}.output.dense"),
            },
            "mlp_layer_norm": norm(get, f"{name}.output.LayerNorm"),
        }
        if cross:
            found["cross_attention"] = of("crossattention")
            found["cross_attention_layer_norm"] = norm(get, f"{name}.crossattention.output.LayerNorm")
        return found

    stacks = ("encoder", "decoder.bert")

    def both(name: str) -> np.ndarray:
        return sum(get(f"{stack}.embeddings.{name}") for stack in stacks)

    head = "decoder.cls.predictions"
    return {
        "encoder": {
            "embeddings": {
                "word_embeddings": both("word_embeddings.weight"),
                "position_embeddings": both("position_embeddings.weight"),
                "layer_norm": {"scale": both("LayerNorm.weight"), "bias": both("LayerNorm.bias")},
            },
            **{f"layer_{i}": layer(f"encoder.encoder.layer.{i}", False) for i in range(2)},
            "decoder": {f"layer_{i}": layer(f"decoder.bert.encoder.layer.{i}", True) for i in range(3)},
        },
        "mlm_head": {
            "transform": dense(get, f"{head}.transform.dense"),
            "layer_norm": norm(get, f"{head}.transform.LayerNorm"),
            "output_bias": get(f"{head}.bias"),
        },
    }


class Positions(torch.nn.Module):
    """Gives the decoder of a BART the positions of a batch in place of 0, 1, 2, ..."""

    def __init__(self, weight: Any, places: np.ndarray):
        super().__init__()
        self.weight, self.places = torch.nn.Parameter(weight), torch.tensor(places) + 2

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.weight[self.places]


def bart() -> Any:
    config = transformers.BartConfig(
        vocab_size=V,
        d_model=D,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=MLP,
        decoder_ffn_dim=MLP,
        max_position_embeddings=P,
        scale_embedding=True,
        activation_function="gelu",
        attn_implementation="eager",
    )
    model = transformers.BartForConditionalGeneration(config).eval()
    decoder = model.model.decoder
    decoder.embed_positions = Positions(decoder.embed_positions.weight.detach(), batch()["decoder_position_ids"])
    return model


def two_berts() -> Any:
    sizes = {
        "vocab_size": V,
        "hidden_size": D,
        "num_attention_heads": HEADS,
        "intermediate_size": MLP,
        "max_position_embeddings": P,
        "attn_implementation": "eager",
    }
    encoder = transformers.BertModel(transformers.BertConfig(num_hidden_layers=2, **sizes), add_pooling_layer=False)
    reading = transformers.BertConfig(num_hidden_layers=3, is_decoder=True, add_cross_attention=True, **sizes)
    model = transformers.EncoderDecoderModel(encoder=encoder, decoder=transformers.BertLMHeadModel(reading)).eval()
    for stack in (model.encoder, model.decoder.bert):  # a decoder of ours knows no segments
        torch.nn.init.zeros_(stack.embeddings.token_type_embeddings.weight)
    return model


def drawn(model: Any, shared: list[tuple[str, str]]) -> Any:
    """All parameters from N(0, 0.2), norms around 1; of each ``shared`` pair, the second is the first."""
    torch.manual_seed(0)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, one in parameters.items():
            if "token_type" not in name:
                one.normal_(1.0 if "orm" in name and name.endswith("weight") else 0.0, 0.2)
        for first, second in shared:
            parameters[second].copy_(parameters[first])
    return model


BART = [
    (f"model.encoder.{name}", f"model.decoder.{name}")
    for name in ("embed_positions.weight", "layernorm_embedding.weight", "layernorm_embedding.bias")
]
BERTS = [
    (f"encoder.embeddings.{name}", f"decoder.bert.embeddings.{name}")
    for name in ("word_embeddings.weight", "position_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias")
]
MODELS = {
    "MASS and BART": (bart, BART, of_bart, {"layer_norm_eps": 1e-5}),
    "BERT for generation": (
        two_berts,
        BERTS,
        of_two_berts,
        {"layer_norm_eps": 1e-12, "lm_head": "bert", "word_scale": "one"},
    ),
}


@pytest.mark.parametrize(
    ("dtype", "tolerance", "gradient_tolerance"), [("float32", 2e-5, 1e-5), ("float64", 1e-10, 1e-10)]
)
@pytest.mark.parametrize("name", MODELS)
def test_states_logits_loss_and_gradients(name: str, dtype: str, tolerance: float, gradient_tolerance: float) -> None:
    make, shared, tree_of, fields = MODELS[name]
    model, rows = drawn(make(), shared).to(getattr(torch, dtype)), batch()
    if name == "BERT for generation":  # whose decoder counts positions from 0
        rows["decoder_position_ids"] = rows["decoder_position_ids"] * 0 + np.arange(7)
    tensors = {n: torch.tensor(x) for n, x in rows.items() if n not in ("masked_positions", "decoder_position_ids")}
    labels = tensors.pop("labels")
    outputs = model(**tensors)
    loss = torch.nn.functional.cross_entropy(outputs.logits.reshape(-1, V), labels.reshape(-1))
    loss.backward()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    halved = {second for pair in shared for second in pair}

    def value(name: str) -> np.ndarray:
        return parameters[name].detach().numpy() * (0.5 if name in halved else 1.0)

    def gradient(name: str) -> np.ndarray:
        return parameters[name].grad.numpy()

    with jax.enable_x64(dtype == "float64"):
        config = seq2seq.Config(V, D, 2, HEADS, MLP, max_length=P, num_decoder_layers=3, dtype=dtype, **fields)
        params, targets = jax.tree.map(jnp.asarray, tree_of(value)), rows.pop("labels")
        source = {n: rows[n] for n in ("input_ids", "attention_mask")}

        @jax.jit
        def run(params: Any) -> Any:
            def loss(params: Any) -> Any:
                logits = Model(config, (LM_HEAD,)).apply({"params": params}, rows)["mlm_logits"]
                scores = jax.nn.log_softmax(logits)
                return -jnp.take_along_axis(scores, targets[..., None], axis=-1).mean(), logits

            encoded = Model(config).apply({"params": {"encoder": params["encoder"]}}, source)["sequence"]
            return encoded, jax.value_and_grad(loss, has_aux=True)(params)

        encoded, ((own_loss, logits), gradients) = run(params)
    real = rows["attention_mask"] > 0
    theirs = outputs.encoder_last_hidden_state.detach().numpy()
    np.testing.assert_allclose(encoded[real], theirs[real], atol=tolerance)
    scores = outputs.logits.detach().numpy()
    np.testing.assert_allclose(logits, scores, atol=tolerance * max(1.0, np.abs(scores).max()))
    assert float(own_loss) == pytest.approx(loss.item(), abs=tolerance)
    expected = tree_of(gradient)
    assert jax.tree.structure(expected) == jax.tree.structure(gradients)
    for path, wanted in jax.tree_util.tree_leaves_with_path(expected):
        got = gradients
        for key in path:
            got = got[key.key]
        limit = gradient_tolerance * max(1.0, np.abs(wanted).max())
        assert np.abs(np.asarray(got) - wanted).max() < limit, jax.tree_util.keystr(path)
    if (name, dtype) == ("BERT for generation", "float32"):
        flat = {"/".join(key.key for key in path): x for path, x in jax.tree_util.tree_leaves_with_path(expected)}
        kept = {name: x for name, x in flat.items() if "layer_1" in name or "embed" in name}
        rows |= {"labels": targets}
        write_golden("seq2seq", params, rows, loss=loss.item(), logits=scores, gradients=kept)
