"""What a bfloat16 model computes in float32, over every head."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.models import heads
from bert_jax.models.bilstm import BiLstm
from bert_jax.models.encoders import (
    albert,
    bilm,
    distilbert,
    electra,
    ernie_thu,
    gpt2,
    modernbert,
    seq2seq,
    transformer_xl,
    xlnet,
)
from bert_jax.models.heads import HiddenStates
from bert_jax.models.model import LM_HEAD, POOLER, SOP_HEAD, Model, Part, encoder_file, head_class, token_head
from bert_jax.models.primitives import ACTIVATIONS, Dense
from bert_jax.models.san import StochasticAnswer
from bert_jax.parts import catalogue
from tests.models.helpers import TINY, pretraining, random_batch, tiny

CONFIG = tiny(dtype="bfloat16", num_layers=1)
IDS = {name: random_batch()[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
MASKED = IDS | {"masked_positions": random_batch()["masked_positions"]}
PLACES = ("span_left", "span_right", "span_offsets")
BOUNDARIES = IDS | {name: random_batch()["masked_positions"] for name in PLACES}
CHOICES = {name: np.stack([ids, ids[::-1]], axis=1) for name, ids in IDS.items()}
CAUSAL = tiny(dtype="bfloat16", num_layers=1, attention="causal")
ALBERT = albert.Config(**(TINY | {"num_layers": 1, "embedding_size": 8}), dtype="bfloat16")
ELECTRA = electra.Config(**(TINY | {"num_layers": 1, "embedding_size": 8}), dtype="bfloat16")
DISTILBERT = distilbert.Config(**(TINY | {"num_layers": 1}), dtype="bfloat16")
MODERNBERT = modernbert.Config(**(TINY | {"num_layers": 1}), dtype="bfloat16")
GPT2 = gpt2.Config(**(TINY | {"num_layers": 1}), dtype="bfloat16")
SEQ2SEQ = seq2seq.Config(**(TINY | {"num_layers": 1}), dtype="bfloat16", num_decoder_layers=1)
TRANSFORMER_XL = transformer_xl.Config(**(TINY | {"num_layers": 1}), dtype="bfloat16")
BILM = bilm.Config(TINY["vocab_size"], 32, 1, 24, dtype="bfloat16")
ERNIE_THU = ernie_thu.Config(
    **(TINY | {"num_layers": 1}), dtype="bfloat16", num_token_layers=0, entity_size=8, num_entity_heads=2
)
XLNET = xlnet.Config(**(TINY | {"num_layers": 1}), dtype="bfloat16")
WRITTEN = {  # what a decoder reads
    "decoder_input_ids": random_batch()["masked_positions"],
    "masked_positions": np.tile(np.arange(3, dtype=np.int32), (4, 1)),
}
MODULES: dict[str, tuple[Any, dict[str, np.ndarray]]] = {  # module, its inputs
    "pretraining": (pretraining(CONFIG), random_batch()),
    "masked_lm": (Model(CONFIG, (LM_HEAD,)), MASKED),
    "span_boundary": (Model(CONFIG, (Part.of("boundary_head", heads.BoundaryHead),)), BOUNDARIES),
    "causal": (Model(CAUSAL, (LM_HEAD,)), MASKED),
    "classification": (Model(CONFIG, (POOLER, Part.of("classifier", heads.Classifier, num_outputs=3))), IDS),
    "regression": (Model(CONFIG, (POOLER, Part.of("classifier", heads.Classifier))), IDS),
    "bilstm": (
        Model(CONFIG, (Part.of("bilstm", BiLstm), POOLER, Part.of("classifier", heads.Classifier, num_outputs=3))),
        IDS,
    ),
    "san_classification": (Model(CONFIG, (Part.of("classifier", StochasticAnswer, num_outputs=3),)), IDS),
    "tagging": (Model(CONFIG, (Part.of("classifier", heads.Classifier, num_outputs=5, vectors="sequence"),)), IDS),
    "span_qa": (Model(CONFIG, (Part.of("qa_outputs", heads.SpanClassifier),)), IDS),
    "multiple_choice": (Model(CONFIG, (POOLER, Part.of("classifier", heads.ChoiceClassifier))), CHOICES),
    "feature_tagging": (
        Model(
            CONFIG,
            (
                Part.of("layer_mix", heads.LayerMix, layers="weighted_sum_all"),
                Part.of("bilstm", BiLstm, features=8, steps="word_ids"),
                Part.of("classifier", heads.Classifier, num_outputs=5, vectors="sequence"),
            ),
            trains_encoder=False,
        ),
        IDS | {"word_ids": IDS["attention_mask"]},
    ),
    "albert": (Model(ALBERT, (POOLER, LM_HEAD, SOP_HEAD)), random_batch()),
    "distilbert": (Model(DISTILBERT, (POOLER, Part.of("classifier", heads.Classifier))), IDS),
    "electra": (Model(ELECTRA, (POOLER, Part.of("discriminator_head", heads.ReplacedTokenHead))), IDS),
    "modernbert": (
        Model(MODERNBERT, (POOLER, *token_head(MODERNBERT), LM_HEAD, Part.of("classifier", heads.Classifier))),
        MASKED,
    ),
    "gpt2": (Model(GPT2, (POOLER, LM_HEAD)), MASKED),
    "seq2seq": (Model(SEQ2SEQ, (LM_HEAD,)), IDS | WRITTEN),
    "transformer_xl": (Model(TRANSFORMER_XL, (LM_HEAD,)), MASKED),
    "xlnet": (Model(XLNET, (POOLER, LM_HEAD)), MASKED),
    "bilm": (Model(BILM, (POOLER, LM_HEAD)), IDS),
    "ernie_thu": (
        Model(ERNIE_THU, (LM_HEAD, Part.of("entity_head", ernie_thu.EntityHead))),
        MASKED | {"entity_positions": WRITTEN["masked_positions"]},
    ),
    "teacher": (Model(CONFIG, (Part.of("states", HiddenStates, states=(0, 1), width=8),)), IDS),
    "sentence_embeddings": (Model(CONFIG, (Part.of("sentence_vector", heads.SentenceVector),)), IDS),
}
OWN_ENCODERS = (
    "albert",
    "bilm",
    "distilbert",
    "electra",
    "ernie_thu",
    "gpt2",
    "modernbert",
    "seq2seq",
    "transformer_xl",
    "xlnet",
)  # kinds whose encoder has other parameters than the rest
WIDE = ("erf", "tanh", "exp", "log", "logistic", "rsqrt", "sqrt", "reduce_sum")  # primitives that are never of bfloat16
VECTORS = ("sequence", "pooled", "predicted_entities")  # outputs of bfloat16


def equations(jaxpr: Any) -> Any:
    """Yield the equations of ``jaxpr`` and of every function that it calls."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner, "eqns"):
                yield from equations(getattr(inner, "jaxpr", inner))


