"""Tasks whose examples share rows: the losses, gradients and steps of examples alone, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.models.encoders import bert
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.runs.finetuning import Finetuning
from bert_jax.task import Variables
from bert_jax.tasks.base import KIND, PACKED, ExampleTask
from bert_jax.training.mesh import unbox
from tests.tasks import test_several, toy_tasks

COUNT = 24
heavy = pytest.mark.heavy


def make(name: str, **model: Any) -> ExampleTask:
    examples = toy_tasks.examples(name, COUNT, 1)
    for example in examples[::5]:
        example.pop("tags" if name == "tagging" else "label")
    model = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, **model}
    return toy_tasks.make_task(name, {"train": examples, "dev": examples}, packing="packed", **model)


def packed_batch(task: ExampleTask) -> dict[str, np.ndarray]:
    """All examples, packed."""
    source = task.source("train", KIND, 0)
    indices = np.arange(source.rows_per_epoch)
    return source.rows(np.zeros_like(indices), indices)


def batch_alone(task: ExampleTask) -> dict[str, np.ndarray]:
    indices = np.arange(COUNT)
    return task.source("eval", KIND, 0, "dev").rows(np.zeros_like(indices), indices)


def losses(task: ExampleTask, batch: dict[str, np.ndarray]) -> tuple[Any, Any, Any]:
    """Metrics, the gradient of the mean loss, and the logits of what has a label, in ascending order."""
    rng, shapes = np.random.default_rng(0), unbox(jax.eval_shape(task.init, jax.random.key(0))).params
    params = jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape), shapes)

    def mean(params: Any) -> tuple[jax.Array, Any]:
        found = task.loss(Variables(params, {}), batch, None)
        [term] = found.terms.values()
        return term.value / term.count, (found.metrics, task.forward(Variables(params, {}), batch, None)["logits"])

    (_, (metrics, logits)), gradient = jax.device_get(jax.jit(jax.value_and_grad(mean, has_aux=True))(params))
    kept = logits[batch["label_weights"] > 0]
    return metrics, gradient, kept[np.lexsort(np.round(kept, 9).T)]


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("classification", "bidirectional"),
        ("tagging", "causal"),
        pytest.param("classification", "causal", marks=heavy),
        pytest.param("regression", "bidirectional", marks=heavy),
        pytest.param("tagging", "bidirectional", marks=heavy),
    ],
)
def test_a_batch_has_the_loss_of_its_examples_alone(name: str, attention: str) -> None:
    with jax.enable_x64(True):
        task = make(name, dtype="float64", attention=attention)
        rows, alone = packed_batch(task), batch_alone(task)
        assert len(rows["input_ids"]) <= COUNT / 2
        (metrics, gradient, logits), (wanted, expected, of_each) = losses(task, rows), losses(task, alone)
    assert metrics.keys() == wanted.keys()
    for metric, one in metrics.items():
        assert one.count == wanted[metric].count
        assert one.value == pytest.approx(wanted[metric].value, rel=1e-12), metric
    largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
    for got, want in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        assert np.abs(got - want).max() <= 1e-12 * largest
    np.testing.assert_allclose(logits, of_each, rtol=0, atol=1e-9, err_msg="each example has its own logits")


@heavy
def test_a_run_with_packed_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It learns, on eight devices; predictions are of each example, in order."""
    phase = {"num_epochs": 6}
    toy_tasks.write_toy(tmp_path, "classification", 192, 48, packing="packed", phase=phase)
    assert toy_tasks.finetune(tmp_path) == 0
    said = capsys.readouterr().err
    assert "train: 192 examples share 80 rows of 24 positions, which are 91.6% full; a batch is 8 rows, 19.2" in said
    assert "steps of 16 examples, in packed rows of 24" in said
    assert toy_tasks.results(tmp_path)["metrics"]["dev"]["accuracy"] > 0.9
    ids = [json.loads(line)["id"] for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    assert [record["id"] for record in toy_tasks.predictions(tmp_path)] == ids


def test_several_tasks_have_packed_rows_each(tmp_path: Path, one_device: None) -> None:
    test_several.write(tmp_path)
    task, experiment = toy_tasks.prepared(tmp_path, test_several.recipe(packing="packed"))
    source, phases = task.source("train", KIND, 0), experiment.phases
    kinds = {f"{name}/packed" for name in ("clas", "regr", "tagg")}
    assert {bucket.kind for bucket in source.buckets} == kinds
    seen = dict.fromkeys(kinds, 0.0)
    per_epoch = phases.num_steps // 3
    for number in range(per_epoch):
        step = phases.rows_of(number, {}, source.buckets)
        batch = source.rows(step.epochs, step.rows)
        spec = task.batch_specs[step.kind]
        assert {name: x.shape[1:] for name, x in batch.items()} == {name: one.shape for name, one in spec.items()}
        seen[step.kind] += batch["sequence_ids"].max(axis=1).sum()
    for name, (train, _) in test_several.SIZES.items():
        assert train <= seen[f"{name[:4]}/packed"] < train + 16 + 8, "the last batch is filled up"


REFUSED = {
    "multiple choice": ("multiple_choice", {}, "the task 'multiple_choice' has one example.*tagging can be"),
    "pairs read in steps": ("san_classification", {}, "the task 'san_classification' has one example in a row"),
    "groups": ("ranking", {}, "the task 'ranking' has one example in a row"),
    "a BiLSTM": ("tagging", {"bilstm_layers": 1}, "a BiLSTM reads all of a row; .* or config.bilstm_layers to 0"),
    "no word": ("tagging", {"packing": "dense"}, "config.packing.*dense.*'none'.*'packed'.*'bucketed'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    name, changes, message = REFUSED[case]
    with pytest.raises(UserError, match=message) as error:
        Finetuning(FinetuningSettings.of(toy_tasks.recipe(name, **{"packing": "packed", **changes})), None)
    assert "\n" not in str(error.value)


def test_an_encoder_that_does_not_read_sequences_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert.Encoder, "reads", frozenset({"token_type_ids", "position_ids"}))
    with pytest.raises(UserError, match="the encoder 'bert' does not read sequence_ids; set it to 'buck"):
        Finetuning(FinetuningSettings.of(toy_tasks.recipe("tagging", packing="packed")), None)


def test_rows_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    """Before anything is compiled; the size that the message names works."""
    toy_tasks.write_toy(tmp_path, "classification", 192, 16)

    def of_size(size: int) -> Any:
        phases = {"train": {"batch_size": size}}
        return toy_tasks.prepared(tmp_path, toy_tasks.recipe("classification", packing="packed", phases=phases))[0]

    message = "batch_size is 8, about 4 packed rows.* x micro_batches 1 = 8; the nearest size whose rows do is 16, or"
    with pytest.raises(UserError, match=message):
        of_size(8)
    assert of_size(16).source("train", PACKED, 0).buckets[0].batches * 16 == 8
