"""The numpy reference of Transformer-XL by itself: recurrence, reach, distances, and numbers of the published class."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.transformer_xl_reference import Memory, Result, empty_memory, forward

V, N, D, A, H, F = 11, 3, 8, 2, 3, 12
SHAPES = {
    "embeddings": (V, D),
    "output_bias": (V,),
    "u": (A, H),
    "v": (A, H),
    "query": (N, D, A, H),
    "key": (N, D, A, H),
    "value": (N, D, A, H),
    "position": (N, D, A, H),
    "output": (N, A, H, D),
    "attention_norm_scale": (N, D),
    "attention_norm_bias": (N, D),
    "mlp_input": (N, D, F),
    "mlp_input_bias": (N, F),
    "mlp_output": (N, F, D),
    "mlp_output_bias": (N, D),
    "mlp_norm_scale": (N, D),
    "mlp_norm_bias": (N, D),
}


def params(seed: int = 0) -> dict[str, np.ndarray]:
    """All arrays drawn anew, in the order of SHAPES; the numbers of RandomState are the same in every numpy."""
    draw = np.random.RandomState(seed)
    return {name: draw.normal(0, 0.5, shape) + name.endswith("scale") for name, shape in SHAPES.items()}


def tokens(length: int, rows: int = 1, seed: int = 1) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, V, (rows, length))


def stream(ids: np.ndarray, segment: int, slots: int, same_length: bool = False) -> np.ndarray:
    """The logits [B, S, V] of ``ids`` [B, S], segment after segment, with the memory handed on."""
    memory, logits = empty_memory(params(), len(ids), slots), []
    for start in range(0, ids.shape[1], segment):
        result = forward(params(), ids[:, start : start + segment], memory, same_length)
        memory = result.memory
        logits.append(result.logits)
    return np.concatenate(logits, axis=1)


@pytest.mark.parametrize("segment", [1, 4, 5, 6])
def test_recurrence_with_enough_memory_equals_one_pass(segment: int) -> None:
    ids = tokens(12, rows=2)
    np.testing.assert_allclose(stream(ids, segment, slots=12), forward(params(), ids).logits, rtol=0, atol=1e-12)


def test_with_a_short_memory_only_the_segments_differ_that_miss_positions() -> None:
    ids = tokens(16)
    difference = np.abs(stream(ids, segment=4, slots=4) - forward(params(), ids).logits)[0].max(-1)
    assert difference[:8].max() < 1e-12
    assert difference[8:].min() > 1e-4


def test_without_memory_each_segment_stands_alone() -> None:
    ids = tokens(8)
    cut = stream(ids, segment=4, slots=0)
    np.testing.assert_array_equal(cut[:, 4:], forward(params(), ids[:, 4:]).logits)
    assert np.abs(cut - forward(params(), ids).logits)[0, 4:].max(-1).min() > 1e-4


def changed(ids: np.ndarray, position: int, **how: int | bool) -> np.ndarray:
    """The positions whose logits move if the token at ``position`` is another."""
    other = ids.copy()
    other[0, position] = (other[0, position] + 1) % V
    moved = np.abs(stream(ids, **how) - stream(other, **how))[0].max(-1)
    return np.flatnonzero(moved > 0)


def test_a_change_reaches_its_segment_and_as_many_more_as_layers() -> None:
    np.testing.assert_array_equal(changed(tokens(20), 0, segment=4, slots=4), np.arange(4 * (N + 1)))
    np.testing.assert_array_equal(changed(tokens(20), 2, segment=4, slots=4), np.arange(2, 4 * (N + 1)))


def test_a_forgotten_past_changes_nothing() -> None:
    text = tokens(20)
    alone = stream(text, segment=4, slots=4)
    for before in (4, 12):
        later = stream(np.concatenate([tokens(before, seed=2), text], axis=1), segment=4, slots=4)[:, before:]
        np.testing.assert_allclose(later[:, 4 * N :], alone[:, 4 * N :], rtol=0, atol=1e-12)
        assert np.abs(later - alone)[0, : 4 * N].max(-1).min() > 0  # until then the past is seen


def test_empty_slots_and_what_lies_in_them_are_not_seen() -> None:
    ids, rubbish = tokens(5, rows=2), np.random.RandomState(3).normal(size=(N, 2, 6, D))
    hidden = forward(params(), ids, Memory(rubbish, np.zeros((2, 6), np.int32)))
    np.testing.assert_allclose(hidden.logits, forward(params(), ids).logits, rtol=0, atol=1e-12)
    one_row = forward(params(), ids, Memory(rubbish, np.array([[0] * 6, [0] * 5 + [1]], np.int32)))
    np.testing.assert_array_equal(one_row.logits[0], hidden.logits[0])
    assert np.abs(one_row.logits[1] - hidden.logits[1]).max(-1).min() > 1e-4


@pytest.mark.parametrize("length", [2, 4, 7])
def test_the_new_memory_is_the_last_inputs_of_the_layers(length: int) -> None:
    ids, old = tokens(length, rows=2), forward(params(), tokens(3, rows=2, seed=4), empty_memory(params(), 2, 4)).memory
    result: Result = forward(params(), ids, old)
    np.testing.assert_array_equal(old.mask, [[0, 1, 1, 1]] * 2)
    np.testing.assert_array_equal(result.memory.mask, [[1] * 4] * 2)
    kept = min(length, 4)
    np.testing.assert_array_equal(result.memory.states[:, :, 4 - kept :], result.hidden[:-1, :, length - kept :])
    np.testing.assert_array_equal(result.memory.states[:, :, : 4 - kept], old.states[:, :, kept:])


@pytest.mark.parametrize(
    ("same_length", "published"),
    [
        (False, [[0.810855, 0.645310, 0.830615], [-0.977797, 0.708225, -0.743646], [-1.055974, 0.966753, -1.001622]]),
        (True, [[0.810855, 0.645310, 0.830615], [-1.023920, 0.704499, -0.750230], [-0.427389, 0.946755, -0.439431]]),
    ],
)
def test_the_logits_are_the_logits_of_the_published_class(same_length: bool, published: list[list[float]]) -> None:
    """``published``: of positions 0, 5 and 11, the first three pieces; written down from a run of the PyTorch class."""
    logits = stream(tokens(12), segment=4, slots=5, same_length=same_length)
    np.testing.assert_allclose(logits[0, [0, 5, 11], :3], published, rtol=0, atol=1e-6)


def test_order_comes_from_distances_alone() -> None:
    ids, past = tokens(3), np.random.RandomState(3).normal(size=(N, 1, 4, D))
    mask = np.ones((1, 4), np.int32)
    for name, same in (("position", True), ("u", False)):
        without = params() | {name: np.zeros(SHAPES[name])}
        there, back = (forward(without, ids, Memory(states, mask)).logits for states in (past, past[:, :, ::-1]))
        assert bool(np.abs(there - back).max() < 1e-12) is same


def test_same_length_gives_the_same_however_the_text_is_cut() -> None:
    ids, slots = tokens(15), 4
    one = stream(ids, segment=15, slots=slots, same_length=True)
    for segment in (1, 3, 4, 6):
        np.testing.assert_allclose(stream(ids, segment, slots, same_length=True), one, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(changed(ids, 2, segment=3, slots=4, same_length=True), 2 + np.arange(N * 3 + 1))
    assert np.abs(one - forward(params(), ids).logits)[0, slots:].max(-1).min() > 1e-4
