"""Pretrains a model with one command: vocabulary, corpus, training, filled examples, report and export.

Whatever exists already is kept, and whatever is missing is made. Making the same call again resumes the run.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Literal

import jax

from bert_jax import catalogue, configuration
from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.cluster import distributed
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.prepare import CorpusConfig, VocabularyConfig
from bert_jax.corpora.privacy import private_config, redacted
from bert_jax.errors import UserError
from bert_jax.features.fill_mask import check_masked, encode_masked
from bert_jax.interchange.architectures import of_pretraining
from bert_jax.interchange.family import families
from bert_jax.interchange.initial import Initial, continued_seed, find_initial, start_from
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import LM_HEAD
from bert_jax.models.model import recorded as recorded_model
from bert_jax.objectives.base import Setting
from bert_jax.program import program
from bert_jax.reporting import run_record
from bert_jax.reporting.loggers.base import check_loggers
from bert_jax.reporting.observer import Observer, observe
from bert_jax.reporting.profiled_steps import ProfiledSteps, with_profiled
from bert_jax.rows.loader import LoaderConfig
from bert_jax.rows.phases import Phase, Phases, steps_per_epoch
from bert_jax.rows.units import columns
from bert_jax.runs.baselines import write_baselines
from bert_jax.runs.filled_examples import fill_examples
from bert_jax.runs.finishing import LONGER_PRETRAINING, export_newest, report_at_the_end, without_class
from bert_jax.runs.inputs import CORPUS, Inputs
from bert_jax.runs.model_choice import check_kernel, check_vocabulary, choose_model, old_model, what_gives_way
from bert_jax.runs.objective_checks import check_own_parts, check_whole_batches, contract_of
from bert_jax.runs.own_code import keep_copies, with_contents
from bert_jax.runs.probe import ProbeConfig, prepare
from bert_jax.storage import files
from bert_jax.task import Task
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.loop import Experiment, TrainingConfig, train_and_evaluate
from bert_jax.training.memory import check_fits
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import OptimizerConfig
from bert_jax.training.schedules import ScheduleConfig

Note = Callable[[str], None]

# Fields of config.model that change how fast the model runs, not what it learns.
FREE_MODEL_FIELDS = ("remat", "attention_kernel")
FREE_PHASE_FIELDS = ("micro_batches",)
# Fields of config.corpus that say where the corpus is, how it is built, and how it is described.
FREE_CORPUS_FIELDS = ("path", "num_workers", "beam_options", "license", "dates", "notes")


@dataclasses.dataclass(frozen=True)
class PretrainingSettings:
    """A pretraining recipe as typed values: each config key is a field of this class or of a class that it contains."""

    objective: Mapping[str, Any]  # the objective's name and its options
    model: Mapping[str, Any]  # encoder, size, and fields of the encoder's Config that override the size
    phases: Mapping[str, Any]  # name -> num_steps, batch_size, max_length, masking; run in the order of their names
    seed: int = 0  # of parameters, rows, masks and dropout
    vocab: VocabularyConfig = VocabularyConfig()
    corpus: CorpusConfig = CorpusConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    mesh: MeshConfig = MeshConfig()
    training: TrainingConfig = TrainingConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    loader: LoaderConfig = LoaderConfig()
    probe: ProbeConfig = ProbeConfig()
    # texts in which the finished model fills each [MASK]; None: held-out sentences with a masked word each; (): none
    examples: tuple[str, ...] | None = None
    private: bool = False  # write nothing about the text and its source (corpora.privacy)
    export: bool = True  # write a Hugging Face directory at the end

    def experiment(self) -> Experiment:
        return Experiment(
            self.seed,
            Phases.of(self.phases),
            self.optimizer,
            self.schedule,
            self.mesh,
            self.training,
            self.checkpoints,
            self.loader,
        )

    def identity(self) -> dict[str, Any]:
        """Return the settings that a resumed run may not change. Paths may: hashes of content are compared instead."""
        tree = {
            "seed": self.seed,
            "vocab": _without(dataclasses.asdict(self.vocab), "path"),
            "corpus": _without(dataclasses.asdict(self.corpus), *FREE_CORPUS_FIELDS),
            "objective": dict(self.objective),
            "model": _without(dict(self.model), *FREE_MODEL_FIELDS),
            "phases": {name: _without(dict(values), *FREE_PHASE_FIELDS) for name, values in self.phases.items()},
            "optimizer": dataclasses.asdict(self.optimizer),
            "schedule": dataclasses.asdict(self.schedule),
        }
        return with_contents(tree)

    def fills(self, model: ModelConfig) -> bool:
        """Return whether the finished model fills the examples.

        False in a private run, since the words would come from the private text, and for a left-to-right model, which
        cannot fill a mask.
        """
        return self.examples != () and not self.private and not model.causal

    def check_start(self, initial: Initial | None) -> None:
        """Raise ``UserError`` if the recipe has no architecture of its own and there is no model to start from."""
        if initial is None and not self.model:
            raise UserError(
                "config.model is empty, because this recipe goes on from a model and has its architecture; give "
                "--init=DIR, a Hugging Face directory or the workdir of a run"
            )

    def find_objective(self) -> tuple[ModuleType, Any]:
        """Return the objective's module and its config. Raises ``UserError`` for a wrong key or value."""
        module = catalogue.find("objectives", self.objective.get("name", ""), having="Objective")
        own = _without(dict(self.objective), "name")
        return module, configuration.build(module.Config, own, "config.objective", also=("name",))

    def absent(self) -> dict[str, Any]:
        """Return the values to assume for keys of ``identity`` that earlier versions did not record."""
        absent = configuration.old_defaults(PretrainingSettings) | {
            "objective": configuration.old_defaults(self.find_objective()[0].Config),
            "model": old_model(self.model),
            "phases": {name: configuration.old_defaults(Phase) for name in self.phases},
        }
        return private_config(absent) if self.private else absent

    def absent_facts(self) -> dict[str, Any]:
        """Return the values to assume for facts (entries of a run's record) that earlier versions did not record."""
        objective = configuration.old_defaults(self.find_objective()[0].Config)
        return {
            "model": old_model(self.model),
            "objective": configuration.merged(objective, self.objective),
        }