@pytest.fixture(scope="module")
def params() -> dict[str, Any]:
    """Return the parameters of each kind of model, drawn from N(0, 0.2); all BERTs share those of the encoder."""
    rng = np.random.default_rng(0)
    found = {}
    for kind, (module, inputs) in MODULES.items():
        shapes = nn.unbox(jax.eval_shape(functools.partial(module.init, jax.random.key(0), inputs)))["params"]
        found[kind] = jax.tree.map(lambda x: rng.normal(0.0, 0.2, x.shape).astype(x.dtype), shapes)
    shared = {kind: kind if kind in OWN_ENCODERS else "pretraining" for kind in found}
    return {kind: {**tree, "encoder": found[shared[kind]]["encoder"]} for kind, tree in found.items()}


@pytest.fixture(scope="module")
def outputs(params: dict[str, Any]) -> dict[str, dict[str, jax.Array]]:
    """Return the outputs of each kind of model, compiled as one program, in which XLA merges the encoders."""
    own = {
        kind: {part: tree[part] for part in tree if part != "encoder" or kind in OWN_ENCODERS}
        for kind, tree in params.items()
    }

    @jax.jit
    def run(encoder: Any, own: Any) -> Any:
        return {
            kind: module.apply({"params": {"encoder": encoder, **own[kind]}}, inputs)
            for kind, (module, inputs) in MODULES.items()
        }

    return run(params["pretraining"]["encoder"], own)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", MODULES)
