"""MASS: what the decoder reads, what nothing leaks, its loss beside a model in numpy, and its two ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.models.encoders import bert, seq2seq
from bert_jax.objectives import mass, mlm
from bert_jax.objectives.base import Setting
from bert_jax.objectives.several import SeveralObjectives
from bert_jax.rows.masking import MaskingConfig
from bert_jax.task import Variables
from bert_jax.training import mesh as meshes
from tests.models import numpy_seq2seq as by_hand
from tests.objectives.test_terms import same_on_every_layout
from tests.objectives.texts import LENGTH, Text, counts_of, rows_of

ROWS = 4


def make(text: Text, dropout: float = 0.0, dtype: Any = "float32", masks: Any = None, **config: Any) -> Any:
    """Return the objective with 1 + 2 layers of 32, on packed rows of 64."""
    corpus, tokenizer = text
    rates = {"dropout_rate": dropout, "attention_dropout_rate": dropout}
    model = seq2seq.Config(tokenizer.size, 32, 1, 2, 64, max_length=LENGTH, num_decoder_layers=2, dtype=dtype, **rates)
    rows = {"packing": "packed", "arrangement_options": {"blocks": "document"}}
    settings = build(mass.Config, {**rows, "masking": masks or {}, **config}, "config.objective")
    return mass.Objective(settings, Setting(model, {"phase1": LENGTH})).with_text(corpus, tokenizer)


def drawn(task: Any, seed: int = 0) -> Variables:
    rng = np.random.default_rng(seed)
    shapes = meshes.unbox(jax.eval_shape(task.init, jax.random.key(0))).params
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (rng.normal(0, 0.2, x.shape) + (path[-1].key == "scale")).astype(x.dtype), shapes
    )
    return Variables(params, {})


class Made:
    """An objective on packed rows whose encoder sees [MASK] at all hidden positions; functions, compiled once."""

    def __init__(self, text: Text):
        self.task = task = make(text, masks={"mask_share": 1.0, "random_share": 0.0})
        self.rows, self.variables, self.mask = rows_of(task, ROWS), drawn(task), text[1].mask_id
        self.logits = jax.jit(lambda batch: task.outputs(self.variables, batch)["mlm_logits"])
        self.loss = jax.jit(lambda batch: task.loss(self.variables, batch, None))
        self.inputs = jax.jit(task.inputs)


@pytest.fixture(scope="module")
def made(text: Text) -> Made:
    return Made(text)


def sequences(rows: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Each sequence: its row, tokens with masks, its text, and the slots and positions of its hidden tokens."""
    found = []
    numbers = rows.get("sequence_ids", rows["attention_mask"])
    for row in range(len(numbers)):
        for number in range(1, numbers[row].max() + 1):
            here = np.flatnonzero(numbers[row] == number)
            places = rows["masked_positions"][row]
            slots = np.flatnonzero((rows["masked_weights"][row] > 0) & (numbers[row][places] == number))
            seen = rows["input_ids"][row, here]
            at = places[slots] - here[0]
            text = seen.copy()
            text[at] = rows["masked_labels"][row, slots]
            found.append({"row": row, "seen": seen, "text": text, "slots": slots, "at": at, "number": number})
    return found


@pytest.mark.parametrize("packing", ["none", "packed"])
def test_the_decoder_reads_the_token_before_at_its_own_position(text: Text, packing: str) -> None:
    """In rows whose hidden tokens are random or kept too, it reads true tokens."""
    for first in ("previous", "mask"):
        task = make(text, packing=packing, first_decoder_input=first)
        rows = rows_of(task, 16)
        read = jax.device_get(jax.jit(task.inputs)(rows))
        every = sequences(rows)
        assert len(every) > 16 or packing == "none"
        assert {"random", "kept"} == {
            "kept" if seen == true else "random"
            for one in every
            for seen, true in zip(one["seen"][one["at"]], one["text"][one["at"]], strict=True)
            if seen != text[1].mask_id
        }
        for one in every:
            slots, at = one["slots"], one["at"]
            np.testing.assert_array_equal(np.diff(at), 1)
            assert len(at) == round(0.5 * len(one["text"]))
            expected = one["text"][at - 1]
            if first == "mask":
                expected[0] = text[1].mask_id
            np.testing.assert_array_equal(read["decoder_input_ids"][one["row"], slots], expected)
            np.testing.assert_array_equal(read["decoder_position_ids"][one["row"], slots], at - 1)
            assert (read["decoder_sequence_ids"][one["row"], slots] == one["number"]).all()
        padding = rows["masked_weights"] == 0
        for name in ("decoder_input_ids", "decoder_position_ids", "decoder_sequence_ids"):
            assert not read[name][padding].any()
        assert padding.any()