def _without(mapping: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in names}


@dataclasses.dataclass(frozen=True)
class PretrainingRequest:
    """The values that the command line adds to a recipe."""

    workdir: str
    command: str = ""
    init: str | None = None  # a Hugging Face directory, or WORKDIR[@step]
    init_optimizer: Literal["fresh", "kept"] = "fresh"  # "kept": also take the optimizer moments of --init
    vocab: str | None = None  # replaces config.vocab.path
    extend: bool = False
    private: bool = False  # the same as config.private
    typed: tuple[str, ...] = ()  # the keys of the config that were given on the command line
    profiled: ProfiledSteps | None = None


def pretrain(config: Mapping[str, Any], request: PretrainingRequest) -> dict[str, float]:
    """Run a recipe to its end in ``request.workdir``, from the last saved step on; return the last metrics.

    Raises:
      UserError: the recipe, the workdir, the texts or the machine do not fit together.
    """
    config, settings = begun(config, request)
    workdir = request.workdir
    with run_record.only_writer(workdir):
        saved = distributed.first_says("the saved steps", saved_steps(workdir))
        initial = find_initial(request.init, workdir, resumes=bool(saved))
        settings.check_start(initial)
        seed, parent = continued_seed(settings.seed, initial, "pretraining")
        experiment = dataclasses.replace(settings.experiment(), seed=seed, profiled=request.profiled)
        make_task = checked(settings, experiment, initial)
        bare = make_task(None, None, choose_model(settings.model, settings.vocab.size, initial), seed)
        given_way = what_gives_way(settings.model, request.typed, initial) if initial and not saved else []
        if initial and not saved and request.init_optimizer == "kept":
            initial.check_moments([part.name for part in bare.parts])
        prepared = prepare(settings.probe, experiment)
        inputs = Inputs(workdir, settings.vocab, settings.corpus, initial, bool(saved), settings.private, bare.units)
        inputs.check()
        run = run_record.described(
            workdir, *recorded(config, settings, request), request.extend, bool(saved), settings.absent()
        )
        experiment.phases.check_not_past(reached := max(saved, default=0))
        run = with_profiled(request.profiled, run, experiment.phases.num_steps, reached)
        known = 0 if experiment.phases.in_epochs else experiment.phases.num_steps
        observer = observe(workdir, run, known, experiment.training.loggers)
        with observer.to_the_end():
            tokenizer, corpus = open_inputs(inputs, observer.note)
            model = choose_model(settings.model, tokenizer.size, initial)
            if not saved:
                check_vocabulary(model, tokenizer.size)
            if settings.fills(model):
                encode_masked(settings.examples or (), tokenizer, model.max_length, "config.examples")
            task = make_task(corpus, tokenizer, model, seed, settings.seed)
            experiment = with_steps(experiment, task, observer)
            experiment.phases.check_not_past(reached)
            run["phases"] = experiment.phases.as_record()
            probe = dataclasses.replace(prepared, experiment=experiment).make(tokenizer, model) if prepared else None
            facts = {
                "model": recorded_model(model),
                "lowercase": tokenizer.lowercase,
                "vocabulary_sha256": tokenizer.sha256,
                "corpus_fingerprint": corpus.fingerprint,
                "head": head_of(model, task),
                "objective": {"name": settings.objective["name"], **dataclasses.asdict(settings.find_objective()[1])},
                **parent,
            }
            facts = with_contents(facts)
            if distributed.is_first():
                keep_copies(workdir, run, facts)
                run = run_record.settle(workdir, run, facts, settings.absent_facts())
                place = settings.corpus.path or files.as_path(workdir) / CORPUS
                write_baselines(task, experiment, workdir, corpus.fingerprint, place, observer.note)
            of_run = (experiment.schedule, experiment.checkpoints)
            remarks = [line for part in of_run for line in part.remarks(experiment.phases.num_steps) if not saved]
            if reached == experiment.phases.num_steps:
                remarks = [f"all {reached:,} steps are done already; --extend with more steps goes on"]
            for line in [*given_way, *remarks, *(probe.notes if probe else ())]:
                observer.note(line)
            start = None
            if initial and not saved:
                start = start_from(initial, model, tokenizer, request.init_optimizer, observer.note)
                observer.fresh_heads = tuple(part.name for part in task.parts if part.name not in initial.params)
            result = train_and_evaluate(task, experiment, workdir, observer, facts | {"run": run}, start, probe=probe)
            if distributed.is_first():
                finish(settings, model, facts["head"], corpus, request, observer)
    return result


