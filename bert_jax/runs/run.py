"""Runs a recipe to its end with one command: what is missing is made, and the same call resumes a run that was stopped.

Pretraining makes vocabulary, corpus, model, filled examples, report and export; fine-tuning makes a model on labelled
examples, its predictions, report and export.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.checkpoints import revisions
from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cluster import distributed
from bert_jax.parts.own_code import keep_copies
from bert_jax.planning import peak_rates
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.recipes.settings import Settings
from bert_jax.reporting.observer import Observer
from bert_jax.runs.evaluations.base import Evaluations, read, titles
from bert_jax.runs.finetuning import Finetuning
from bert_jax.runs.finishing import about
from bert_jax.runs.inputs import initial_of_run
from bert_jax.runs.prepared import Opened, Prepared, Request
from bert_jax.runs.pretraining import Pretraining
from bert_jax.training.loop import Run, train_and_evaluate
from bert_jax.workdir import run_record


def pretrain(config: Mapping[str, Any], request: Request) -> dict[str, float]:
    """Pretrain in ``request.workdir``, from the last saved step on; return the metrics of the last evaluation.

    Raises:
      UserError: the recipe, the workdir, the texts or the machine do not fit together.
    """
    return _train(Pretraining, PretrainingSettings.of(config), config, request)


def finetune(config: Mapping[str, Any], request: Request) -> dict[str, float]:
    """Fine-tune in ``request.workdir``, from the last saved step on; return the metrics of the best evaluation.

    Only the first process of a job returns these; all others return the metrics of the last evaluation.

    Raises:
      UserError: the recipe, the examples, the model to start from or the machine do not fit together.
    """
    return _train(Finetuning, FinetuningSettings.of(config), config, request)


def _train(
    prepare: Callable[..., Prepared], settings: Settings, config: Mapping[str, Any], request: Request
) -> dict[str, float]:
    with run_record.only_writer(request.workdir):
        distributed.check_shared(request.workdir)
        saved = distributed.first_says("the saved steps", saved_steps(request.workdir))
        initial = initial_of_run(settings.vocab, request.typed_keys, request.init, request.workdir, bool(saved))
        return run(prepare(settings, initial, request=request, saved=saved), config)


def run(prepared: Prepared, config: Mapping[str, Any]) -> dict[str, float]:
    """Lead a prepared run to its end. Call it in the block of ``only_writer``.

    ``config``: the tree of the recipe, for the run's files.
    """
    # What needs neither text nor examples is checked first.
    settings, request, bound = prepared.settings, prepared.request, prepared.bound
    workdir, reached = request.workdir, max(prepared.saved, default=0)
    notes = prepared.notes(prepared.initial) if prepared.initial and not bound else []
    evaluators = read(settings.training.evaluations, notes.append)
    distributed.agree("what is frozen", str(sorted(prepared.frozen_contents().items())))
    record = run_record.content(workdir, *prepared.record(config), request.extend, bound)
    known = prepared.check_inputs(notes.append)
    if record["identity"].get("init") == request.init:  # a private run does not say what it was begun from
        record |= prepared.hub_parent
    record["titles"] = prepared.titles() | titles(evaluators)
    num_steps = prepared.num_steps
    if not prepared.experiment.phases.in_epochs:
        prepared.experiment.phases.check_not_past(reached)
    if request.profiled and num_steps:
        request.profiled.check(num_steps)

    def begin(opened: Opened) -> Evaluations:
        return Evaluations(evaluators, opened.tokenizer, opened.model, opened.experiment, notes.append)

    evaluations = begin(known) if known else None
    if distributed.is_first():
        run_record.write_run(workdir, record)
    observer = Observer(workdir, record, num_steps, settings.training.loggers)
    with observer.to_the_end():
        opened = prepared.open(known, observer.note)
        task, experiment = opened.task, dataclasses.replace(opened.experiment, profiled=request.profiled)
        if not num_steps:
            experiment.phases.check_not_past(reached)
            observer.set_num_steps(experiment.phases.num_steps)
            if request.profiled:
                request.profiled.check(experiment.phases.num_steps)
        evaluations = evaluations or begin(opened)
        kept = revisions.remarks(experiment.revisions, prepared.saved)
        for line in [*notes, *prepared.remarks(opened, reached), *kept]:
            observer.note(line)
        facts = prepared.facts(opened) | prepared.parent
        record["phases"], record["revisions"] = experiment.phases.as_record(), dict(experiment.revisions)
        record["about"] = about(task, experiment, facts, opened.sizes)
        if distributed.is_first():
            keep_copies(workdir, record, facts)
            record = run_record.settle(workdir, record, facts)
            prepared.write_baselines(opened, observer.note)
        prepared.fill(opened, observer.note)

        initial = None if bound else prepared.initial_weights or prepared.initial_of_teacher
        first = prepared.first_state(initial, opened, facts, observer.note) if initial else None
        facts = facts | {"run": record}
        frozen = prepared.given_frozen(facts)
        peak = peak_rates.peak_of_all_devices(task.dtype, observer.note)
        metrics = train_and_evaluate(Run(task, experiment, observer, facts, peak, first, frozen, evaluations))
        return prepared.finish(opened, facts, observer, metrics) if distributed.is_first() else metrics
