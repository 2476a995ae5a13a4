"""UniLM: who sees whom in each direction, what the directions have in common, and their rows and losses."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import attention
from bert_jax.models.encoders import bert, modernbert, roberta
from bert_jax.objectives import mlm_nsp, unilm
from bert_jax.objectives.base import Setting
from bert_jax.rows.ngram_models import HIDDEN
from bert_jax.task import Variables
from tests.models.helpers import random_params
from tests.objectives.texts import Text, objective, rows_of

LENGTH = 12
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_layers": 3, "num_heads": 2, "mlp_dim": 24, "max_length": 16}
QUIET = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
BERT = bert.Config(**SIZES, **QUIET, type_vocab_size=6)
DIRECTIONS: tuple[Any, ...] = ("both sides", "sequence to sequence", "left to right", "right to left")
PLACES = np.arange(LENGTH)
# Two packed sequences of 6 and 4 tokens, their second segments from 3 and from 8; and one sequence of 9 tokens.
PACKED = np.array([1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0])
ROWS = {
    "packed": (PACKED, np.isin(PLACES, [3, 4, 5, 8, 9])),
    "padded": ((PLACES < 9).astype(int), (PLACES >= 4) & (PLACES < 9)),
}


def task_of(direction: Any, model: Any = BERT, **config: Any) -> Any:
    return unilm.Objective(unilm.Config(direction=direction, **config), Setting(model, {"phase1": LENGTH}))


def batch_of(ids: np.ndarray, second: np.ndarray, packed: bool = True, seed: int = 0) -> dict[str, jax.Array]:
    """A row without masks, which predicts all positions."""
    starts = np.array([np.flatnonzero(ids == one)[0] if one else 0 for one in ids])
    features = {
        "input_ids": np.random.default_rng(seed).integers(5, 40, LENGTH),
        "token_type_ids": second.astype(int),
        "attention_mask": (ids > 0).astype(int),
        "masked_positions": PLACES,
        "cls_positions": np.zeros(1, int),
        **({"sequence_ids": ids, "position_ids": np.where(ids > 0, PLACES - starts, 0)} if packed else {}),
    }
    return {name: jnp.asarray(x[None], jnp.int32) for name, x in features.items()}


def seen_by(direction: str, ids: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Which token each position sees, [L, L], written out from the paper's figure 1."""
    query, key = PLACES[:, None], PLACES[None]
    allowed = {
        "both sides": np.ones((LENGTH, LENGTH), bool),
        "left to right": key <= query,
        "right to left": key >= query,
        "sequence to sequence": ~second[None] | (second[:, None] & (key <= query)),
    }[direction]
    return allowed & (ids[:, None] == ids[None]) & (ids[None] > 0)


@functools.cache
def outputs_of(direction: str, model: Any = BERT) -> Any:
    """A compiled function of parameters and a batch of rows, through the objective's own ``inputs``."""
    task = task_of(direction, model)
    return jax.jit(lambda params, batch: task.outputs(Variables(params, {}), batch))


def params_of(model: Any = BERT, **types: int) -> Any:
    """Random parameters, with the vectors of some token types as others: ``t5=2`` has for type 5 the vector of 2."""
    params = random_params(model)
    table = params["encoder"]["embeddings"].get("token_type_embeddings")
    for name, other in types.items():
        table[int(name[1:])] = table[other]
    return params


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_token_knows_what_its_direction_hides(direction: str) -> None:
    """Three layers, packed and padded; each token is replaced, and each output compared. Seen tokens matter."""
    params = params_of()
    for name, (ids, second) in ROWS.items():
        batch = {n: jnp.repeat(x, LENGTH + 1, axis=0) for n, x in batch_of(ids, second).items()}
        tokens = np.array(batch["input_ids"])
        tokens[PLACES + 1, PLACES] = tokens[PLACES + 1, PLACES] % 34 + 5
        found = outputs_of(direction)(params, {**batch, "input_ids": jnp.asarray(tokens)})
        seen = seen_by(direction, ids, second)
        real = ids > 0
        for output in ("sequence", "mlm_logits"):
            change = np.abs(np.asarray(found[output][1:] - found[output][:1])).max(-1).T  # [output, token]
            assert np.all(change[real][~seen[real]] == 0), (name, output)
            assert np.all(change[real][seen[real]] > 1e-5), (name, output)


