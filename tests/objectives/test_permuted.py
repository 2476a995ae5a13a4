"""Who sees whom in a permutation language model: the ranks, beside the published masks."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.features.fill_mask import fill_mask
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.encoders import bert, xlnet
from bert_jax.models.model import QUERIES
from bert_jax.objectives.base import Setting
from bert_jax.objectives.permuted import Config, Objective, order
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.ngram_models import HIDDEN
from bert_jax.task import Variables
from bert_jax.training.mesh import unbox
from tests.objectives.texts import Text, make_text, teacher_of


def ranks(draws: np.ndarray, moves: np.ndarray, begins: int = 0, size: int | None = None) -> np.ndarray:
    places = np.broadcast_to(np.arange(draws.shape[1], dtype=np.int32), draws.shape)
    first = np.full((len(draws), 1), begins, np.int32)
    return np.asarray(order(draws.astype(np.int32), moves, places, first, size))


def test_all_orders_of_four_give_every_context_as_often_as_it_is_due() -> None:
    """A token's context of s of the other three comes in 1 / (4 C(3, s)) of the orders (section 2.2)."""
    orders = np.array(list(itertools.permutations(range(4))))
    found = ranks(orders, np.ones((24, 4), bool))
    np.testing.assert_array_equal(found, orders)
    for token in range(4):
        contexts = Counter(tuple(np.flatnonzero(row < row[token])) for row in found)
        others = [t for t in range(4) if t != token]
        for size in range(4):
            for context in itertools.combinations(others, size):
                assert contexts[context] == 24 / (4 * math.comb(3, size))


def test_one_order_is_left_to_right() -> None:
    growing = np.arange(6)[None]
    np.testing.assert_array_equal(ranks(growing, np.ones((1, 6), bool)), growing)
    drawn = np.random.default_rng(0).integers(0, 99, (1, 6))
    np.testing.assert_array_equal(ranks(drawn, np.ones((1, 6), bool), size=1), growing)  # blocks of one position


def published(draws: np.ndarray, selected: np.ndarray, special: np.ndarray, half: int, size: int) -> np.ndarray:
    """Whether [i] is hidden [j], as zihangdai/xlnet says of one row: ``perm_mask``, written out by loops."""
    length = len(draws)
    hidden = np.zeros((length, length), bool)
    for i, j in itertools.product(range(length), repeat=2):
        if i < half <= j:
            hidden[i, j] = True
        elif (i < half) == (j < half):
            start = half if i >= half else 0

            def index(place: int, start: int = start) -> int:
                block = (place - start) // size
                first = start + block * size
                inside = draws[first : min(first + size, half if start < half else length)]
                return block * size + int((inside < draws[place]).sum())

            own = index(i) if selected[i] or special[i] else -1
            own += 0 if selected[i] else 1
            hidden[i, j] = bool(selected[j] or special[j]) and own <= index(j)
    return hidden


@pytest.mark.parametrize(("half", "size"), [(0, 16), (8, 8), (8, 4), (5, 3)])
def test_ranks_hide_what_the_published_masks_hide(half: int, size: int) -> None:
    """The first stream opens the diagonal, the second does not; only selected positions have a second stream."""
    rng = np.random.default_rng(half + size)
    for _ in range(20):
        special = rng.random(16) < 0.15
        selected = (rng.random(16) < 0.4) & ~special
        draws = rng.permutation(100)[:16]
        found = ranks(draws[None], (selected | special)[None], half, size)[0]
        hidden = published(draws, selected, special, half, size)
        np.testing.assert_array_equal((found[None] <= found[:, None]), ~hidden | np.eye(16, dtype=bool))
        queries = found[None] < found[:, None]
        np.testing.assert_array_equal(queries[selected], ~hidden[selected])
        assert not queries.diagonal().any()  # nothing sees itself


