"""Denoising entity alignment: what the model reads of mentions, candidates of a batch, and the frozen table."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from bert_jax.cli.main import run
from bert_jax.corpora import columns
from bert_jax.corpora.build import BuildConfig, build
from bert_jax.corpora.store import Corpus
from bert_jax.corpora.text_files import Source
from bert_jax.errors import UserError
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import bert, ernie_thu
from bert_jax.models.entity_table import EntityTable
from bert_jax.models.model import NSP_HEAD, Model
from bert_jax.objectives import entity_alignment
from bert_jax.objectives.base import Setting
from bert_jax.objectives.entity_alignment import REMOVED, REPLACED, candidates, corrupted
from bert_jax.task import Variables
from bert_jax.training.mesh import MeshConfig, activations, make_mesh, replicated, to_devices, unbox
from tests import toy
from tests.objectives.test_terms import LAYOUTS, same_on_every_layout
from tests.objectives.texts import LENGTH, Text, counts_of, rows_of
from tests.training import gang

NAMES = ("the cat", "a dog", "my aunt", "the old king", "every child", "a small bird", "the ship", "the river", "red")
NAMES += ("two stones",)
E, ROWS, SIZE = 8, 16, len(NAMES) + 1
VECTORS = np.random.default_rng(0).normal(size=(SIZE, E)).astype(np.float32) * (np.arange(SIZE) > 0)[:, None]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, a lexicon of ten entities, and their table."""
    folder = tmp_path_factory.mktemp("entities")
    toy.write_text(folder / "text.txt")
    (folder / "names.tsv").write_text("".join(f"{name}\t{row}\n" for row, name in enumerate(NAMES, start=1)))
    np.save(folder / "entities.npy", VECTORS)
    np.save(folder / "nan.npy", np.where(np.isin(np.arange(SIZE), (3, 7))[:, None], np.nan, VECTORS))
    return folder


@pytest.fixture(scope="module")
def linked(place: Path, text: Text) -> Text:
    source = Source(paths=(str(place / "text.txt"),), format="sentences", document_boundary="blank_line")
    found = columns.find({"entity_ids": {"annotator": "entities", "path": str(place / "names.tsv")}})
    build(source, text[1], place / "store", BuildConfig(0.2), columns=found)
    return Corpus(place / "store"), text[1]


def make(linked: Text, place: Path, table: str = "entities.npy", model: Any = None, **config: Any) -> Any:
    """Return the objective with a 2 x 32 model, both of whose layers read entities."""
    fields = {"num_layers": 2, "num_heads": 2, "mlp_dim": 64, "max_length": LENGTH, "dropout_rate": 0.0}
    fields |= {"attention_dropout_rate": 0.0, "num_token_layers": 0, "entity_size": E, "num_entity_heads": 2}
    model = model or ernie_thu.Config(linked[1].size, 32, **{**fields, **config.pop("fields", {})})
    settings = entity_alignment.Config(**{"entities": str(place / table), "packing": "packed", **config})
    return entity_alignment.Objective(settings, Setting(model, {"phase1": LENGTH})).with_text(*linked)


class Made:
    """An objective with parameters from N(0, 0.3), its rows, and its functions, each compiled once."""

    def __init__(self, linked: Text, place: Path):
        self.task = task = make(linked, place)
        rng = np.random.default_rng(0)
        shapes = unbox(jax.eval_shape(task.init, jax.random.key(0)))
        self.params = jax.tree.map(lambda x: rng.normal(0.0, 0.3, x.shape).astype("f"), shapes.params)
        self.frozen = task.given.arrays
        self.rows = rows_of(task, ROWS)
        self.rng = RowRng.create(0, 3, jnp.arange(ROWS, dtype=jnp.uint32))

        def forward(frozen: Any, rows: Any, rng: Any) -> Any:
            batch = task.inputs(rows)
            return batch, task.forward(task.given.by_name(Variables(self.params, frozen)), batch, rng)

        self.forward = jax.jit(forward)
        self.loss = jax.jit(self.compute)
        self.gradient = jax.jit(
            jax.grad(lambda frozen, rows: task.loss(Variables(self.params, frozen), rows, None).terms["mlm"].value)
        )

    def compute(self, frozen: Any, rows: Any, rng: Any) -> Any:
        return self.task.loss(Variables(self.params, frozen), rows, rng)


@pytest.fixture(scope="module")
def made(linked: Text, place: Path) -> Made:
    return Made(linked, place)