def test_token_types_are_as_published() -> None:
    ids, second = ROWS["packed"]
    batch = batch_of(ids, second)
    found = {one: np.asarray(task_of(one).inputs(batch)["token_type_ids"])[0].tolist() for one in DIRECTIONS}
    assert found == {
        "both sides": [0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0],
        "sequence to sequence": [4, 4, 4, 5, 5, 5, 4, 4, 5, 5, 0, 0],
        "left to right": [2] * 10 + [0, 0],
        "right to left": [3] * 10 + [0, 0],
    }


def test_without_a_source_it_is_left_to_right_and_without_a_target_both_sides() -> None:
    ids = ROWS["padded"][0]
    params = params_of(t5=2, t4=0)
    for second, other in ((ids > 0, "left to right"), (ids < 0, "both sides")):
        batch = batch_of(ids, second)
        found, expected = (outputs_of(one)(params, batch)["sequence"] for one in ("sequence to sequence", other))
        np.testing.assert_array_equal(found, expected)
    power = outputs_of("right to left")(params_of(t3=0), batch)["sequence"]
    assert np.abs(power - expected).max() > 0.1


def test_tokens_in_reverse_turn_right_to_left_into_left_to_right() -> None:
    ids, second = np.ones(LENGTH, int), PLACES < 0
    batch = batch_of(ids, second)
    reverse = {**batch, **{name: batch[name][:, ::-1] for name in ("input_ids", "position_ids")}}
    params = params_of(t3=2)
    ahead = outputs_of("left to right")(params, batch)["sequence"]
    back = outputs_of("right to left")(params, reverse)["sequence"]
    np.testing.assert_allclose(back[:, ::-1], ahead, atol=2e-5)
    assert np.abs(back - ahead).max() > 0.1


def test_an_encoder_without_token_types_reads_the_directions_too() -> None:
    model = modernbert.Config(**SIZES, local_attention=4)
    ids, second = ROWS["packed"]
    params, batch = random_params(model), batch_of(ids, second)
    found = {one: np.asarray(outputs_of(one, model)(params, batch)["sequence"]) for one in DIRECTIONS[1:]}
    assert np.abs(found["left to right"] - found["right to left"])[0, ids > 0].max() > 0.1
    assert np.abs(found["left to right"] - found["sequence to sequence"])[0, ids > 0].max() > 0.1


def test_left_to_right_is_left_to_the_kernels() -> None:
    """Attention that is causal, and no order, is what kernels compute; the other directions have an order."""
    model = roberta.Config(**SIZES)
    batch, params = batch_of(*ROWS["packed"]), random_params(model)
    for direction in DIRECTIONS:
        task, seen = task_of(direction, model), list[Any]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention, "attend", lambda x, visible, *_, seen=seen: seen.append(visible) or x[0])
            jax.eval_shape(lambda params, task=task: task.outputs(Variables(params, {}), batch), params)
        one_way = direction == "left to right"
        assert [one.causal for one in seen] == [one_way] * SIZES["num_layers"]
        assert [one.is_plain for one in seen] == [one_way or direction == "both sides"] * SIZES["num_layers"]
        assert not task.setting.model.causal  # a finished model reads both sides


# ---- Rows and losses -------------------------------------------------------------------------------------------------


def of_text(text: Text, direction: Any, **config: Any) -> Any:
    """The objective on rows of a text, with a small model of six token types."""
    corpus, tokenizer = text
    model = bert.Config(
        **{**SIZES, "vocab_size": tokenizer.size, "num_layers": 2, "max_length": 64},
        **QUIET,
        type_vocab_size=6,
        dtype=config.pop("dtype", "float32"),
    )
    setting = Setting(model, {"phase1": 64})
    return unilm.Objective(unilm.Config(direction=direction, **config), setting).with_text(corpus, tokenizer)


