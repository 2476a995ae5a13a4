"""Pretrains a model with one command: vocabulary, corpus, training, filled examples, report and export.

Whatever exists already is kept, and whatever is missing is made. Making the same call again resumes the run.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax
import numpy as np

from bert_jax import catalogue
from bert_jax.checkpoints.restoring import BEST, saved_steps
from bert_jax.cluster import distributed
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.privacy import private_config, redact
from bert_jax.errors import UserError
from bert_jax.interchange.architectures import has_pretraining_class, of_pretraining
from bert_jax.interchange.initial import start_from
from bert_jax.interchange.loading import load
from bert_jax.interchange.moments import read_moments, with_moments
from bert_jax.models import distillation
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import EncoderPart, config_facts
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.objectives.several import Several
from bert_jax.planning import peak_rates
from bert_jax.program import program, quoted
from bert_jax.reporting import run_record
from bert_jax.reporting.observer import Observer
from bert_jax.reporting.profiled_steps import ProfiledSteps
from bert_jax.rows.loader import Loader
from bert_jax.rows.phases import Phases
from bert_jax.runs.baselines import write_baselines
from bert_jax.runs.evaluations.base import Evaluations, read, titles
from bert_jax.runs.filled_examples import fill_examples
from bert_jax.runs.finishing import LONGER_PRETRAINING, about, export_newest, report_at_the_end, without_class
from bert_jax.runs.inputs import CORPUS, find_start
from bert_jax.runs.model_choice import other_reading, overridden_settings
from bert_jax.runs.models_read import frozen_contents
from bert_jax.runs.own_code import keep_copies, with_contents
from bert_jax.runs.preparation import CheckedPretraining, check_pretraining
from bert_jax.runs.settings import PretrainingSettings
from bert_jax.runs.used_keys import used_keys
from bert_jax.storage import files
from bert_jax.task import Task, tasks_of, titles_of
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training import roll_back
from bert_jax.training.experiment import Experiment
from bert_jax.training.loop import Run, train_and_evaluate
from bert_jax.training.mesh import MeshConfig


@dataclasses.dataclass(frozen=True)
class PretrainingRequest:
    """The values that the command line adds to a recipe."""

    workdir: str
    command: str = ""
    init: str | None = None  # a Hugging Face directory, or WORKDIR[@step]
    init_optimizer: Literal["fresh", "kept"] = "fresh"  # "kept": begin with the optimizer's moments of --init too
    vocab: str | None = None  # replaces config.vocab.path
    extend: bool = False
    private: bool = False  # the same as config.private
    typed_keys: tuple[str, ...] = ()  # the keys of the config that were given on the command line
    profiled: ProfiledSteps | None = None


def pretrain(config: Mapping[str, Any], request: PretrainingRequest) -> dict[str, float]:
    """Run a recipe to its end in ``request.workdir``, from the last saved step on; return the last metrics.

    Raises:
      UserError: the recipe, the workdir, the texts or the machine do not fit together.
    """
    config, settings = _settings_of(config, request)
    workdir = request.workdir
    with run_record.only_writer(workdir):
        # What needs no text is checked first.
        saved = distributed.first_says("the saved steps", saved_steps(workdir))
        reached, typed = max(saved, default=0), request.typed_keys
        initial = find_start(settings.vocab, typed, request.init, workdir, bool(saved))
        recipe = check_pretraining(settings, initial)
        start = None if saved else initial
        notes = overridden_settings(settings.model, typed, start) if start else []
        notes += other_reading(recipe.task.setting.model, start) if start else []
        evaluators = read(settings.training.evaluations, notes.append)
        inputs = recipe.inputs(workdir, bool(saved), typed)
        moments = None
        if request.init_optimizer == "kept" and not saved:
            rule, name = recipe.experiment.optimizer, recipe.settings.identity()["optimizer"]["name"]
            moments = read_moments(start, recipe.task, recipe.task.setting.model, rule, name, inputs.source_tokenizer)
            notes.append(f"the moments of the optimizer of {request.init} are kept")
        distributed.wait("what is frozen", str([*map(frozen_contents, tasks_of(recipe.task).values())]))
        record = _record_of(used_keys(config, inputs), recipe, request)
        run = run_record.content(workdir, *record, request.extend, bool(saved))
        tasks = tasks_of(recipe.task).values()
        run["titles"] = {name: title for one in tasks for name, title in titles_of(one).items()} | titles(evaluators)
        phases = recipe.experiment.phases
        phases.check_not_past(reached)
        if request.profiled:
            request.profiled.check(phases.num_steps)

        if distributed.is_first():
            run_record.write_run(workdir, run)
        observer = Observer(workdir, run, 0 if phases.in_epochs else phases.num_steps, settings.training.loggers)
        with observer.to_the_end():
            tokenizer, corpus = inputs.open(observer.note)
            task, experiment = recipe.with_text(tokenizer, corpus)
            experiment, model = dataclasses.replace(experiment, profiled=request.profiled), task.setting.model
            _tell_length(experiment, phases.in_epochs, reached, observer)
            evaluations = Evaluations(evaluators, tokenizer, model, experiment, notes.append)
            facts = _facts_of(settings, task, tokenizer, corpus) | recipe.parent
            run["phases"] = experiment.phases.as_record()
            text = [one.split("train") for name, one in corpus.corpora.items() if corpus.shares[name]]
            sizes = {key: sum(getattr(one, f"num_{key}") for one in text) for key in ("documents", "tokens")}
            run["about"] = about(task, experiment, facts, sizes)
            if distributed.is_first():
                keep_copies(workdir, run, facts)
                run = run_record.settle(workdir, run, facts)
                folder = settings.corpus.path or files.as_path(workdir) / CORPUS
                write_baselines(task, experiment, workdir, corpus.fingerprint, folder, observer.note)
            remarks = _remarks_on(experiment, reached)
            for line in [*notes, *remarks]:
                observer.note(line)

            first = None
            if begin := None if saved else start or recipe.start:
                first = start_from(begin, model, tokenizer, observer.note)
                first = first if moments is None else with_moments(first, moments)
            facts, peak = facts | {"run": run}, peak_rates.peak_of_all_devices(task.dtype, observer.note)
            result = train_and_evaluate(Run(task, experiment, observer, facts, peak, first, evaluations=evaluations))
            if distributed.is_first():
                finish(settings, model, facts["head"], corpus, observer)
    return result


def _tell_length(experiment: Experiment, in_epochs: bool, reached: int, observer: Observer) -> None:
    """Tell the observer the steps of a run whose phases are ``in_epochs``, which are known now that there is a corpus.

    Raises ``UserError`` if the run has gone past them.
    """
    if in_epochs:
        experiment.phases.check_not_past(reached)
        observer.set_num_steps(experiment.phases.num_steps)
        if len(experiment.phases.phases) == 1:
            observer.note(experiment.phases.describe(experiment.evaluated_phase))


def _remarks_on(experiment: Experiment, reached: int) -> list[str]:
    """Return lines about what is unusual in the settings of a new run, or the line that a run is done already."""
    num_steps = experiment.phases.num_steps
    if reached == num_steps:
        return [f"all {reached:,} steps are done already; --extend with more steps goes on"]
    of_schedules = (line for schedule, steps in experiment.schedules.values() for line in schedule.remarks(steps))
    return [] if reached else [*of_schedules, *experiment.checkpoints.remarks(num_steps)]


def _facts_of(
    settings: PretrainingSettings, task: PretrainingObjective | Several, tokenizer: Tokenizer, corpus: Mixture
) -> dict[str, Any]:
    """Return the facts of a run: what is known of it once it has text. It resumes only with the same."""
    model, every = task.setting.model, [part.name for part in task.parts]
    parts = [name for name in every if name != distillation.PROJECTION]
    phases = settings.experiment().phases.phases
    [(module, *_), *_] = settings.objectives(phases[-1:])
    replaced = sorted({key for phase in phases for key in phase.model})
    models = {p.kind: {key: getattr(task.of(p.kind).setting.model, key) for key in replaced} for p in phases}
    beside = {part.name: config_facts(part.config) for part in task.parts if isinstance(part, EncoderPart)}
    facts = {
        "model": config_facts(model),
        **({"model_of_phases": models} if replaced else {}),
        **tokenizer.case._asdict(),
        "vocabulary_sha256": tokenizer.sha256,
        "corpus_fingerprint": corpus.fingerprint,
        "head": {"architecture": of_pretraining(model, parts)} if has_pretraining_class(model, parts) else None,
        "objective": {"name": catalogue.name_of(module.__name__), **dataclasses.asdict(task.config)},
        **({"encoders": beside} if beside else {}),
        # those of other phases, and what only a teacher needed, are left out of the model
        **({"parts": parts} if isinstance(task, Several) or parts != every else {}),
    }
    return _with_frozen(with_contents(facts), task)


def _with_frozen(tree: dict[str, Any], task: Task) -> dict[str, Any]:
    """Return the ``tree`` of a recipe that names what is frozen by its content, wherever it lies.

    This stands in place of the path of a model. Other arrays are in an entry "frozen", by the first kind of batch.
    """
    contents, others = dict[tuple[str, Any], str](), dict[str, dict[str, str]]()
    for kind, one in tasks_of(task).items():
        models, digests = one.setting.models, frozen_contents(one)
        if taught := digests.pop(distillation.FROZEN, None):
            contents["init", one.setting.teacher.trained.source] = f"teacher@{taught}"
        contents |= {
            (name, models[name].source): f"{name}@{digest}" for name, digest in digests.items() if name in models
        }
        if arrays := {name: digest for name, digest in digests.items() if name not in models}:
            others[kind] = arrays

    def named(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: named(key, inner) for key, inner in value.items()}
        return contents.get((name, value), value) if isinstance(value, str) else value

    return named("", tree) | ({"frozen": others} if others else {})


def _settings_of(config: Mapping[str, Any], request: PretrainingRequest) -> tuple[dict[str, Any], PretrainingSettings]:
    """Return the config and the settings of a recipe with what ``request`` changes in them."""
    config = {**config, "private": request.private or config.get("private", False)}
    settings = PretrainingSettings.of(config)
    vocab = dataclasses.replace(settings.vocab, path=request.vocab) if request.vocab else settings.vocab
    return config, dataclasses.replace(settings, vocab=vocab)


def _record_of(
    config: Mapping[str, Any], recipe: CheckedPretraining, request: PretrainingRequest
) -> tuple[Mapping[str, Any], dict[str, Any], str]:
    """Return config, identity and command as a run's files record them. A private run records hashes and no command."""
    identity = _with_frozen(recipe.settings.identity(), recipe.task) | {"init": request.init}
    if request.init_optimizer == "kept":
        identity["init_optimizer"] = request.init_optimizer
    if not recipe.settings.private:
        return config, identity, request.command
    return private_config(config), private_config(identity) | {"init": redact(request.init)}, ""


