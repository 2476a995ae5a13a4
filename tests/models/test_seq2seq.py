"""The encoder with a decoder: its numbers, who sees whom, packed rows, kept keys, and its sizes."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import albert, bert, distilbert, seq2seq
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.models.transformer import stack_layers, unstack_layers
from bert_jax.training.state import overlay
from tests.models import numpy_seq2seq as by_hand
from tests.models.helpers import as_jax, random_params, tiny

V = 40
SMALL = {"vocab_size": V, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "mlp_dim": 24, "max_length": 32}
CONFIG = seq2seq.Config(**SMALL, num_decoder_layers=2, dtype="float64")
HEADS = {"tied": CONFIG, "bert": seq2seq.Config(**SMALL, num_decoder_layers=2, lm_head="bert", word_scale="one")}
LENGTHS, TARGETS, STARTS = (7, 11), (3, 5), (2, 4)  # of two sentences: tokens, tokens of the target, its first position


def drawn(config: seq2seq.Config, seed: int = 0) -> Any:
    """Every parameter from N(0, 0.2), layer-norm gains around 1, unrolled."""
    model = Model(config.plain(), (LM_HEAD,))
    with jax.enable_x64(True):
        shapes = nn.unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch_of((4,), (2,), (1,)))))["params"]
    rng = np.random.default_rng(seed)
    return jax.tree_util.tree_map_with_path(
        lambda path, x: (rng.normal(0, 0.2, x.shape) + (path[-1].key == "scale")).astype(x.dtype), shapes
    )


def sentences(lengths: Any = LENGTHS, targets: Any = TARGETS, starts: Any = STARTS, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(1, V, n).tolist(), rng.integers(1, V, t).tolist(), list(range(s, s + t)))
        for n, t, s in zip(lengths, targets, starts, strict=True)
    ]


def batch_of(lengths: Any = LENGTHS, targets: Any = TARGETS, starts: Any = STARTS, seed: int = 0) -> dict[str, Any]:
    """A row a sentence, padded."""
    every = sentences(lengths, targets, starts, seed)
    source, target = (
        np.zeros((2, len(every), max(lengths)), np.int32),
        np.zeros((3, len(every), max(targets)), np.int32),
    )
    for row, (ids, read, places) in enumerate(every):
        source[:, row, : len(ids)] = [ids, [1] * len(ids)]
        target[:, row, : len(read)] = [read, places, [1] * len(read)]
    return features(*source, *target)


def packed() -> dict[str, Any]:
    """Both sentences in one row, with padding after them."""
    every, source, target = sentences(), np.zeros((4, 1, 21), np.int32), np.zeros((3, 1, 10), np.int32)
    at = to = 0
    for number, (ids, read, places) in enumerate(every, start=1):
        n, t = len(ids), len(read)
        source[:, 0, at : at + n] = [ids, [1] * n, range(n), [number] * n]
        target[:, 0, to : to + t] = [read, places, [number] * t]
        at, to = at + n, to + t
    ids, mask, places, numbers = source
    return {**features(ids, mask, *target), "position_ids": places, "sequence_ids": numbers}


def features(ids: Any, mask: Any, read: Any, places: Any, numbers: Any) -> dict[str, Any]:
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "decoder_input_ids": read,
        "decoder_position_ids": places,
        "decoder_sequence_ids": numbers,
        "masked_positions": np.broadcast_to(np.arange(read.shape[1], dtype=np.int32), read.shape),
    }


@functools.cache
def runner(config: seq2seq.Config) -> Any:
    model = Model(config, (LM_HEAD,))
    return jax.jit(lambda params, batch: model.apply({"params": params}, batch)["mlm_logits"])


# The head of a BERT is compared with torch's values by test_golden_writers.py.
@pytest.mark.parametrize("name", ["tied", pytest.param("bert", marks=pytest.mark.heavy)])
def test_it_is_the_model_written_out_in_numpy(name: str) -> None:
    """Logits of padded and packed rows, scanned layers too, the loss, and its gradient along random directions."""
    with jax.enable_x64(True):
        config = dataclasses.replace(HEADS[name], dtype="float64")
        params = drawn(config)
        expected = [by_hand.logits(params, config, *one) for one in sentences()]
        for row, scores in enumerate(runner(config)(params, batch_of()) if name == "bert" else ()):
            np.testing.assert_allclose(scores[: TARGETS[row]], expected[row], atol=1e-10)
        labels = [np.random.default_rng(1).integers(1, V, t).tolist() for t in TARGETS]

        form, tree = config, params
        if name == "tied":  # scanned layers, computed again in the backward pass
            form, tree = dataclasses.replace(config, layers="scanned", remat="dots"), stack_layers(params)

        @jax.jit
        @functools.partial(jax.value_and_grad, has_aux=True)
        def loss(params: Any) -> Any:
            found: Any = Model(form, (LM_HEAD,)).apply({"params": params}, packed())
            scores = jax.nn.log_softmax(found["mlm_logits"][0, : sum(TARGETS)])
            return -jnp.sum(jnp.take_along_axis(scores, jnp.array(sum(labels, []))[:, None], 1)), found["mlm_logits"]

        def written_out(params: Any) -> float:
            return sum(
                by_hand.surprise(by_hand.logits(params, config, *one), label)
                for one, label in zip(sentences(), labels, strict=True)
            )

        (value, logits), gradient = loss(tree)
        gradient = unstack_layers(gradient)
        np.testing.assert_allclose(logits[0, : sum(TARGETS)], np.concatenate(expected), atol=1e-10)
        assert float(value) == pytest.approx(written_out(params), rel=1e-12)
        rng, step = np.random.default_rng(2), 1e-5
        for _ in range(2):
            way = jax.tree.map(lambda x: rng.normal(size=x.shape), params)
            ahead, behind = (written_out(jax.tree.map(lambda x, w, s=s: x + s * w, params, way)) for s in (step, -step))
            along = sum(float(np.sum(g * w)) for g, w in zip(*map(jax.tree.leaves, (gradient, way)), strict=True))
            assert along == pytest.approx((ahead - behind) / (2 * step), rel=1e-6)


def test_its_encoder_is_a_bert_without_token_types() -> None:
    """A batch with nothing to decode; a width whose root is exact, and the same tables scaled by hand."""
    with jax.enable_x64(True):
        params = drawn(CONFIG)["encoder"]
        batch = {name: x for name, x in batch_of().items() if not name.startswith("decoder")}
        batch["token_type_ids"] = batch["input_ids"] * 0
        own = jax.jit(lambda: Model(CONFIG).apply({"params": {"encoder": params}}, batch)["sequence"])()
        config = bert.Config(**SMALL, dtype="float64", layer_norm_eps=1e-5)
        tables = params["embeddings"]
        tables = {
            **tables,
            "word_embeddings": 4 * tables["word_embeddings"],
            "token_type_embeddings": np.zeros((2, 16)),
        }
        of_bert = {"encoder": {**params, "embeddings": tables}}
        expected = jax.jit(lambda: Model(config).apply({"params": of_bert}, batch)["sequence"])()
        np.testing.assert_allclose(own, expected, atol=1e-12)


def test_a_token_sees_what_it_may_and_nothing_else() -> None:
    """Each token of source and target of a packed row is replaced; each score of the decoder is compared."""
    params, batch = drawn(CONFIG), packed()
    with jax.enable_x64(True):
        hidden = batch["sequence_ids"].copy()
        hidden[0, 1] = 0  # the encoder reads this token, and the decoder does not
        run = runner(CONFIG)
        before = run(params, batch)[0]
        own, numbers = batch["sequence_ids"][0], batch["decoder_sequence_ids"][0]
        for name, ids in (("input_ids", own), ("decoder_input_ids", numbers)):
            for place, number in enumerate(ids):
                other = batch[name].copy()
                other[0, place] = other[0, place] % (V - 1) + 1
                change = np.abs(run(params, {**batch, name: other})[0] - before).max(-1)
                sees = (numbers == number) & (number > 0)
                if name == "decoder_input_ids":
                    sees &= np.arange(len(numbers)) >= place
                real = numbers > 0
                assert np.all(change[real & ~sees] == 0)
                assert np.all(change[real & sees] > 1e-5)  # the power check
        one = sentences()[0]
        cut = run(params, {**batch, "source_ids": hidden})[0, : TARGETS[0]]
        np.testing.assert_allclose(cut, by_hand.logits(params, CONFIG, *one, hidden=(1,)), atol=1e-10)
        assert np.abs(cut - before[: TARGETS[0]]).max() > 1e-3


def test_a_token_at_a_position_is_one_vector_in_encoder_and_decoder() -> None:
    params = drawn(CONFIG)["encoder"]
    embeddings = seq2seq._Embeddings(CONFIG)
    ids = np.array([[5, 9, 9, 30]])
    with jax.enable_x64(True):
        embed = jax.jit(lambda batch: embeddings.apply({"params": params["embeddings"]}, batch, None))
        whole = embed({"input_ids": ids})
        read = seq2seq._of_decoder({"decoder_input_ids": ids[:, 2:], "decoder_position_ids": np.array([[2, 3]])})
        of_decoder = embed(read)
    assert np.array_equal(of_decoder, whole[:, 2:])
    assert np.abs(whole[0, 1] - whole[0, 2]).max() > 1e-3  # the power check: the same token at another position


# The stepper "a scanned decoder" of tests/generation/test_steppers.py is compared in the quick tests.
@pytest.mark.heavy
@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_token_by_token_equals_one_pass(layers: Any) -> None:
    """Prompts of the decoder of unlike lengths in a batch, sources too; float64, 1e-12."""
    config = dataclasses.replace(CONFIG, layers=layers)
    prompts, new, rows = np.array([1, 3]), 4, 2
    with jax.enable_x64(True):
        params = drawn(CONFIG)
        params = stack_layers(params) if layers == "scanned" else params
        batch = batch_of(targets=(1 + new, 3 + new))
        model = Model(config, (LM_HEAD,))
        run = jax.jit(lambda kept, batch: model.apply({"params": params, **kept}, batch, mutable=["memory"]))
        expected = run({}, batch)[0]["mlm_logits"]

        longest, slots = prompts.max(), prompts.max() + new + 1
        ids, positions = np.zeros((2, rows, slots), np.int32)
        ids[:, :longest] = np.arange(longest) < prompts[:, None]
        positions[:, :longest] = batch["decoder_position_ids"][:, :longest]
        of_decoder = ("decoder_input_ids", "decoder_position_ids", "decoder_sequence_ids", "masked_positions")
        prompt = {**batch, **{name: batch[name][:, :longest] for name in of_decoder}, "memory_ids": ids}
        prompt["decoder_sequence_ids"] = ids[:, :longest]
        out, kept = run({}, prompt)
        for row, length in enumerate(prompts):
            np.testing.assert_allclose(out["mlm_logits"][row, :length], expected[row, :length], atol=1e-12)

        source = {name: batch[name] for name in ("input_ids", "attention_mask")}
        every = np.arange(rows)
        for number in range(new):
            at = prompts + number
            ids[:, longest + number] = 1
            positions[:, longest + number] = batch["decoder_position_ids"][every, at]
            step = {
                **source,
                "decoder_input_ids": batch["decoder_input_ids"][every, at][:, None],
                "decoder_position_ids": batch["decoder_position_ids"][every, at][:, None],
                "masked_positions": np.zeros((rows, 1), np.int32),
                "memory_ids": ids,
                "memory_positions": positions,
                "memory_slot": np.int32(longest + number),
            }
            out, kept = run(kept, step)
            np.testing.assert_allclose(out["mlm_logits"][:, 0], expected[every, at], atol=1e-12)


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_its_parameters_are_counted(layers: Any) -> None:
    config = seq2seq.Config(30_522, layers=layers)
    model = Model(config, (LM_HEAD,))
    shapes = nn.unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch_of())))["params"]
    assert shapes.keys() == {"encoder"}  # the tied head has none
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    counted = [x.size for path, x in leaves if path[-1].key not in ("bias", "scale")]
    assert config.num_parameters == sum(counted)
    assert config == seq2seq.Config(30_522, **seq2seq.SIZES["base"], layers=layers)
    assert round(sum(x.size for _, x in leaves) / 1e6) == 123  # as microsoft/MASS, MASS-summarization, README.md says
    assert round(seq2seq.Config(30_522, **seq2seq.SIZES["middle"]).num_parameters / 1e6) == 208
    for fields in seq2seq.SIZES.values():
        build(seq2seq.Config, {"vocab_size": 10, **fields}, "config.model")


def test_its_products_are_counted() -> None:
    """Written out, layer by layer: the encoder, the decoder, and both with the head."""
    config, length, decoded = seq2seq.Config(**SMALL, num_decoder_layers=2), 12, 5
    layers = config.products(length)
    assert layers == length * 2 * (4 * 16**2 + 2 * 16 * 24 + 2 * 16 * length)
    decoder = config.products(length, decoded) - layers
    of_target = decoded * (6 * 16**2 + 2 * 16 * 24 + 2 * 16 * decoded + 2 * 16 * length)
    assert decoder == 2 * (of_target + length * 2 * 16**2)
    assert config.train_flops(length, decoded) == 6 * (layers + decoder + decoded * V * 16)


def test_dropout_of_the_two_stacks_differs() -> None:
    """What a decoder reads is not dropped where the encoder drops it."""
    config = seq2seq.Config(**{**SMALL, "num_layers": 2}, num_decoder_layers=2, dropout_rate=0.5)
    params, batch = drawn(config), batch_of((8, 8), (8, 8), (0, 0))
    rng = RowRng.create(0, 0, jnp.arange(2))
    embeddings = seq2seq._Embeddings(config)

    @jax.jit
    def dropped(read: Any, rng: Any) -> Any:
        return embeddings.apply({"params": params["encoder"]["embeddings"]}, read, rng) == 0

    first = dropped({"input_ids": batch["input_ids"]}, rng)
    second = dropped({"input_ids": batch["decoder_input_ids"]}, rng.site("decoder"))
    assert 0.4 < (first != second).mean() < 0.6


def test_bad_values_are_named() -> None:
    with pytest.raises(UserError, match="config.model.num_decoder_layers is 0; 1 to 4,096 are allowed"):
        seq2seq.Config(**SMALL, num_decoder_layers=0)
    with pytest.raises(UserError, match="rows of 33 positions exceed the model's 32"):
        runner(config := seq2seq.Config(**SMALL))(drawn(config), batch_of((33,), (2,), (1,)))


@pytest.mark.parametrize("parts", ["both", "encoder", "decoder"])
def test_it_begins_as_a_bert(parts: Any) -> None:
    """Its encoder then computes what the BERT does, segments of 0 included; its decoder has the layers of the BERT."""
    of_bert = tiny(vocab_size=V, num_layers=3, max_length=24)
    params = random_params(of_bert)
    config = seq2seq.fitted(seq2seq.Config(V, init_parts=parts, num_layers=2, num_decoder_layers=1), of_bert)
    layers = (2 if parts == "decoder" else 3, 1 if parts == "encoder" else 3)
    assert (config.num_layers, config.num_decoder_layers) == layers
    taken, says = seq2seq.begun(params["encoder"], config)
    assert "fresh" in says
    whole = overlay(taken, as_jax(drawn(config)["encoder"]))
    for number in range(3 if parts != "encoder" else 0):
        given, name = params["encoder"][f"layer_{number}"], f"layer_{number}"
        found = {part: whole["decoder"][name][part] for part in given}
        jax.tree.map(np.testing.assert_array_equal, found, given)
    if parts == "both":
        ids = np.random.default_rng(0).integers(1, V, (2, 9))
        batch = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}

        @jax.jit
        def both(own: Any, theirs: Any) -> Any:
            models = ((config, own), (of_bert, theirs))
            return [Model(one).apply({"params": {"encoder": tree}}, batch)["sequence"] for one, tree in models]

        np.testing.assert_allclose(*both(whole, params["encoder"]), atol=2e-5)
    embeddings = taken["embeddings"]["word_embeddings"]
    np.testing.assert_array_equal(embeddings, params["encoder"]["embeddings"]["word_embeddings"])


def test_it_begins_as_no_other_encoder() -> None:
    for other in (albert.Config(V), distilbert.Config(V), bert.Config(V, attention="causal")):
        with pytest.raises(UserError, match="^an encoder with a decoder begins as a BERT or a RoBERTa, and the model"):
            seq2seq.fitted(seq2seq.Config(V), other)