def test_what_is_float32(kind: str, params: dict[str, Any], outputs: dict[str, dict[str, jax.Array]]) -> None:
    module, inputs = MODULES[kind]
    assert {leaf.dtype for leaf in jax.tree.leaves(params[kind])} == {np.dtype("float32")}
    scores = {name: np.asarray(x) for name, x in outputs[kind].items() if name not in VECTORS}
    assert scores
    for name, x in scores.items():
        assert x.dtype == np.float32, name
        rounded = np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32)
        assert np.mean(x == rounded) < 0.5, f"{name}: bfloat16 values in float32"

    def loss(params: Any) -> jax.Array:
        outputs = module.apply({"params": params}, inputs)
        return sum(jnp.sum(jnp.square(x.astype(jnp.float32))) for x in outputs.values())

    made = [
        (equation.primitive.name, variable.aval)
        for equation in equations(jax.make_jaxpr(jax.grad(loss))(params[kind]).jaxpr)
        for variable in equation.outvars
    ]
    narrow = [name for name, value in made if value.dtype == jnp.bfloat16]
    assert not set(narrow) & set(WIDE)
    assert narrow.count("dot_general") > 5  # the power check: it is a bfloat16 model
    length = inputs["input_ids"].shape[-1]
    square = (inputs["input_ids"].size // length, CONFIG.num_heads, length, length)
    products = [value.dtype for name, value in made if name == "dot_general" and value.shape == square]
    layers = 0 if kind == "bilm" else CONFIG.num_layers  # of attention
    assert products[:1] == [jnp.float32] * layers  # scores; in the backward pass comes the gradient of probabilities
    assert products.count(jnp.float32) == layers


def test_every_head_is_here() -> None:
    files = [catalogue.find("models", name) for name in catalogue.parts("models")]
    files += [encoder_file(name) for name in catalogue.parts("models.encoders", having="Encoder")]
    whole = {
        kind
        for file in files
        for kind in vars(file).values()
        if isinstance(kind, type)
        and issubclass(kind, heads.Head)
        and kind is not heads.Head
        and not kind.__name__.startswith("_")
    }
    assert whole == {head_class(module.config, part.head) for module, _ in MODULES.values() for part in module.parts}


def test_the_gradient_of_a_bfloat16_bias_is_summed_in_float32() -> None:
    layer = Dense(CONFIG, (("embed", 32),), (("heads", 2), ("head_dim", 8)))
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(64, 128, 32)), jnp.bfloat16)
    weights = rng.uniform(size=(64, 128, 2, 8)).astype(jnp.bfloat16)
    params = nn.unbox(layer.init(jax.random.key(0), x))["params"]
    found = jax.jit(jax.grad(lambda p: jnp.sum(layer.apply({"params": p}, x).astype(jnp.float32) * weights)))(params)
    assert found["bias"].dtype == jnp.float32
    expected = weights.astype(np.float64).sum(axis=(0, 1))
    assert np.abs(np.asarray(found["bias"]) / expected - 1).max() < 1e-5


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_a_bfloat16_gelu_is_the_rounded_true_one(name: str) -> None:
    with np.errstate(invalid="ignore"):
        every = np.arange(2**16, dtype=np.uint16).view(jnp.bfloat16).astype(np.float64)
    x = every[(every > -4) & (every < 8) & (np.abs(every) > 1e-30)]
    if name == "gelu":
        true = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x])
    else:
        true = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    found = ACTIVATIONS[name](jnp.asarray(x, jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    error = np.abs(np.asarray(found, np.float64) - true) / np.abs(true)
    assert error.max() < 2**-8 + 2e-3  # the rounding to bfloat16, and what float32 cancels itself
