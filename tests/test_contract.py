"""What the contract declares: the counts of every objective and task, and a run whose batches are of two kinds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.errors import UserError
from bert_jax.models.dropout import RowRng
from bert_jax.objectives.terms import check_meanings
from bert_jax.parts import catalogue
from bert_jax.planning.compile import compile_phase, costliest_kind
from bert_jax.records import Sum
from bert_jax.task import Term, Variables, is_weight, tasks_of
from bert_jax.text import tokenizer as tokenizers
from bert_jax.training import mesh as meshes
from bert_jax.training import trained
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.mesh import MeshConfig, unbox
from bert_jax.training.optimizers import adamax, adamw, base, lamb, muon, stable_adamw
from bert_jax.training.optimizers.base import Rule
from bert_jax.training.state import TrainState, step_metrics
from bert_jax.training.step import count_targets
from bert_jax.training.stepping import means_of
from tests import floor, toy
from tests.tasks import questions, test_sentence_embeddings, toy_tasks
from tests.training import gang, kinds
from tests.training.gang import Gang

ROWS = 8


def make_task(name: str) -> Any:
    if name == "span_qa":
        asked = [questions.question(f"anna met {word} here", word) for word in ("boris", "clara")]
        return questions.make_task({"train": [*asked, questions.question("nobody came", None)]}, version_2=True)
    if name == "sentence_embeddings":
        tokenizer = tokenizers.wordpiece([*test_sentence_embeddings.SPECIAL_TOKENS, *test_sentence_embeddings.LETTERS])
        return test_sentence_embeddings.make(tokenizer, {"train": test_sentence_embeddings.pairs()})
    if name == "feature_tagging":
        config, examples = {"layers": "weighted_sum_all", "lstm_size": 16}, toy_tasks.examples("tagging", ROWS)
        return toy_tasks.make_task(name, {"train": examples}, config=config, frozen=("encoder",))
    return toy_tasks.make_task(name, {"train": toy_tasks.examples(name, ROWS)})


def rows_of(task: Any, kind: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Shapes of the variables, and a batch in which some rows weigh nothing."""
    source = task.source("train", kind.partition("/")[0], 0)
    indices = np.arange(ROWS) % (
        next((b.rows_per_epoch for b in source.buckets if b.rows_per_epoch), source.rows_per_epoch)
    )
    batch = source.rows(np.zeros_like(indices), indices)
    for name in filter(is_weight, batch):
        batch[name][::3] = 0
    return jax.eval_shape(lambda: unbox(task.init(jax.random.key(0)))), batch


def assert_same_counts(task: Any, kind: str) -> None:
    spec, batch = rows_of(task, kind)
    variables = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), spec)

    @jax.jit
    def counts(params: Any, frozen: Any, rows: Any) -> Any:  # what the model computes is left out: nothing reads it
        terms = task.loss(Variables(params, frozen), rows, None).terms
        return {name: term.count for name, term in terms.items()}

    found, declared = counts(variables.params, variables.frozen, batch), count_targets(task, spec, batch, None)
    assert found.keys() == declared.keys() == task.loss_weights.keys()
    for name, count in declared.items():
        assert float(found[name]) == float(count) > 0, name


def objective(name: str, packing: str, folder: Path) -> Any:
    columns = toy.COLUMNS.get(name, {})
    folder = folder / f"contract{'_'.join(['', *columns])}"
    folder.mkdir(exist_ok=True)
    text = toy.write_text(folder / "text.txt", documents=120, case=str.title if columns else str)
    recipe = floor.recipe(text, name, packing, 64)
    recipe["corpus"]["columns"] = columns | toy.label(text)
    recipe["objective"] |= toy.options(name, text)
    found = catalogue.find("objectives", name).Objective
    if found.whole_batches:
        recipe["training"]["micro_batches"] = 1
    if not hasattr(catalogue.find("rows.arrangements", found.arrangement).Arrangement, "short_row_probability"):
        del recipe["objective"]["short_row_probability"]
    if name == "unilm":
        recipe["model"]["type_vocab_size"] = 6
    return floor.made(folder, recipe)


@pytest.mark.parametrize("name", sorted(catalogue.parts("tasks", having="Task")))
def test_counts_of_tasks(name: str) -> None:
    assert_same_counts(make_task(name), "train")


# Buckets are rows of several lengths, padded as without packing.
@pytest.mark.parametrize("packing", [p for p in floor.PACKINGS if p != "bucketed"])
@pytest.mark.parametrize("name", sorted(catalogue.parts("objectives", having="Objective")))
def test_counts_of_objectives(
    name: str, packing: str, tmp_path_factory: pytest.TempPathFactory, one_device: None
) -> None:
    assert_same_counts(objective(name, packing, tmp_path_factory.getbasetemp()), "phase1")