def finish(settings: PretrainingSettings, model: ModelConfig, head: Any, corpus: Mixture, observer: Observer) -> None:
    """Write the filled examples, the export and the report of a finished run, and print what the user can do next.

    ``head`` is that of the run's facts.
    """
    workdir = files.as_path(observer.workdir)
    filled: list[str] = []
    trained = None
    if settings.fills(model):
        with observer.showing("reporting"):
            trained = load(observer.workdir)
            filled = fill_examples(trained, settings.examples, corpus, observer.note)
    exported = None
    if settings.export and (unknown := without_class(model, head, observer.workdir)):
        observer.note(f"not exported: transformers has no class for {unknown}")
    elif settings.export:
        exported = export_newest(observer, trained)
    best = max(saved_steps(str(workdir / BEST)), default=0)
    metric = settings.selection.metric
    report = report_at_the_end(observer, LONGER_PRETRAINING, best or sys.maxsize, metric)
    chosen = f", best by {metric} at step {best:,}" if best else ""
    where = f"report {report}" + (f", model {exported}" if exported else "")
    observer.note(f"done{chosen}: {where}, metrics {workdir / 'metrics.jsonl'}")
    if head and not model.causal:
        example = quoted(filled[0]) if filled else '"A sentence of your text with a [MASK]."'
        observer.note(f"next: {program()} fill-mask --workdir={shlex.quote(observer.workdir)} {example}")