def test_the_mentions_of_a_row_are_predicted_in_order(made: Made) -> None:
    ids = made.rows["entity_ids"]
    assert ids.dtype == np.int32
    assert set(np.unique(ids)) == {*range(SIZE)}
    assert np.all(ids[made.rows["attention_mask"] == 0] == 0)
    few = copy.copy(made.task)
    few.config = dataclasses.replace(few.config, max_entities=4)
    rows = {**made.rows, "row_weights": np.where(np.arange(ROWS) == 2, 0.0, 1.0).astype("f")}
    for task, most in ((made.task, LENGTH), (few, 4)):
        batch = jax.device_get(task.inputs(jax.tree.map(jnp.asarray, rows)))
        for row, of_row in enumerate(ids):
            places = [] if row == 2 else np.flatnonzero(of_row)[:most]
            weights = batch["entity_weights"][row]
            assert weights.sum() == len(places)
            np.testing.assert_array_equal(batch["entity_positions"][row][weights > 0], places)
            np.testing.assert_array_equal(
                batch["entity_labels"][row][weights > 0], of_row[places] if len(places) else []
            )
            assert not batch["entity_labels"][row][weights == 0].any()


def test_candidates_are_the_entities_of_the_batch_and_none() -> None:
    ids, classes = candidates(jnp.array([[9, 4, 0], [4, 7, 9]]))
    assert ids[:4].tolist() == [0, 4, 7, 9]
    assert np.all(ids[4:] == entity_alignment._NO_ID)
    assert classes.tolist() == [[3, 1, 0], [1, 2, 3]]
    full, _ = candidates(jnp.array([[3, 1]]))
    assert full.tolist() == [0, 1, 3]  # none is there though each place has an entity


def test_five_percent_are_replaced_and_fifteen_removed() -> None:
    """By rows' keys: z-bounds for the rates, and for each other entity as the one that is drawn."""
    count, shape = 7, (400, 100)
    classes = jnp.asarray(np.random.default_rng(1).integers(0, count, shape))
    rng = RowRng.create(5, 2, jnp.arange(shape[0], dtype=jnp.uint32))
    read = np.asarray(corrupted(classes, jnp.int32(count), rng))
    own = np.asarray(classes)
    assert not read[own == 0].any()
    there = own > 0
    total, removed, replaced = there.sum(), (read == 0) & there, (read != own) & (read > 0)
    for found, rate in ((removed.sum(), REMOVED), (replaced.sum(), REPLACED)):
        assert abs(found - total * rate) < 4 * np.sqrt(total * rate * (1 - rate))
    share = 1 / (count - 2)
    for one in range(1, count):
        drawn, able = (read[replaced] == one).sum(), (replaced & (own != one)).sum()
        assert abs(drawn - able * share) < 4 * np.sqrt(able * share * (1 - share))
    part = corrupted(classes[7:9], jnp.int32(count), RowRng.create(5, 2, jnp.arange(7, 9, dtype=jnp.uint32)))
    np.testing.assert_array_equal(part, read[7:9])
    alone = np.asarray(corrupted(jnp.minimum(classes, 1), jnp.int32(2), rng))  # no other entity to draw
    assert set(np.unique(alone[there])) == {0, 1}


def test_the_model_reads_the_vectors_that_are_drawn(made: Made) -> None:
    """Its outputs are those of a model of its own, given the vectors of the drawn entities by numpy."""
    batch, outputs = jax.device_get(made.forward(made.frozen, made.rows, made.rng))
    known = np.unique(np.append(batch["entity_labels"], 0))
    ids, weights = made.rows["entity_ids"].copy(), batch["entity_weights"]
    for row, slot in zip(*np.nonzero(weights), strict=True):
        ids[row, batch["entity_positions"][row, slot]] = known[outputs["read_classes"][row, slot]]
    assert 0 < (ids != made.rows["entity_ids"]).sum() < 0.4 * weights.sum()
    model = Model(made.task.setting.model, (*made.task.parts[:2], NSP_HEAD))
    given = {**made.rows, "entity_ids": ids, "entity_vectors": VECTORS[ids]}
    params = {name: tree for name, tree in made.params.items() if name != "entity_head"}
    alone = jax.jit(lambda batch: model.apply({"params": params}, batch))(given)
    for name in ("sequence", "nsp_logits"):
        np.testing.assert_allclose(alone[name], outputs[name], atol=1e-4)
    unread = jax.jit(lambda batch: model.apply({"params": params}, batch))(
        {**given, "entity_vectors": 0 * VECTORS[ids]}
    )
    assert np.abs(unread["sequence"] - outputs["sequence"]).max() > 0.1