# ---- Two kinds of batches --------------------------------------------------------------------------------------------

ORDER = ("phase1", "phase1/class", "phase1", "phase1/class", "phase1/class", "phase1")
MESHES = {
    "one": (1, MeshConfig()),
    "replicated": (8, MeshConfig(weight_update="replicated")),
    "fsdp": (8, MeshConfig(data=2, fsdp=4, weight_update="replicated")),
    "sharded": (8, MeshConfig()),
}


@dataclasses.dataclass(frozen=True)
class Partition(Rule):
    """Adam for tables and matrices, momentum for the rest, and a clip of their common direction."""

    def make(self) -> optax.GradientTransformation:
        def labels(params: Any) -> Any:
            return jax.tree.map(lambda w: "matrix" if w.ndim > 1 else "vector", params)

        rules = {"matrix": optax.scale_by_adam(), "vector": optax.trace(0.9)}
        clip = optax.clip_by_global_norm(1.0)
        return optax.chain(clip, optax.partition(rules, labels), clip, base.decay(0.01))


@dataclasses.dataclass(frozen=True)
class Factored(Rule):
    """Moments that have another shape than their parameters."""

    def make(self) -> optax.GradientTransformation:
        return optax.chain(optax.scale_by_factored_rms(min_dim_size_to_factor=8), base.decay(0.01))


def batches() -> list[tuple[str, dict[str, np.ndarray]]]:
    """A batch of each kind of ORDER."""
    task, found = kinds.Kinds(), []
    for number, kind in enumerate(ORDER):
        indices = np.arange(kinds.BATCH) + number * kinds.BATCH % 64
        found.append((kind, task.source("train", kind, 1).rows(np.zeros_like(indices), indices)))
    return found


def states(optimizer: Rule, devices: int, mesh_config: MeshConfig, micro_batches: int) -> list[TrainState]:
    """The state before the steps of ORDER, and after each."""
    of = dataclasses.replace(kinds.experiment(mesh=mesh_config, micro_batches=micro_batches), optimizer=optimizer)
    task, mesh = kinds.Kinds(), of.check(jax.devices()[:devices])
    trained.check(task, optimizer)
    with meshes.activations(mesh):
        state, frozen = of.initial_state(task, mesh).make(0)
        assert meshes.is_split(state.params) == (devices > 1 and mesh_config.weight_update == "sharded")
        steps = {kind: of.jitted_step(task, kind, of.phases.phases[0], state) for kind in set(ORDER)}
        found = [jax.device_get(state)]
        for kind, batch in batches():
            state = steps[kind](state, frozen, meshes.to_devices(batch, mesh))
            found.append(jax.device_get(state))
    return found


@functools.cache
def alone(optimizer: Rule) -> list[TrainState]:
    return states(optimizer, 1, MeshConfig(), 1)


def leaves(state: TrainState) -> dict[str, np.ndarray]:
    """Return the arrays of the parameters and of the optimizer's state by path."""
    tree = {"params": state.params, "optimizer": state.opt_state}
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def assert_rest_untouched(found: list[TrainState]) -> None:
    """And what is trained is not."""
    for kind, before, after in zip(ORDER, map(leaves, found), map(leaves, found[1:]), strict=False):
        trains = kinds.Kinds().of(kind).trains
        for part in ("body", "class", "number"):
            own = [path for path in before if f"['{part}']" in path]
            assert sum("optimizer" in path for path in own) >= sum("params" in path for path in own) > 0
            same = [path for path in own if before[path].tobytes() == after[path].tobytes()]
            # of factored moments, and the constants of Muon
            unused = [path for path in own if before[path].size == 1 or "ns_coeffs" in path]
            assert same == own if part not in trains else set(same) <= set(unused), (kind, part)


ADAM = adamw.Optimizer(clip_norm=0.1, bias_correction="standard")