# "all" is the whole of what test_seq2seq.py compares in the quick tests.
@pytest.mark.parametrize("reads", [pytest.param("all", marks=pytest.mark.heavy), "not_masks"])
def test_the_loss_of_packed_rows_is_written_out_sentence_by_sentence(text: Text, reads: str) -> None:
    """Each sequence alone, in numpy: so packed rows are the rows unpacked."""
    with jax.enable_x64(True):
        task = make(text, dtype="float64", decoder_reads=reads)
        rows, variables, mask = rows_of(task, ROWS), drawn(task), text[1].mask_id
        losses = jax.jit(lambda batch: task.loss(variables, batch, None))(rows)
        total = 0.0
        for one in sequences(rows):
            at, hidden = one["at"], tuple(np.flatnonzero(one["seen"] == mask)) if reads == "not_masks" else ()
            target = one["text"][at - 1].tolist()
            scores = by_hand.logits(
                variables.params, task.setting.model, one["seen"].tolist(), target, (at - 1).tolist(), hidden
            )
            total += by_hand.surprise(scores, one["text"][at].tolist())
        assert float(losses.terms["fragment"].value) == pytest.approx(total, rel=1e-10)
        assert losses.terms["fragment"].count == counts_of(task, rows)["fragment"] == rows["masked_weights"].sum()