def test_losses_and_measures_are_those_of_numpy(made: Made) -> None:
    rows = {**made.rows, "row_weights": np.where(np.arange(ROWS) == 1, 0.0, 1.0).astype("f")}
    (batch, outputs), losses = jax.device_get(
        (made.forward(made.frozen, rows, None), made.loss(made.frozen, rows, None))
    )
    where = np.nonzero(batch["entity_weights"])
    labels, vectors = batch["entity_labels"][where], outputs["sequence"][where[0], batch["entity_positions"][where]]
    head = made.params["entity_head"]
    x = vectors.astype(float) @ head["transform"]["kernel"] + head["transform"]["bias"]
    x = np.asarray(jax.nn.gelu(x, approximate=False), float)
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    x = x * head["layer_norm"]["scale"] + head["layer_norm"]["bias"]
    known = np.unique(np.append(labels, 0))
    scores = log_softmax(x @ VECTORS[known].T.astype(float), axis=-1)
    place = np.searchsorted(known, labels)
    nll = -scores[np.arange(len(place)), place]
    assert losses.terms["alignment"].value == pytest.approx(nll.sum(), rel=1e-4)
    assert losses.terms["alignment"].count == len(labels) == counts_of(made.task, rows)["alignment"]
    found = {name: float(one.value / one.count) for name, one in losses.metrics.items()}
    hits, kept = scores.argmax(-1) == place, outputs["read_classes"][where] == place
    assert found["alignment_accuracy"] == pytest.approx(hits.mean())
    assert found["alignment_changed_accuracy"] == pytest.approx(hits[~kept].mean())
    assert found["alignment_copied"] == pytest.approx(kept.mean())
    assert made.task.loss_weights == {"mlm": 1.0, "nsp": 1.0, "alignment": 1.0}
    assert set(made.task.titles) <= found.keys()


