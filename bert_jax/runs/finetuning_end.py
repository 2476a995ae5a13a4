"""What a finished fine-tuning leaves: predictions, the worst mistakes, the report, the export, the next command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.interchange.architectures import has_class, of_facts
from bert_jax.interchange.conversion import unlike
from bert_jax.interchange.family import families
from bert_jax.interchange.loading import load, one_task
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.parts import catalogue
from bert_jax.program import program
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.recipes.task_settings import predictions_file
from bert_jax.reporting.formats import figure, is_number
from bert_jax.reporting.loggers.base import metrics_of
from bert_jax.reporting.measures import heldout_errors, with_error
from bert_jax.reporting.observer import Observer
from bert_jax.reporting.report import DETAILS
from bert_jax.runs.finishing import better_start, export_newest, report_at_the_end
from bert_jax.runs.prediction import predict_split, trial, write_predictions
from bert_jax.storage import files
from bert_jax.tasks.base import ExampleTask
from bert_jax.tasks.findings import findings
from bert_jax.tasks.several import SeveralTasks, each_task


def finish(
    settings: FinetuningSettings, task: ExampleTask | SeveralTasks, observer: Observer, metric: str
) -> dict[str, float]:
    """Write the report, the export, and the predictions of the best checkpoint, which was chosen by ``metric``.

    Returns the metrics of the first dev split; of several tasks, the metrics of the evaluation of the best checkpoint.
    """
    workdir, each = files.as_path(observer.workdir), each_task(task)
    with observer.showing("reporting"):
        model = load(observer.workdir)
        results: dict[str, Any] = {"best_step": model.step, "metric": metric, "metrics": {}, "standard_errors": {}}
        details: dict[str, Any] = {}
        for name, one in each.items():
            tuned = one_task(model, name) if name else model
            predictions: dict[str, Any] = {}
            for split in one.setting.splits:
                if split.startswith("train"):
                    continue
                whole = f"{name}/{split}" if name else split
                found = predict_split(tuned, one, split, observer.evaluating)
                results["metrics"][whole], results["standard_errors"][whole] = found.metrics, found.errors
                predictions[split] = found.records
                write_predictions(workdir / predictions_file(name, split), predictions[split])
            for split, errors_of in details_of(one, predictions).items():
                whole = f"{name}/{split}" if name else split
                details[whole] = errors_of | {key: results[key][whole] for key in ("metrics", "standard_errors")}
        files.write_text(workdir / "results.json", json.dumps(results, indent=1))
        content = {"metric": metric, "best_step": model.step, "splits": details}
        files.write_text(workdir / DETAILS, json.dumps(content, ensure_ascii=False))
    exported = _export(settings, task, model, observer)
    errors = heldout_errors(results["standard_errors"])
    report = report_at_the_end(observer, better_start(model.facts["run"]["identity"]), model.step, metric, errors)
    first = next(iter(each))
    example = trial(one_task(model, first), observer.workdir, first) if first else trial(model, observer.workdir)
    observer.note(
        f"done, best by {metric} at step {model.step:,}{_score(observer, model.step, metric, errors)}: report {report}"
        f"{exported}, predictions in {workdir}\n"
        f"next: {program()} {example}"
    )
    if isinstance(task, SeveralTasks):
        [best] = [record for record in observer.evaluations(model.step) if record["step"] == model.step]
        return {name: value for name, value in metrics_of(best).items() if is_number(value)}
    return results["metrics"][task.heldout_parts[0]]  # type: ignore[no-any-return]


def _score(observer: Observer, step: int, metric: str, errors: Mapping[str, float]) -> str:
    """Return in brackets the value of a metric at ``step``, with its standard error; "" if unknown."""
    for record in observer.evaluations(step)[-1:]:
        if is_number(value := record.get(metric)):
            return f" ({with_error(metric, figure(value), errors)})"
    return ""


def _export(
    settings: FinetuningSettings, task: ExampleTask | SeveralTasks, model: TrainedModel, observer: Observer
) -> str:
    """Export the model if the recipe asks for it and transformers has a class for it; return words for the last line.

    A model of several tasks has several heads, and a class of transformers has one: the user exports a task at a time.
    """
    if not settings.export:
        return ""
    if isinstance(task, SeveralTasks):
        command = f"{program()} export --workdir={observer.workdir} --task={next(iter(task.members))} --output=MODEL"
        observer.note(f"not exported: a model of transformers has one head; {command} writes the model of one task")
    elif task.exported_as is None or not has_class(model.config, task.exported_as[0]):
        other = f"; {program()} export writes the encoder" if model.config.encoder in families() else ""
        observer.note(f"not exported: transformers has no class with this head{other}")
    elif not catalogue.is_own(settings.task["name"]) and model.config.encoder in families():
        if reason := unlike(model.params, model.config, model.head or of_facts(model.facts, model.params)):
            observer.note(f"not exported: {reason}")
        else:
            return f", model {export_newest(observer, model)}"
    return ""


def details_of(task: ExampleTask, predictions: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the part of the report about the predictions of each split: scores, and the worst mistakes with texts.

    Args:
      task: the task with the examples of every split.
      predictions: split -> one record per example, in the order of the examples.
    """
    judge, splits, labels = task.judge, task.setting.splits, task.setting.labels
    return {
        name: {
            "num_examples": len(splits[name]),
            "labels": list(labels),
            **(findings(judge, labels, splits[name], records, judge.entities(task.config)) if judge else {}),
        }
        for name, records in predictions.items()
    }