def begun(config: Mapping[str, Any], request: PretrainingRequest) -> tuple[dict[str, Any], PretrainingSettings]:
    """Return the config and the settings of a run that starts, or that goes on in ``request.workdir``."""
    config = {**config, "private": request.private or config.get("private", False)}
    if "task" in config:
        how = "run it with bert-jax finetune, or choose one of configs/pretrain"
        raise UserError(f"this recipe is one for fine-tuning (it has config.task); {how}")
    kept = run_record.as_begun(request.workdir, config, PretrainingSettings, bool(saved_steps(request.workdir)))
    settings = configuration.build(PretrainingSettings, kept, "config")
    vocab = dataclasses.replace(settings.vocab, path=request.vocab) if request.vocab else settings.vocab
    return config, dataclasses.replace(settings, vocab=vocab)


def open_inputs(inputs: Inputs, note: Note) -> tuple[Tokenizer, Mixture]:
    """Return the vocabulary and the corpus.

    If the job has several processes, the first finds or copies both, then the others read them. In such a job, no
    process builds a corpus, because all others would have to wait for hours.
    """
    if distributed.several():
        inputs.check_made()
        inputs = dataclasses.replace(inputs, builds=False)
        if path := inputs.vocab.path:
            distributed.wait("config.vocab.path", tokenizers.load(path, inputs.vocab.lowercase).sha256)
    if not distributed.is_first():
        distributed.wait("the inputs are there")
        inputs = dataclasses.replace(inputs, bound=True)
    tokenizer = inputs.open_vocabulary(note)
    corpus = inputs.open_corpus(tokenizer, note)
    if distributed.is_first():
        distributed.wait("the inputs are there")
    distributed.wait("the vocabulary", tokenizer.sha256)
    distributed.wait("the corpus", corpus.fingerprint)
    return tokenizer, corpus


