"""Fine-tunes a model on labelled examples, and writes its predictions and a report.

A run that was interrupted resumes if the same call is made again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bert_jax import catalogue
from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cluster import distributed
from bert_jax.examples.labels import label_note
from bert_jax.features.trained_model import TrainedModel
from bert_jax.interchange.architectures import of_facts
from bert_jax.interchange.conversion import unlike
from bert_jax.interchange.family import families
from bert_jax.interchange.initial import frozen_parts, start_from
from bert_jax.interchange.loading import load, one_task
from bert_jax.models import distillation
from bert_jax.models.model import config_facts
from bert_jax.models.teacher import content
from bert_jax.planning import peak_rates
from bert_jax.program import Note, program
from bert_jax.reporting import run_record
from bert_jax.reporting.formats import figure, is_number
from bert_jax.reporting.loggers.base import metrics_of
from bert_jax.reporting.measures import heldout_errors, with_error
from bert_jax.reporting.observer import Observer
from bert_jax.reporting.profiled_steps import ProfiledSteps
from bert_jax.reporting.report import DETAILS
from bert_jax.runs.cached_teacher import fill
from bert_jax.runs.evaluations.base import Evaluations, read, titles
from bert_jax.runs.finetuning_preparation import Splits, check_finetuning
from bert_jax.runs.finishing import about, better_start, export_newest, report_at_the_end
from bert_jax.runs.inputs import describe_vocabulary, find_start, keep_vocabulary, overridden_vocabulary
from bert_jax.runs.model_choice import overridden_settings, pooling_notes
from bert_jax.runs.own_code import keep_copies
from bert_jax.runs.prediction import predict_split, trial, write_predictions
from bert_jax.runs.settings import FinetuningSettings
from bert_jax.runs.task_settings import TaskSettings, predictions_file, with_keys_of
from bert_jax.runs.used_keys import with_vocabulary
from bert_jax.storage import files
from bert_jax.task import titles_of
from bert_jax.tasks.base import KIND, PACKED, ExampleTask
from bert_jax.tasks.findings import findings
from bert_jax.tasks.several import SeveralTasks, each_task, shared_setting
from bert_jax.training.experiment import Experiment
from bert_jax.training.loop import Run, train_and_evaluate
from bert_jax.training.state import TrainState


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
        initial = find_start(settings.vocab, request.typed_keys, request.init, workdir, bool(saved))
        if not (initial or saved):
            settings.vocab.load_tokenizer(typed=request.typed_keys)  # raises if a key contradicts its file
        recipe = check_finetuning(settings, initial)
        notes = []
        if initial and not saved:
            notes += overridden_settings(settings.model, request.typed_keys, initial)
            notes += overridden_vocabulary(settings.vocab, request.typed_keys, initial)
            notes += pooling_notes({name: one.config for name, one in recipe.tasks.items()}, initial)
        identity = settings.identity() | {"init": request.init}
        for trained in recipe.teacher.values():  # by its content, wherever it lies
            identity["teacher"]["init"] = f"teacher@{content(trained)}"
            distributed.wait("the teacher", identity["teacher"]["init"])
        recorded = with_vocabulary(config, settings.vocab.path, initial.tokenizer if initial else None)
        run = run_record.content(workdir, recorded, identity, request.command, bound=bool(saved))

        evaluators = read(settings.training.evaluations, notes.append)
        every = recipe.load(request.data, notes.append)
        task, experiment = recipe.with_examples(every, workdir if saved else None, notes.append)
        experiment, own = dataclasses.replace(experiment, profiled=request.profiled), shared_setting(task)
        evaluations = Evaluations(evaluators, own.tokenizer, own.model, experiment, notes.append)
        main, every_title = experiment.selection.metric, titles_of(task) | titles(evaluators)
        first_title = {main: every_title[main]} if main in every_title else {}
        run["phases"], run["titles"] = experiment.phases.as_record(), first_title | every_title
        if request.profiled:
            request.profiled.check(experiment.phases.num_steps)
        facts = _facts_of(settings, task) | recipe.parent
        trained_on = [
            one.setting.splits[name] for one in each_task(task).values() for name in one.setting.names("train")
        ]
        run["about"] = about(task, experiment, facts, {"examples": sum(map(len, trained_on))})
        distributed.wait("the vocabulary", own.tokenizer.sha256)
        distributed.wait("the examples", facts["corpus_fingerprint"])
        said = identity["teacher"]["init"] if recipe.teacher else ""
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
            if begin := None if saved else recipe.weights_from or recipe.start:
                first = _start(begin, task, facts, observer.note)
            facts = facts | {"run": run}
            fill(each_task(task), said, facts["corpus_fingerprint"], workdir, observer.note)
            frozen = frozen_parts(settings.frozen, recipe.weights_from, workdir, facts, bool(saved))
            peak = peak_rates.peak_of_all_devices(task.dtype, observer.note)
            train_and_evaluate(Run(task, experiment, observer, facts, peak, first, frozen, evaluations))
            if not distributed.is_first():
                return {}
            return _finish(settings, task, observer, experiment.selection.metric)


def _facts_of(settings: FinetuningSettings, task: ExampleTask | SeveralTasks) -> dict[str, Any]:
    """Return the facts of a run: what is known of it once the examples are read. It resumes only with the same."""
    own, each = shared_setting(task), each_task(task)
    of_each = {name: _facts_of_one(settings, settings.each[name], one) for name, one in each.items()}
    if isinstance(task, SeveralTasks):
        parts = {
            name: {*one.parts} - {distillation.FROZEN, distillation.PROJECTION} for name, one in task.members.items()
        }
        of_each = {name: {**facts, "parts": sorted(parts[name])} for name, facts in of_each.items()}
    splits = {
        f"{name}/{split}" if name else split: of
        for name, one in each.items()
        for split, of in one.setting.splits.items()
    }
    return {
        "model": config_facts(own.model),
        **own.tokenizer.case._asdict(),
        "vocabulary_sha256": own.tokenizer.sha256,
        "corpus_fingerprint": _fingerprint(splits),
        **of_each.get("", {"tasks": of_each}),
    }


def _facts_of_one(settings: FinetuningSettings, own: TaskSettings, task: ExampleTask) -> dict[str, Any]:
    return {
        "task": {"name": own.task["name"], **dataclasses.asdict(task.config)},
        "labels": list(task.setting.labels),
        "max_length": settings.phase.max_length,
        "bilstm_layers": settings.bilstm_layers,
        "data": dataclasses.asdict(own.data),
        **({"parts": _kept(part.name for part in task.model.parts)} if task.lessons and task.lessons.parts else {}),
    }


def _kept(parts: Iterable[str]) -> list[str]:
    """Return the names of ``parts`` but for those that only a teacher needed: a loaded model has these alone."""
    return sorted({*parts} - {distillation.PROJECTION, distillation.FROZEN})


def _fingerprint(splits: Splits) -> str:
    """Return a hash of the examples of all splits, which depends on their order."""
    digest = hashlib.sha256()
    for name, examples in splits.items():
        digest.update(f"{name} {len(examples)}\n".encode())
        for example in examples:
            digest.update(json.dumps(example, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _start(
    initial: TrainedModel, task: ExampleTask | SeveralTasks, facts: Mapping[str, Any], note: Note
) -> Callable[[TrainState], TrainState]:
    """Return the function that gives a fresh state the weights of ``initial``.

    Of several tasks, those keep their own parts that ``initial`` was trained on too, with the same labels.
    """
    own, head, others = shared_setting(task), None, list[str]()
    if isinstance(task, SeveralTasks):
        known, here = initial.facts.get("tasks") or {}, json.loads(json.dumps(facts["tasks"]))
        for name, one in task.members.items():
            same = all((known.get(name) or {}).get(key) == here[name][key] for key in ("task", "labels"))
            others += [] if same else [whole for part, whole in one.parts.items() if whole != part]
    elif task.exported_as and own.model.encoder in families():
        head = of_facts(facts)
    return start_from(initial, own.model, own.tokenizer, note, head, others)


def _describe(task: ExampleTask | SeveralTasks, experiment: Experiment) -> list[str]:
    """Return lines that tell the user which examples are read and how long the run is."""
    phase, each = experiment.phases.phases[0], each_task(task)
    lines = [describe_vocabulary(shared_setting(task).tokenizer)]
    for name, one in each.items():
        sizes = ", ".join(f"{split} {len(examples):,}" for split, examples in one.setting.splits.items())
        labels = f"; {with_keys_of(name, label_note(one.setting.labels))}" if one.setting.labels else ""
        lines.append(f"{name or 'examples'}: {sizes}{labels}")
    packed = next(iter(each.values())).setting.packing == "packed"
    lengths = sorted({n for one in each.values() for kind, n in one.lengths.items() if (kind == PACKED) == packed})
    rows = "examples, in packed rows of" if packed else "rows, padded to"
    every = f"an evaluation every {experiment.training.eval_every_steps:,}"
    lines.append(f"{phase.num_steps:,} steps of {phase.batch_size} {rows} {', '.join(map(str, lengths))}; {every}")
    if isinstance(task, SeveralTasks):
        lines.append(task.describe())
    return lines


def _finish(
    settings: FinetuningSettings, task: ExampleTask | SeveralTasks, observer: Observer, metric: str
) -> dict[str, float]:
    """Write the report, the export, and the predictions of the best checkpoint, which was chosen by ``metric``.

    Returns the metrics of the first dev split; of several tasks, those of the evaluation of the best checkpoint.
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
            for split, errors_of in _details(one, predictions).items():
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

    A model of several tasks has several heads, and the classes of transformers one: the user exports a task at a time.
    """
    if not settings.export:
        return ""
    if isinstance(task, SeveralTasks):
        command = f"{program()} export --workdir={observer.workdir} --task={next(iter(task.members))} --output=MODEL"
        observer.note(f"not exported: a model of transformers has one head; {command} writes the model of one task")
    elif task.exported_as is None:
        observer.note(f"not exported: transformers has no class with this head; {program()} export writes the encoder")
    elif not catalogue.is_own(settings.task["name"]) and model.config.encoder in families():
        if reason := unlike(model.params, model.config, model.head or of_facts(model.facts, model.params)):
            observer.note(f"not exported: {reason}")
        else:
            return f", model {export_newest(observer, model)}"
    return ""


def _details(task: ExampleTask, predictions: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return what the report says of the predictions of each split: scores and the worst ones, with their texts.

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