@pytest.mark.parametrize(
    ("mesh", "micro_batches", "optimizer"),
    [
        *((mesh, 2, ADAM) for mesh in MESHES),
        # Optimizers differ where each device updates a part; steps of one part and of two share that code.
        ("sharded", 1, adamax.Optimizer(clip_norm=0.1, bias_correction="none")),
        *(("sharded", 2, rule) for rule in (lamb.Optimizer(clip_norm=0.1), stable_adamw.Optimizer(), muon.Optimizer())),
        ("sharded", 2, Partition()),
        ("sharded", 2, Factored()),
    ],
)
def test_what_a_kind_does_not_train_is_untouched(
    mesh: str, micro_batches: int, optimizer: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers are scanned, gradients clipped, weights decayed; and the steps are those of one device."""
    monkeypatch.setattr(muon, "PART", "body")
    found, expected = states(optimizer, *MESHES[mesh], micro_batches), alone(optimizer)
    assert_rest_untouched(found)
    assert_rest_untouched(expected)
    for state, wanted in zip(found, expected, strict=True):
        for path, value in leaves(wanted).items():
            tolerance = 2e-3 * np.abs(value).max()
            np.testing.assert_allclose(leaves(state)[path], value, rtol=0, atol=tolerance, err_msg=path)
        for name, total in wanted.metrics.items():  # "tokens" counts micro-batches
            np.testing.assert_allclose(state.metrics[name].value, total.value, rtol=1e-4, err_msg=name)


def test_each_kind_is_trained_as_if_the_model_had_no_other_part() -> None:
    """Each kind has an optimizer of its own here, whose clipping sees the parts of that kind alone."""
    of, task = dataclasses.replace(kinds.experiment(), optimizer=Partition()), kinds.Kinds()
    params, tx, schedule = alone(of.optimizer)[0].params, of.optimizer.make(), of.make_schedule()
    moments: Any = {one.trains: tx.init(trained.part_of(params, one.trains)) for one in task.tasks.values()}

    @functools.partial(jax.jit, static_argnums=0)
    def step(kind: str, params: Any, moments: Any, batch: Any, number: jax.Array) -> Any:
        one = task.of(kind)
        rng = RowRng.create(0, number, jnp.arange(kinds.BATCH, dtype=jnp.uint32))

        def loss(own: Any) -> Any:
            [(name, term)] = one.loss(Variables({**params, **own}, {}), batch, rng).terms.items()
            return one.loss_weights[name] * term.value / jnp.maximum(term.count, 1.0)

        own = trained.part_of(params, one.trains)
        direction, moments = tx.update(jax.grad(loss)(own), moments, own)
        return params | jax.tree.map(lambda w, d: w - schedule(number) * d, own, direction), moments

    for number, (kind, batch) in enumerate(batches()):
        trains = task.of(kind).trains
        params, moments[trains] = step(kind, params, moments[trains], batch, jnp.int32(number))
        found = alone(of.optimizer)[number + 1].params
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), found, params)


def test_metrics_are_the_union_over_kinds() -> None:
    task, state = kinds.Kinds(), alone(ADAM)[1]  # after a step of the first kind
    of_kinds = {"curve_loss", "curve_near", "class_loss", "class_accuracy"}
    added = {"tokens", "loss", "gradient_norm", "learning_rate"}
    assert set(step_metrics(task)) == of_kinds | added
    assert set(means_of(task, state.metrics)) == {"curve_loss", "curve_near"} | added
    skipped = jax.tree.map(np.zeros_like, state.metrics) | {"learning_rate": Sum(np.float32(0.5), np.float32(1))}
    means = means_of(task, skipped)
    assert (means["learning_rate"], means["skipped_steps"]) == (0.5, 1)
    assert np.isnan([means["loss"], means["gradient_norm"]]).all()
    assert not of_kinds & means.keys()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one device that was never cut."""
    workdir = tmp_path_factory.mktemp("kinds") / "whole"
    with toy.one_device():
        train(workdir)
    return workdir


def train(workdir: Path, **changes: Any) -> None:
    workdir.mkdir(exist_ok=True)
    kinds.train(str(workdir), **changes)


def assert_same(found: Path, wanted: Path) -> None:
    assert gang.records(found) == gang.records(wanted)
    gang.assert_same_model(found, wanted)


def assert_alike(found: Path, wanted: Path) -> None:
    for one, other in zip(gang.records(found), gang.records(wanted), strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"split", "phase"}:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_run_of_two_kinds(whole: Path) -> None:
    """A window has the metrics of its own kind alone, an evaluation those of all; phase2 leaves the rest as it was."""
    shared = {"step", "split", "phase", "loss", "gradient_norm", "learning_rate"}
    own = {"curve": {"curve_loss", "curve_near"}, "class": {"class_loss", "class_accuracy"}}
    logged = [record for record in gang.records(whole) if record["split"] == "train"]
    seen = [next(name for name in own if f"{name}_loss" in record) for record in logged]
    assert [record.keys() for record in logged] == [shared | own[name] for name in seen]
    assert seen.count("curve") > 20
    assert 5 < seen[:40].count("class") < 20
    assert seen[40:] == ["class"] * 16

    metrics = {*own["curve"], *own["class"], "of_first_class"}
    parts = {f"{name}/{'curve' if name in own['curve'] else 'class'}" for name in metrics}
    evaluations = [record for record in gang.records(whole) if record["split"] == "eval"]
    assert [record["step"] for record in evaluations] == [0, 14, 28, 42, 56]
    for record in evaluations:
        assert record.keys() == {"step", "split"} | metrics | parts
        assert all(record[name] == record[name.partition("/")[0]] for name in parts)
    for name in own:
        assert evaluations[-1][f"{name}_loss"] < evaluations[0][f"{name}_loss"]
    of = kinds.experiment()
    names = Evaluation(kinds.Kinds(), of.check(), of.evaluated_phase, of.training.eval_rows).metric_names()
    assert set(names) == metrics | parts

    before, after = (read_params(str(whole), step)[0] for step in (52, 56))
    jax.tree.map(np.testing.assert_array_equal, [before["body"], before["number"]], [after["body"], after["number"]])
    assert np.any(before["class"]["kernel"] != after["class"]["kernel"])


@pytest.mark.heavy
def test_a_run_of_two_kinds_is_killed(whole: Path, tmp_path: Path) -> None:
    """Two processes compute each batch in two parts."""

    def start(workdir: Path) -> Gang:
        flags = ["--micro_batches=2"]
        return Gang(workdir / "none", workdir, 2, flags, program=("-m", "tests.training.kinds"))

    cut, unbroken = tmp_path / "cut", tmp_path / "unbroken"
    assert [code for code, _ in start(unbroken).end()] == [0, 0]
    assert_alike(unbroken, whole)
    job = start(cut)
    job.until(lambda: saved_steps(str(cut)))
    job.send(1, signal.SIGKILL)
    job.end()
    assert saved_steps(str(cut))[-1] < 56
    assert [code for code, _ in start(cut).end()] == [0, 0]
    assert_same(cut, unbroken)


@pytest.mark.parametrize("mesh", ["one", pytest.param("replicated", marks=pytest.mark.heavy), "sharded"])
def test_a_run_of_two_kinds_goes_on(mesh: str, whole: Path, tmp_path: Path) -> None:
    """A resumed run has the same bits, and the metrics of the window that was cut; on eight devices with two parts."""
    run, cut, changes = tmp_path / "run", tmp_path / "cut", {"mesh": MESHES[mesh][1], "micro_batches": 2}
    if mesh == "one":
        run, changes = whole, {}
    else:
        train(run, **changes)
        assert_alike(run, whole)
    shutil.copytree(run, cut)
    for step in saved_steps(str(cut))[1:]:
        shutil.rmtree(cut / "checkpoints" / str(step))
    with toy.one_device() if mesh == "one" else contextlib.nullcontext():
        train(cut, **changes)
    assert_same(cut, run)


def test_a_plan_is_of_the_costliest_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    task, of = kinds.Kinds(), kinds.experiment()
    [mixed, _] = of.phases.phases
    assert costliest_kind(task, mixed) == "phase1"
    first = compile_phase(task, of, mixed, jax.devices())
    monkeypatch.setitem(task.flops_per_row, "phase1/class", 1e9)
    assert costliest_kind(task, mixed) == "phase1/class"
    other = compile_phase(task, of, mixed, jax.devices())
    assert first.split
    assert first.memory.parameters == other.memory.parameters
    assert first.memory.batch > other.memory.batch  # vectors, and ids


# ---- What is refused -------------------------------------------------------------------------------------------------


class Flat(Rule):
    """Moments of all parameters in one vector."""

    def make(self) -> optax.GradientTransformation:
        return optax.flatten(optax.scale_by_adam())


@pytest.mark.parametrize(
    ("trains", "optimizer", "message"),
    [
        ({"body", "head"}, adamw.Optimizer(), "'phase1' train head; the model has body, class, number"),
        ({}, adamw.Optimizer(), "'phase1' train nothing; the model has"),
        ({"body"}, Flat(), r"'phase1' train body alone; that needs a state that is kept parameter by parameter"),
    ],
)
def test_parts_that_cannot_be_trained_alone(
    trains: set[str], optimizer: Rule, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds.Curve, "trains", frozenset(trains))
    with pytest.raises(UserError, match=message):
        trained.check(kinds.Kinds(), optimizer)


def test_a_metric_with_two_meanings() -> None:
    task = kinds.Kinds()
    terms = {kind: one.make_terms() for kind, one in tasks_of(task).items()}
    check_meanings({**terms, "another": kinds.Curve().make_terms()})  # the same lines
    other = Term(terms["phase1/class"]["class"].loss)
    with pytest.raises(UserError, match="'curve_loss' would mean two things: phase1 and phase1/class each have"):
        check_meanings({**terms, "phase1/class": {"curve": other}})