def checked(
    settings: PretrainingSettings,
    experiment: Experiment,
    initial: Initial | None = None,
    devices: list[jax.Device] | None = None,
) -> Callable[..., Any]:
    """Check everything in a recipe that can be checked before text is read; return a function that makes its objective.

    Args:
      devices: the devices to run on. If None, all devices of this job, whose memory is then checked too.

    Returns:
      A function (corpus, tokenizer, model, seed, seed of the held-out rows) -> the recipe's objective.

    Raises:
      UserError: settings do not exist, make no sense, or do not fit each other.
    """
    module, objective = settings.find_objective()
    kinds = {phase.kind: phase.max_length for phase in experiment.phases.phases}
    changes = {phase.kind: phase.changes for phase in experiment.phases.phases}
    experiment.check(devices)
    check_loggers(settings.training.loggers)
    model = choose_model(settings.model, settings.vocab.size, initial)
    with contract_of(catalogue.name_of(module.__name__)):
        task = module.Objective(objective, Setting(model, kinds, settings.seed, changes))
        check_own_parts(task)
    specs = task.batch_specs
    mesh = experiment.make_mesh(devices)
    check_whole_batches(task, experiment, mesh)
    check_kernel(model, mesh, [specs[kind] for kind in kinds])
    builds = not (settings.corpus.path or settings.corpus.parts)
    if builds and (absent := [name for name in columns(task.units) if name not in settings.corpus.columns]):
        known = configuration.nearest(absent[0], ("piece", "word", *settings.corpus.columns))
        raise UserError(
            f"config.objective.masking.unit is {absent[0]!r}, a column that the corpus is to be built without "
            f"({known}); name its annotator, such as --config.corpus.columns=\"{{'{absent[0]}': {{'annotator':"
            " 'segmenter'}}\", or take the unit 'word'"
        )
    if settings.corpus.parts and any(name not in kinds for name in specs):
        raise UserError("a mixture has rows of one length: set config.objective.packing to 'packed' or 'none'")
    if settings.fills(model):
        check_masked(settings.examples or (), "config.examples")
    if devices is None:
        batches = {
            f"config.phases.{p.kind}.batch_size": (p.batch_size, specs[p.kind]) for p in experiment.phases.phases
        }
        evaluated = {"config.training.eval_rows": (settings.training.eval_rows, specs[experiment.evaluated_phase.kind])}
        check_fits(model.num_parameters, batches | evaluated)
    return lambda corpus, tokenizer, model, seed, heldout_seed=None: module.Objective(
        objective, Setting(model, kinds, seed, changes, heldout_seed, corpus, tokenizer)
    )


def with_steps(experiment: Experiment, task: Task, observer: Observer) -> Experiment:
    """Return ``experiment`` with the steps of phases in epochs, which follow from the rows of the task's corpus.

    Raises ``UserError`` if the schedule does not fit into these steps.
    """
    if not experiment.phases.in_epochs:
        return experiment
    phases = experiment.phases

    def steps(index: int) -> float:
        phase = phases.phases[index]
        source = task.source("train", phase.kind, index)
        return steps_per_epoch(source.rows_per_epoch, source.buckets, phase.batch_size)

    experiment = dataclasses.replace(experiment, phases=phases.counted(steps))
    experiment.make_schedule()
    observer.lasts(experiment.phases.num_steps)
    if len(phases.phases) == 1:
        observer.note(experiment.phases.described(experiment.evaluated_phase))
    return experiment


def head_of(model: ModelConfig, task: Any) -> dict[str, str] | None:
    """Return the entry ``head`` of a run's facts: the model's class in transformers; None if it has no class."""
    parts = [part.name for part in task.parts]
    if model.encoder not in families() or LM_HEAD.name not in parts:
        return None
    return {"architecture": of_pretraining(model, parts)}


def recorded(
    config: Mapping[str, Any], settings: PretrainingSettings, request: PretrainingRequest
) -> tuple[Mapping[str, Any], dict[str, Any], str]:
    """Return config, identity and command as a run's files record them. A private run records hashes and no command."""
    identity = settings.identity() | {"init": request.init}
    if not settings.private:
        return config, identity, request.command
    return private_config(config), private_config(identity) | {"init": redacted(request.init)}, ""


def finish(
    settings: PretrainingSettings,
    model: ModelConfig,
    head: Any,
    corpus: Mixture,
    request: PretrainingRequest,
    observer: Observer,
) -> None:
    """Write the filled examples, the export and the report of a finished run, and print what the user can do next.

    ``head`` is what ``head_of`` returns.
    """
    workdir = files.as_path(request.workdir)
    filled: list[str] = []
    if settings.fills(model):
        with observer.shown("reporting"):
            filled = fill_examples(settings.examples, corpus, request.workdir, observer.note)
    exported = None
    if settings.export and (unknown := without_class(model, head, request.workdir)):
        observer.note(f"not exported: transformers has no class for {unknown}")
    elif settings.export:
        exported = export_newest(request.workdir, observer)
    report = report_at_the_end(request.workdir, observer, LONGER_PRETRAINING)
    where = f"report {report}" + (f", model {exported}" if exported else "")
    observer.note(f"done: {where}, metrics {workdir / 'metrics.jsonl'}")
    if head and not model.causal:
        example = shlex.quote(filled[0]) if filled else '"A sentence of your text with a [MASK]."'
        observer.note(f"next: {program()} fill-mask --workdir={shlex.quote(request.workdir)} {example}")
