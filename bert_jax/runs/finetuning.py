"""Fine-tunes a model on labelled examples, and writes its predictions and a report.

A run that was interrupted resumes if the same call is made again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax import catalogue
from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cluster import distributed
from bert_jax.examples.labels import label_note
from bert_jax.examples.load import load
from bert_jax.interchange.architectures import of_facts
from bert_jax.interchange.conversion import unlike
from bert_jax.interchange.family import families
from bert_jax.interchange.initial import find_initial, frozen_parts, start_from
from bert_jax.models.model import config_facts
from bert_jax.program import program
from bert_jax.reporting import run_record
from bert_jax.reporting.observer import Observer
from bert_jax.reporting.profiled_steps import ProfiledSteps
from bert_jax.reporting.report import DETAILS
from bert_jax.runs.evaluations.base import Evaluations, read, titles
from bert_jax.runs.finishing import BETTER_START, export_newest, report_at_the_end
from bert_jax.runs.inputs import keep_vocabulary, overridden_vocabulary
from bert_jax.runs.model_choice import overridden_settings
from bert_jax.runs.own_code import keep_copies
from bert_jax.runs.prediction import load_tuned, predict_split, trial, write_predictions
from bert_jax.runs.preparation import Splits, check_finetuning
from bert_jax.runs.settings import FinetuningSettings
from bert_jax.storage import files
from bert_jax.task import titles_of
from bert_jax.tasks.base import KIND, ExampleTask
from bert_jax.tasks.findings import findings
from bert_jax.training.experiment import Experiment
from bert_jax.training.loop import Run, train_and_evaluate


@dataclasses.dataclass(frozen=True)
class FinetuningRequest:
    """The values that the command line adds to a recipe."""

    workdir: str
    data: str  # the folder to which the paths in config.data.splits are relative
    command: str = ""
    init: str | None = None  # a Hugging Face directory or WORKDIR[@step]; if None, weights are random
    typed_keys: tuple[str, ...] = ()  # the keys of the config that were given on the command line
    profiled: ProfiledSteps | None = None


def finetune(config: Mapping[str, Any], request: FinetuningRequest) -> dict[str, float]:
    """Run a recipe to its end in ``request.workdir``, starting from the last saved step if there is one.

    Returns:
      The metrics of the best evaluation. Only the first process of a job returns them; all others return {}.

    Raises:
      UserError: the recipe, the examples, the model to start from or the machine do not fit together.
    """
    settings, workdir = FinetuningSettings.of(config), request.workdir
    with run_record.only_writer(workdir):
        # What needs no examples is checked first.
        saved = distributed.first_says("the saved steps", saved_steps(workdir))
        initial = find_initial(request.init, workdir, resumes=bool(saved))
        recipe = check_finetuning(settings, initial)
        notes = []
        if initial and not saved:
            notes += overridden_settings(settings.model, request.typed_keys, initial)
            notes += overridden_vocabulary(settings.vocab, request.typed_keys, initial)
        identity = settings.identity() | {"init": request.init}
        run = run_record.content(workdir, config, identity, request.command, bound=bool(saved))

        evaluators = read(settings.training.evaluations, notes.append)
        every = load(settings.data, request.data, recipe.task.roles, notes.append)
        task, experiment = recipe.with_examples(every, workdir if saved else None, notes.append)
        experiment, own = dataclasses.replace(experiment, profiled=request.profiled), task.setting
        evaluations = Evaluations(evaluators, own.tokenizer, own.model, experiment, notes.append)
        run["phases"], run["titles"] = experiment.phases.as_record(), titles_of(task) | titles(evaluators)
        if request.profiled:
            request.profiled.check(experiment.phases.num_steps)
        facts = _facts_of(settings, task) | recipe.parent
        distributed.wait("the vocabulary", own.tokenizer.sha256)
        distributed.wait("the examples", facts["corpus_fingerprint"])
        if distributed.is_first():
            if not saved:
                keep_vocabulary(own.tokenizer, workdir)
            run_record.write_run(workdir, run)

        observer = Observer(workdir, run, experiment.phases.num_steps, settings.training.loggers)
        with observer.to_the_end():
            for line in [*notes, *task.notes, *_describe(task, experiment)]:
                observer.note(line)
            if distributed.is_first():
                keep_copies(workdir, run, facts)
                run = run_record.settle(workdir, run, facts)
                files.write_text(files.as_path(workdir) / "baselines.json", json.dumps(task.baselines(KIND, 0)))

            first = None
            if recipe.weights_from and not saved:
                head = of_facts(facts) if task.exported_as and own.model.encoder in families() else None
                first = start_from(recipe.weights_from, own.model, own.tokenizer, observer.note, head=head)
            facts = facts | {"run": run}
            frozen = frozen_parts(settings.frozen, recipe.weights_from, workdir, facts, bool(saved))
            train_and_evaluate(Run(task, experiment, observer, facts, first, frozen, evaluations))
            if not distributed.is_first():
                return {}
            return _finish(settings, task, observer, experiment.selection.metric)


def _facts_of(settings: FinetuningSettings, task: ExampleTask) -> dict[str, Any]:
    """Return the facts of a run: what is known of it once the examples are read. It resumes only with the same."""
    own = task.setting
    return {
        "model": config_facts(own.model),
        "lowercase": own.tokenizer.lowercase,
        "vocabulary_sha256": own.tokenizer.sha256,
        "corpus_fingerprint": _fingerprint(own.splits),
        "task": {"name": settings.task["name"], **dataclasses.asdict(task.config)},
        "labels": list(own.labels),
        "max_length": settings.phase.max_length,
        "bilstm_layers": settings.bilstm_layers,
        "data": dataclasses.asdict(settings.data),
    }


def _fingerprint(splits: Splits) -> str:
    """Return a hash of the examples of all splits, which depends on their order."""
    digest = hashlib.sha256()
    for name, examples in splits.items():
        digest.update(f"{name} {len(examples)}\n".encode())
        for example in examples:
            digest.update(json.dumps(example, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _describe(task: ExampleTask, experiment: Experiment) -> list[str]:
    """Return lines that tell the user which examples are read and how long the run is."""
    sizes = ", ".join(f"{name} {len(examples):,}" for name, examples in task.setting.splits.items())
    labels = f"; {label_note(task.setting.labels)}" if task.setting.labels else ""
    phase, lengths = experiment.phases.phases[0], ", ".join(map(str, task.lengths.values()))
    return [
        f"examples: {sizes}{labels}",
        f"{phase.num_steps:,} steps of {phase.batch_size} rows, padded to {lengths}; an evaluation every "
        f"{experiment.training.eval_every_steps:,}",
    ]


def _finish(settings: FinetuningSettings, task: ExampleTask, observer: Observer, metric: str) -> dict[str, float]:
    """Write the report, the export, and the predictions of the best checkpoint, which was chosen by ``metric``.

    Returns the metrics of the first dev split.
    """
    workdir = files.as_path(observer.workdir)
    with observer.showing("reporting"):
        model = load_tuned(observer.workdir)
        results: dict[str, Any] = {"best_step": model.step, "metric": metric, "metrics": {}}
        predictions: dict[str, Any] = {}
        for name in task.setting.splits:
            if not name.startswith("train"):
                results["metrics"][name], predictions[name] = predict_split(model, task, name, observer.evaluating)
                write_predictions(workdir / f"predictions_{name}.jsonl", predictions[name])
        files.write_text(workdir / "results.json", json.dumps(results, indent=1))
        _write_details(workdir / DETAILS, model.facts["labels"], task, predictions, results)
    has_class = task.exported_as and not catalogue.is_own(settings.task["name"]) and model.config.encoder in families()
    exported = ""
    if settings.export and task.exported_as is None:
        observer.note(f"not exported: transformers has no class with this head; {program()} export writes the encoder")
    elif settings.export and has_class:
        if reason := unlike(model.params, model.config, model.head or of_facts(model.facts, model.params)):
            observer.note(f"not exported: {reason}")
        else:
            exported = f", model {export_newest(observer, model)}"
    report = report_at_the_end(observer, BETTER_START, model.step)
    observer.note(
        f"done, best by {metric} at step {model.step:,}: report {report}{exported}, predictions in {workdir}\n"
        f"next: {program()} {trial(model, observer.workdir)}"
    )
    return results["metrics"][task.heldout_parts[0]]  # type: ignore[no-any-return]


def _write_details(
    path: epath.Path,
    labels: Sequence[str],
    task: ExampleTask,
    predictions: Mapping[str, Sequence[Mapping[str, Any]]],
    results: Mapping[str, Any],
) -> None:
    """Write scores and wrong predictions, with their texts, for the report.

    Args:
      task: the task with the examples of every split.
      predictions: split -> one record per example, in the order of the examples.
      results: ``best_step``, ``metric`` (by which this step was chosen) and ``metrics`` (split -> its metrics).
    """
    judge, splits = task.judge, task.setting.splits
    shown = {
        name: {
            "num_examples": len(splits[name]),
            "metrics": results["metrics"][name],
            **(findings(judge, labels, splits[name], records, judge.entities(task.config)) if judge else {}),
        }
        for name, records in predictions.items()
    }
    content = {
        "metric": results["metric"],
        "best_step": results["best_step"],
        "labels": list(labels),
        "splits": shown,
    }
    files.write_text(path, json.dumps(content, ensure_ascii=False))