def test_draws_are_of_rows_and_an_evaluation_draws_the_same_again(made: Made) -> None:
    first, again = (made.forward(made.frozen, made.rows, None)[1]["read_classes"] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    drawn = made.forward(made.frozen, made.rows, made.rng)[1]["read_classes"]
    other = made.forward(made.frozen, made.rows, RowRng.create(0, 4, made.rng.rows))[1]["read_classes"]
    assert (drawn != first).any()
    assert (drawn != other).any()


def test_no_gradient_reaches_the_table_and_without_entities_nothing_depends_on_it(made: Made) -> None:
    [digest] = made.frozen
    other = {digest: np.where(np.arange(SIZE)[:, None] > 0, 3 * VECTORS[::-1], 0).astype("f")}
    rows = {**made.rows, "entity_ids": 0 * made.rows["entity_ids"]}
    for given, same in ((rows, True), (made.rows, False)):
        losses = [made.loss(frozen, given, None).terms for frozen in (made.frozen, other)]
        assert all(losses[0][name].value == losses[1][name].value for name in ("mlm", "nsp")) == same
    gradient = made.gradient(jax.tree.map(jnp.asarray, made.frozen), made.rows)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_eight_devices_have_the_candidates_of_all_rows(made: Made) -> None:
    mesh, half_of = make_mesh(MeshConfig()), np.arange(ROWS)[:, None] // (ROWS // 2)
    ids = made.rows["entity_ids"]
    rows = {**made.rows, "entity_ids": np.where((ids > SIZE // 2) == half_of, ids, 0)}  # unlike entities in both halves
    with activations(mesh):
        given = jax.device_put(made.frozen, replicated(mesh)), to_devices(rows, mesh)
        apart = jax.device_get(jax.jit(made.compute)(*given, made.rng))
    together = jax.device_get(made.loss(made.frozen, rows, made.rng))
    for name, wanted in together.terms.items():
        assert apart.terms[name].count == wanted.count
        assert apart.terms[name].value == pytest.approx(float(wanted.value), rel=1e-5)
    halves = 0.0  # each with the candidates of its own rows alone
    for half in (0, 1):
        weights = (half_of[:, 0] == half).astype("f")
        one = made.loss(made.frozen, {**rows, "row_weights": weights}, made.rng)
        halves += float(one.terms["alignment"].value)
    assert halves < 0.99 * together.terms["alignment"].value


@pytest.mark.heavy
def test_one_and_eight_devices_take_the_same_step(linked: Text, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole batches are not cut into micro-batches."""
    with jax.enable_x64(True):
        task = make(linked, place, fields={"dtype": "float64", "dropout_rate": 0.1})
        layouts = {name: (count, mesh, 1) for name, (count, mesh, _) in LAYOUTS.items()}
        monkeypatch.setattr("tests.objectives.test_terms.LAYOUTS", layouts)
        metrics, moments = same_on_every_layout(task, monkeypatch)
    assert metrics["alignment_loss"] > 0.5
    assert np.abs(moments["entity_head"]["transform"]["kernel"]).max() > 0


def test_published_count() -> None:
    model = ernie_thu.Config(vocab_size=30_522)
    parts = entity_alignment.Objective.parts
    names = ("input_ids", "token_type_ids", "attention_mask", "masked_positions", "cls_positions", "entity_positions")
    batch = {name: jax.ShapeDtypeStruct((1, 1), jnp.int32) for name in names}
    shapes = unbox(jax.eval_shape(Model(model, parts).init, jax.random.key(0), batch))["params"]

    def count(tree: Any) -> int:
        return sum(x.size for x in jax.tree.leaves(tree))

    assert count(shapes["entity_head"]) == 77_100
    assert count(shapes) == 114_751_532


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "missing": (
        {"table": "nowhere.npy"},
        r"config.objective.entities is '.*nowhere.npy', and there is no such file; a l",
    ),
    "not finite": ({"table": "nan.npy"}, r"in which 2 of 11 vectors \(18.18%\) have numbers that are not fi"),
    "no table": ({"table": "names.tsv"}, "config.objective.entities is .* cannot be read"),
    "width": (
        {"fields": {"entity_size": 4}},
        "have 8 numbers, and config.model.entity_size is 4; set it to 8, or take",
    ),
    "encoder": (
        {"model": bert.Config(200, 32, 1, 2, 64)},
        "'entity_alignment' needs an encoder that reads entities, an",
    ),
    "bound": ({"max_entities": 0}, "config.objective.max_entities is 0; at least 1 is needed"),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_does_not_fit_is_one_line(bad: str, linked: Text, place: Path) -> None:
    changes, message = BAD[bad]
    with pytest.raises(UserError, match=message) as caught:
        make(linked, place, **changes)
    assert "\n" not in str(caught.value)


def test_a_text_with_entities_beyond_the_table_is_refused(made: Made, linked: Text, place: Path) -> None:
    np.save(place / "few.npy", VECTORS[:9])
    task = copy.copy(made.task)
    task.table = EntityTable.load(str(place / "few.npy"))
    with pytest.raises(UserError, match=r"2 of 10 entities \(20.00%\) of the text in .* have no vector: .* ids 1 to 8"):
        task.with_text(*linked)


@pytest.fixture(scope="module")
def recipe(place: Path) -> Path:
    found = toy.recipe(
        place / "text.txt",
        objective={"name": "entity_alignment", "entities": str(place / "entities.npy")},
        model={"encoder": "ernie_thu", "entity_size": E, "num_entity_heads": 2},
        phases={"phase1": {"num_steps": 8, "batch_size": 16, "max_length": 32}},
        schedule={"warmup_steps": 1},
        training={"log_every_steps": 1, "eval_every_steps": 8, "loggers": ()},
        checkpoints={"every_steps": 4},
        examples=(),
    )
    found["corpus"]["columns"] = {"entity_ids": {"annotator": "entities", "path": str(place / "names.tsv")}}
    return toy.write_recipe(place / "recipe.json", found)


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never cut."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    gang.train(recipe, workdir)
    return workdir


def test_the_loss_falls_and_a_run_keeps_its_table(
    recipe: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = [line["alignment_loss"] for line in gang.records(whole) if line["split"] == "train"]
    assert losses[-1] < losses[0]
    np.save(tmp_path / "entities.npy", 2 * VECTORS)
    flag = f"--config.objective.entities={tmp_path / 'entities.npy'}"
    assert run(["pretrain", f"--config={recipe}", f"--workdir={whole}", flag]) == 2
    assert "config.objective.entities: 'entities.npy@" in capsys.readouterr().err


@pytest.mark.heavy
def test_a_run_that_is_cut_ends_with_the_same_bits(recipe: Path, whole: Path, tmp_path: Path) -> None:
    """It goes on with the same table, which lies elsewhere now."""
    gang.break_off(recipe, tmp_path / "run", 6)
    np.save(tmp_path / "entities.npy", VECTORS)
    flag = f"--config.objective.entities={tmp_path / 'entities.npy'}"
    assert gang.train(recipe, tmp_path / "run", flag) == gang.records(whole)
    gang.assert_same_model(tmp_path / "run", whole)


def test_a_command_refuses_what_does_not_fit_before_text_is_read(
    recipe: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(place / "few.npy", VECTORS[:9])
    for flag, message in (
        (f"objective.entities={place / 'few.npy'}", "2 of 10 entities (20.00%) of the lexicon "),
        (
            "corpus.columns.entity_ids.annotator=lexicon",
            "is of the annotator 'lexicon', which gives no ids of entities",
        ),
        ("training.micro_batches=2", "and objective 'entity_alignment' reads whole batches; only 1 is allowed"),
    ):
        assert run(["pretrain", f"--config={recipe}", f"--workdir={tmp_path / 'run'}", f"--config.{flag}"]) == 2
        said = capsys.readouterr().err
        assert message in said, said
        assert "reading text_files" not in said