@dataclasses.dataclass(frozen=True)
class TrainingBatches:
    """The batches of a run: iterate over it, as often as wanted, from ``first_step`` to the last step.

    A batch is a dict of numpy arrays [B, ...]; ``task.batch_specs`` has their names, shapes and dtypes.

    Attributes:
      task: the objective, whose ``loss`` reads a batch; ``task.inputs(batch)`` adds what it derives. If phases have
        objectives of their own, those of a phase are ``task.of(phase)``.
      model: the architecture that the recipe trains.
    """

    task: Task
    tokenizer: Tokenizer
    model: ModelConfig
    phases: Phases
    first_step: int
    loader: Loader

    def __len__(self) -> int:
        return self.phases.num_steps - self.first_step

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return (batch for _, batch in self.loader)


def training_batches(
    config: Mapping[str, Any], request: PretrainingRequest, first_step: int, note: Callable[[str], None]
) -> TrainingBatches:
    """Return the batches that ``pretrain(config, request)`` trains on, or has trained on.

    A vocabulary or corpus that is missing is made in the workdir, where the run will find it. The machine need not be
    one that the model fits on.

    Raises:
      UserError: the recipe, the workdir or the texts do not fit together, or the run does not have such a step.
    """
    config, settings = _settings_of(config, request)
    model = {name: value for name, value in settings.model.items() if name != "attention_kernel"}
    settings = dataclasses.replace(settings, mesh=MeshConfig(), model=model)  # only of the machine that trains
    with run_record.only_writer(request.workdir):
        saved = saved_steps(request.workdir)
        initial = find_start(settings.vocab, request.typed_keys, request.init, request.workdir, bool(saved))
        recipe = check_pretraining(settings, initial, jax.devices()[:1])
        run_record.content(  # raises, if the workdir holds another run
            request.workdir, *_record_of(config, recipe, request), bound=bool(saved)
        )
        tokenizer, corpus = recipe.inputs(request.workdir, bool(saved), request.typed_keys).open(note)
        task, experiment = recipe.with_text(tokenizer, corpus)
    rolled = roll_back.of_run(run_record.read_run(request.workdir) if saved else {})
    phases = roll_back.without_windows(experiment.phases, rolled)
    if not (isinstance(first_step, int) and 0 <= first_step < phases.num_steps):
        raise UserError(f"first_step is {first_step!r}; the run has the steps 0 to {phases.num_steps - 1:,}")
    loader = Loader(task.source, phases, first_step, task.batch_specs, settings.loader)
    return TrainingBatches(task, tokenizer, task.setting.model, phases, first_step, loader)