def test_nothing_hidden_leaks(made: Made) -> None:
    """A hidden token changes no score up to its own, every later score of its fragment, and no other sequence."""
    before, numbers = np.asarray(made.logits(made.rows)), made.inputs(made.rows)["decoder_sequence_ids"]
    one = max(sequences(made.rows), key=lambda one: len(one["slots"]))
    row, slots = one["row"], one["slots"]
    for slot in (slots[0], slots[len(slots) // 2], slots[-1]):
        labels = made.rows["masked_labels"].copy()
        labels[row, slot] = 5 + (labels[row, slot] + 1) % 50
        change = np.abs(np.asarray(made.logits({**made.rows, "masked_labels": labels})) - before).max(-1)
        later = (np.arange(change.shape[1]) > slot) & (numbers[row] == one["number"])
        assert (change[row, later] > 1e-6).all()  # the power check
        change[row, later] = 0
        assert not change[numbers > 0].any()


def test_the_encoder_never_reads_what_is_hidden(made: Made) -> None:
    """Off by one, as in the published code of supervised translation, the first target would be in sight."""
    for one in sequences(made.rows):
        assert (one["seen"][one["at"]] == made.mask).all()
        others = np.delete(one["seen"], one["at"])
        assert not (others == made.mask).any()
    one = sequences(made.rows)[0]
    start = made.rows["sequence_ids"][one["row"]].tolist().index(one["number"])
    visible = start + next(place for place in range(1, len(one["seen"]) - 1) if place not in one["at"])
    ids = made.rows["input_ids"].copy()
    ids[one["row"], visible] = 5 + (ids[one["row"], visible] + 1) % 50
    change = np.abs(np.asarray(made.logits({**made.rows, "input_ids": ids}) - made.logits(made.rows))).max(-1)
    assert (change[one["row"], one["slots"]] > 1e-6).all()  # what it does read arrives


def test_one_token_is_masked_language_modelling(text: Text) -> None:
    """Its score follows from the masked text alone: the decoder knows no token."""
    task = make(text, masks={"rate": 0.001, "mask_share": 1.0, "random_share": 0.0}, first_decoder_input="mask")
    rows, variables = rows_of(task, ROWS), drawn(task)
    assert all(len(one["at"]) == 1 for one in sequences(rows))
    run = jax.jit(lambda batch: task.outputs(variables, batch)["mlm_logits"])
    other = (rows["masked_labels"] + 7) % 50
    np.testing.assert_array_equal(run({**rows, "masked_labels": other}), run(rows))
    read = task.inputs(rows)["decoder_input_ids"]
    assert (read[rows["masked_weights"] > 0] == text[1].mask_id).all()
    previous = make(text, masks={"rate": 0.001}).inputs(rows)["decoder_input_ids"]
    assert (previous != read).any()  # the power check


def test_the_whole_text_is_a_language_model(text: Text) -> None:
    """The encoder reads masks alone, so of a length all sources are one; each token is scored by those before it."""
    task = make(text, masks={"rate": 1.0, "mask_share": 1.0, "random_share": 0.0}, packing="none")
    rows, variables = rows_of(task, 40), drawn(task)
    lengths = rows["attention_mask"].sum(axis=1).tolist()
    length = max(n for n in lengths if lengths.count(n) > 1)
    full = np.flatnonzero(np.array(lengths) == length)[:2]
    pair = {name: x[full] for name, x in rows.items()}
    assert (pair["masked_labels"][0] != pair["masked_labels"][1]).any()
    np.testing.assert_array_equal(*pair["input_ids"])
    assert pair["masked_weights"][0].sum() == length - 2
    run = jax.jit(lambda batch: task.outputs(variables, batch)["mlm_logits"])
    labels = pair["masked_labels"].copy()
    labels[1, :20] = labels[0, :20]
    scores = np.asarray(run({**pair, "masked_labels": labels}))
    np.testing.assert_allclose(scores[0, :21], scores[1, :21], atol=1e-6)
    assert np.abs(scores[0, 21:] - scores[1, 21:]).max() > 1e-3  # the power check


def test_rows_that_pad_an_evaluation_weigh_nothing(made: Made) -> None:
    half = {**made.rows, "masked_weights": made.rows["masked_weights"] * np.array([[1], [0], [1], [0]], "f")}
    losses = made.loss(half)
    two = made.loss({name: x[np.array([0, 2, 0, 2])] for name, x in made.rows.items()})
    assert 2 * float(losses.terms["fragment"].value) == pytest.approx(float(two.terms["fragment"].value), rel=1e-5)


def test_the_decoder_is_in_the_count_of_products(made: Made) -> None:
    predicted = made.task.batch_specs["phase1"]["masked_positions"].shape[0]
    assert predicted == 33
    assert made.task.flops_per_row["phase1"] == made.task.setting.model.train_flops(LENGTH, predicted)


def test_the_baseline_with_context_beats_the_one_without(text: Text) -> None:
    figures = make(text).baselines("phase1", 20)
    assert 0 < figures["trigram_cross_entropy"] < 0.7 * figures["unigram_cross_entropy"]


def test_a_phase_without_a_decoder_goes_before(text: Text) -> None:
    """Masked language modelling trains the encoder; the decoder of the next phase is there from the start."""
    task = make(text)
    first = mlm.Objective(
        mlm.Config(arrangement="sentences"), task.setting._replace(max_lengths={"phase0": LENGTH})
    ).with_text(*text)
    both = SeveralObjectives([first, task], {name: {"": (name, 1.0)} for name in ("phase0", "phase1")})
    params, alone = (jax.eval_shape(one.init, jax.random.key(0)).params for one in (both, task))
    assert jax.tree.structure(params) == jax.tree.structure(alone)
    assert "decoder" not in jax.eval_shape(first.init, jax.random.key(0)).params["encoder"]


@pytest.mark.heavy
def test_every_layout_gives_the_same_step(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout: 1 and 8 devices, whole or in parts."""
    with jax.enable_x64(True):
        task = make(text, dropout=0.1, dtype="float64")
        same_on_every_layout(task, monkeypatch)


def test_what_does_not_fit_is_one_line(text: Text) -> None:
    with pytest.raises(
        UserError, match="^objective 'mass' trains an encoder with a decoder, and encoder 'bert' has none; take"
    ):
        mass.Objective(mass.Config(), Setting(bert.Config(50), {"phase1": 64}))
    trained: Any = SimpleNamespace(trained=SimpleNamespace(source="there", config=bert.Config(50)))
    with pytest.raises(
        UserError, match="^config.teacher.init=there has no decoder, and the objective 'mass' trains one"
    ):
        mass.Objective(mass.Config(), Setting(seq2seq.Config(50), {"phase1": 64}, teacher=trained))
    with pytest.raises(UserError, match="config.objective.first_decoder_input is 'none'.*previous.*mask"):
        make(text, first_decoder_input="none")
    assert MaskingConfig(strategy="fragment", rate=0.5) == mass.Config().masking