LENGTH, ROWS = 16, 4
MODEL = xlnet.Config(
    120, 16, 2, 2, 32, max_length=64, dropout_rate=0.0, attention_dropout_rate=0.0, initializer_range=0.3
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return make_text(tmp_path_factory.mktemp("permuted"))


def made(text: Text, model: Any = MODEL, length: int = LENGTH, **config: Any) -> Objective:
    corpus, tokenizer = text
    model = dataclasses.replace(model, vocab_size=tokenizer.size)
    return Objective(Config(**config), Setting(model, {"phase1": length})).with_text(corpus, tokenizer)


def fresh(task: Objective) -> Variables:
    return jax.jit(lambda: unbox(task.init(jax.random.key(0))))()  # type: ignore[no-any-return]


def batch_of(task: Objective, epoch: int = 0) -> dict[str, Any]:
    return task.source("train", "phase1", 0).rows(np.full(ROWS, epoch), np.arange(ROWS))


@pytest.mark.parametrize("arrangement", ["sentences", "stream_pairs"])
def test_a_token_reaches_what_its_rank_says_and_nothing_else(text: Text, arrangement: str) -> None:
    """Both streams: every token of a row is changed in turn; what sees it changes, all else keeps its bits."""
    task = made(text, arrangement=arrangement, masking=dataclasses.replace(Config().masking, rate=0.4))
    variables = fresh(task)
    row = {name: jnp.asarray(x[2:3]) for name, x in task.inputs(batch_of(task)).items()}
    changed = {name: jnp.repeat(x, LENGTH + 1, axis=0) for name, x in row.items()}
    which = jnp.eye(LENGTH + 1, LENGTH, dtype=jnp.int32)  # the last row keeps all tokens
    changed["input_ids"] = jnp.where(which > 0, (changed["input_ids"] + 7) % 100, changed["input_ids"])
    outputs = jax.device_get(jax.jit(lambda batch: task.forward(variables, batch, None))(changed))

    def moved(x: np.ndarray) -> np.ndarray:
        """Whether [i], a vector of the row, changes with token [j]."""
        return (np.abs(x[:-1] - x[-1:]).max(axis=-1) > 0).T

    ranks, mask = np.asarray(row["order_ids"][0]), np.asarray(row["attention_mask"][0]) > 0
    sees = (ranks[None] <= ranks[:, None]) & mask[None]
    np.testing.assert_array_equal(moved(outputs["sequence"])[mask], sees[mask])
    real = np.asarray(row["masked_weights"][0]) > 0
    at = np.asarray(row["query_positions"][0])[real]
    asks = (ranks[None] < ranks[at][:, None]) & mask[None]
    assert not asks[np.arange(len(at)), at].any()  # the token itself is not seen
    np.testing.assert_array_equal(moved(outputs["mlm_logits"])[real], asks)
    assert 0 < asks[:, at].sum() < asks[:, at].size  # an earlier prediction is seen by later ones, not the reverse
    if arrangement == "stream_pairs":
        assert ranks[: LENGTH // 2].max() < ranks[LENGTH // 2 :].min()
        assert not sees[: LENGTH // 2, LENGTH // 2 :].any()


def test_no_token_is_replaced_and_an_order_is_of_the_row_and_the_epoch(text: Text) -> None:
    task = made(text, arrangement="stream_pairs", length=32)
    first, again, later = (task.inputs(batch_of(task, epoch)) for epoch in (0, 0, 1))
    row = np.arange(ROWS)[:, None]
    assert (first["input_ids"][row, first["masked_positions"]] == first["masked_labels"]).all()
    np.testing.assert_array_equal(first["order_ids"], again["order_ids"])
    assert (np.asarray(first["order_ids"]) != np.asarray(later["order_ids"])).any()
    alone = task.source("train", "phase1", 0).rows(np.zeros(1, int), np.array([2]))
    np.testing.assert_array_equal(task.inputs(alone)["order_ids"][0], first["order_ids"][2])


def test_the_baseline_reads_the_neighbours_that_a_prediction_sees(text: Text) -> None:
    task = made(text, length=32, masking=dataclasses.replace(Config().masking, rate=0.5))
    rows = batch_of(task)
    ranks, ids = np.asarray(task.inputs(rows)["order_ids"]), rows["input_ids"]
    found, shown = task.cloze(rows), 0
    for number, (row, slot) in enumerate(zip(*np.nonzero(rows["masked_weights"]), strict=True)):
        place = rows["masked_positions"][row, slot]
        for side, neighbour in ((found.left, place - 1), (found.right, place + 1)):
            sees = ranks[row, neighbour] < ranks[row, place] and ids[row, neighbour] not in task.special_ids
            assert side[number] == (ids[row, neighbour] if sees else HIDDEN)
            shown += bool(sees and neighbour in rows["masked_positions"][row])
    assert shown > 3  # among them predictions that come earlier in the order


def test_only_the_reused_positions_are_remembered(text: Text) -> None:
    model = dataclasses.replace(MODEL, memory_length=12, reuse_length=8)
    task = made(text, model, arrangement="stream_pairs")
    variables = fresh(task)
    empty = {name: jnp.zeros((ROWS, *one.shape), one.dtype) for name, one in task.memory.items()}
    batch = batch_of(task)
    loss = jax.jit(lambda batch: task.loss(variables, batch, None))
    after = loss({**batch, **empty})
    np.testing.assert_array_equal(after.memory["past_mask"], np.tile(np.arange(12) >= 4, (ROWS, 1)))
    other = {**batch, "input_ids": np.where(np.arange(LENGTH) < 8, batch["input_ids"], 9)}
    for name, x in loss({**other, **empty}).memory.items():
        np.testing.assert_array_equal(x, after.memory[name])
    assert loss({**batch, **after.memory}).terms["plm"].value != after.terms["plm"].value


def test_masks_are_filled_from_queries_which_see_no_mask(text: Text) -> None:
    """What [MASK] looks like is never read, unless the model with two streams has learned from masks."""
    task, (_, tokenizer) = made(text), text
    params = copy.deepcopy(jax.device_get(fresh(task).params))
    params["mlm_head"]["output_bias"][tokenizer.mask_id] = -1e9  # its logit reads the vector too
    other = copy.deepcopy(params)
    other["encoder"]["embeddings"]["word_embeddings"][tokenizer.mask_id] += 1.0
    filled: dict[str, list[Any]] = {}
    for asks, facts in (
        ("queries", {"objective": {"name": "permuted"}, "asks": QUERIES}),
        ("imported", {}),
        ("masks", {"objective": {"name": "mlm"}}),
    ):
        filled[asks] = [
            fill_mask(TrainedModel("", one, task.setting.model, tokenizer, facts=facts), ["[MASK] a [MASK]."])[0]
            for one in (params, other)
        ]
    assert filled["queries"][0] == filled["queries"][1] == filled["imported"][0]
    assert filled["masks"][0] != filled["masks"][1]


def test_what_does_not_fit_is_refused_in_one_line(text: Text) -> None:
    one_stream = bert.Config(120, 16, 1, 2, 32, max_length=64)
    with pytest.raises(UserError, match="needs an encoder with two streams, and encoder 'bert' has one; .* be xlnet$"):
        made(text, one_stream)
    with pytest.raises(UserError, match="masking.mask_share is 0.5 and random_share 0.1, .* replaces no token"):
        made(text, masking=MaskingConfig("token", mask_share=0.5))
    with pytest.raises(UserError, match="config.objective.perm_size is 0; at least 1, or None"):
        made(text, perm_size=0)
    with pytest.raises(UserError, match="init=T has one stream, and would read the tokens that .* predicts"):
        Objective(Config(), Setting(MODEL, {"phase1": LENGTH}, teacher=teacher_of(one_stream)))
    remembers = dataclasses.replace(MODEL, memory_length=8)
    with pytest.raises(UserError, match=r"16 of the 16 positions .* begins after 8; set .*reuse_length.* to 8 \(0"):
        made(text, remembers, arrangement="stream_pairs")
    with pytest.raises(UserError, match="set config.objective.arrangement to 'stream_pairs' or 'streams'"):
        made(text, remembers)