def loss_of(task: Any, batch: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """The sums of the terms of the loss, and the gradient of their total."""
    params = jax.tree.map(lambda x: x.astype(task.setting.model.param_dtype), random_params(task.setting.model))
    params = {name: params[name] for name in ("encoder", *(part.name for part in task.parts))}

    def total(params: Any) -> tuple[jax.Array, Any]:
        terms = task.loss(Variables(params, {}), jax.tree.map(jnp.asarray, batch), None).terms
        return sum(term.value for term in terms.values()), terms

    (_, terms), gradient = jax.device_get(jax.jit(jax.value_and_grad(total, has_aux=True))(params))
    return terms, gradient


def alone(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each sequence of packed rows in a row of its own, from position 0, without what packing adds."""
    names = ("input_ids", "token_type_ids", "attention_mask", "masked_positions", "masked_labels", "masked_weights")
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for row, sequences in enumerate(rows["sequence_ids"]):
        for number in range(1, sequences.max() + 1):
            here = np.flatnonzero(sequences == number)
            one = {name: np.zeros(rows[name].shape[1:], rows[name].dtype) for name in names}
            for name in names[:3]:
                one[name][: len(here)] = rows[name][row, here]
            places = rows["masked_positions"][row]
            slots = np.flatnonzero((rows["masked_weights"][row] > 0) & (places >= here[0]) & (places <= here[-1]))
            for name in names[3:]:
                one[name][: len(slots)] = rows[name][row, slots] - (here[0] if name == "masked_positions" else 0)
            for name, value in one.items():
                found[name].append(value)
    return {name: np.stack(value) for name, value in found.items()}


@pytest.mark.parametrize("direction", ["sequence to sequence", pytest.param("right to left", marks=pytest.mark.heavy)])
def test_a_packed_row_costs_what_its_sequences_cost(text: Text, direction: str) -> None:
    with jax.enable_x64(True):
        task = of_text(text, direction, dtype="float64", packing="packed", arrangement_options={"random_share": 0.0})
        rows = rows_of(task, 6)
        assert rows["sequence_ids"].max() > 2
        assert "next_sentence_labels" not in rows
        (terms, gradients), (expected, wanted) = loss_of(task, rows), loss_of(task, alone(rows))
        assert terms["mlm"].count == expected["mlm"].count > 20
        assert float(terms["mlm"].value) == pytest.approx(float(expected["mlm"].value), rel=1e-12)
        largest = max(np.abs(x).max() for x in jax.tree.leaves(wanted))
        for got, want in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
            assert np.abs(got - want).max() <= 1e-11 * largest


def test_eight_devices_give_the_loss_of_one(text: Text) -> None:
    task = of_text(text, "sequence to sequence", packing="packed")
    rows = rows_of(task, 8)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    split = jax.device_put(rows, jax.NamedSharding(mesh, jax.P("batch")))
    (one, gradients), (eight, others) = loss_of(task, rows), loss_of(task, split)
    assert float(eight["mlm"].value) == pytest.approx(float(one["mlm"].value), rel=1e-6)
    largest = max(np.abs(x).max() for x in jax.tree.leaves(gradients))
    for got, want in zip(jax.tree.leaves(others), jax.tree.leaves(gradients), strict=True):
        assert np.abs(got - want).max() <= 1e-5 * largest


def test_both_sides_is_bert(text: Text) -> None:
    """Rows, terms and losses are those of ``mlm_nsp``."""
    task, other = of_text(text, "both sides"), objective(mlm_nsp, text)
    rows = rows_of(task, 4)
    for name, value in rows_of(other, 4).items():
        np.testing.assert_array_equal(rows[name], value)
    assert task.loss_weights == other.loss_weights
    same = mlm_nsp.Objective(mlm_nsp.Config(), task.setting)
    for found, expected in zip(loss_of(task, rows), loss_of(same, rows), strict=True):
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_pairs_may_all_be_true(text: Text) -> None:
    """But for chunks of one sentence, which have no true second segment."""
    none, half = ({"random_share": 0.0}, {})
    shares = [rows_of(of_text(text, "both sides", arrangement_options=one), 60) for one in (none, half)]
    true, usual = (float(rows["next_sentence_labels"].mean()) for rows in shares)
    assert true < 0.1 < 0.3 < usual


def test_baselines_see_what_the_direction_shows(text: Text) -> None:
    found = {one: of_text(text, one, arrangement_options={"random_share": 0.0}) for one in DIRECTIONS[1:]}
    rows = rows_of(found["left to right"], 12, "eval")
    cloze = {name: task.cloze(rows) for name, task in found.items()}
    whole = of_text(text, "both sides").cloze(rows)
    row, slot = np.nonzero(rows["masked_weights"])
    second = rows["token_type_ids"][row, rows["masked_positions"][row, slot]] == 1
    for name, left, right in (
        ("left to right", whole.left, HIDDEN),
        ("right to left", HIDDEN, whole.right),
        ("sequence to sequence", whole.left, np.where(second, HIDDEN, whole.right)),
    ):
        assert np.array_equal(cloze[name].left, np.broadcast_to(left, second.shape))
        assert np.array_equal(cloze[name].right, np.broadcast_to(right, second.shape))
    assert 0 < second.sum() < len(second)
