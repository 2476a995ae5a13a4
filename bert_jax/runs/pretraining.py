"""A pretraining: what is checked before there is text, what needs the text, and what a finished run leaves."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from bert_jax import configuration
from bert_jax.corpora.columns import find as find_columns
from bert_jax.corpora.mixture import Mixture, check_shares, normalised
from bert_jax.corpora.privacy import private_config, redact
from bert_jax.errors import UserError
from bert_jax.features.fill_mask import check_masked, encode_masked
from bert_jax.interchange.architectures import has_pretraining_class, of_pretraining
from bert_jax.interchange.hugging_face import check_family
from bert_jax.interchange.initial import start_from
from bert_jax.interchange.loading import load
from bert_jax.interchange.moments import read_moments, with_moments
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.losses import distillation
from bert_jax.metric_names import titles_of
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import QUERIES, EncoderPart, config_facts
from bert_jax.objectives.base import PretrainingObjective, Setting
from bert_jax.objectives.several import SeveralObjectives, seed_of_member
from bert_jax.objectives.terms import check_meanings
from bert_jax.parts import catalogue
from bert_jax.parts.own_code import with_contents
from bert_jax.program import Note
from bert_jax.recipes.pretraining_settings import ChosenObjective, PretrainingSettings, member_of
from bert_jax.reporting.observer import Observer
from bert_jax.rows.units import WORD
from bert_jax.runs import own_parts
from bert_jax.runs.baselines import write_baselines
from bert_jax.runs.checks import (
    check_exported,
    check_lanes,
    check_memory,
    check_metrics,
    check_optimizer,
    check_steps_fit,
    check_whole_batches,
)
from bert_jax.runs.filled_examples import abilities, to_fill
from bert_jax.runs.inputs import CORPUS, Inputs
from bert_jax.runs.model_choice import (
    check_extensions,
    check_kernel,
    choose_model,
    left_to_plain,
    of_phase,
    other_reading,
    overridden_settings,
    with_memory_of_recipe,
    with_vocabulary_size,
)
from bert_jax.runs.models_read import (
    Models,
    check_features,
    check_vocabularies,
    frozen_contents,
    in_run,
    initial_of_teacher,
    read_models,
    read_teacher,
    teacher_in_run,
)
from bert_jax.runs.prepared import Opened, Prepared, Request
from bert_jax.runs.pretraining_end import finish
from bert_jax.runs.used_keys import used_keys
from bert_jax.storage import files
from bert_jax.task import Task, tasks_of
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.experiment import Experiment
from bert_jax.training.memory import check_fits
from bert_jax.training.state import TrainState


class Pretraining(Prepared):
    """A pretraining, of which everything is checked that needs no text.

    Attributes:
      task: the objective, or the objectives of the phases, still without text. Until the vocabulary is there, the size
        of its model's vocabulary is expected, from ``initial`` or ``config.vocab``.
    """

    purpose = "pretraining"
    settings: PretrainingSettings
    task: PretrainingObjective | SeveralObjectives

    def __init__(
        self,
        settings: PretrainingSettings,
        initial: TrainedModel | None = None,
        devices: list[jax.Device] | None = None,
        read: Callable[..., TrainedModel] = load,
        request: Request | None = None,
        saved: Sequence[int] = (),
    ):
        """Check the recipe; see ``Prepared``. ``read`` reads the other models that it names, such as a teacher."""
        super().__init__(settings, initial, devices, request, saved)
        self._moments: Any = None  # the optimizer's state with which the run begins, if the flags ask for it
        read_by = [read_models(one.config, one.where, read) for one in settings.objectives]
        if settings.teacher and settings.teacher.cached:
            raise UserError(
                f"{distillation.WHERE}.cached is for fine-tuning; rows of pretraining are never the same twice"
            )
        self._teacher = read_teacher(settings.teacher, read)
        pieces = [model.tokenizer.size for models in (*read_by, self._teacher) for model in models.values()]
        model = first_model(settings, initial, next(iter(pieces), None))
        self.initial_of_teacher = initial_of_teacher(settings.teacher, self._teacher, model, initial)
        pairs = zip(settings.objectives, read_by, strict=True)
        objectives = [self._objective(one, models, model) for one, models in pairs]
        phases = self.experiment.phases.phases
        check_extensions(model, phases)
        members = {
            kind: {name: (one.kind, share) for name, (one, share, _) in of.items()}
            for kind, of in settings.members.items()
        }
        self.task = objectives[0] if len(objectives) == 1 else SeveralObjectives(objectives, members)
        self._check_task()
        if devices is None:
            specs, evaluated = self.task.batch_specs, self.experiment.evaluated_phase
            batches = {f"config.phases.{p.kind}.batch_size": (p.batch_size, specs[p.kind]) for p in phases}
            heldout = {"config.training.eval_rows": (settings.training.eval_rows, specs[evaluated.kind])}
            check_fits(model.num_parameters, batches | heldout)
            check_steps_fit(self.task, self.experiment)

    def _objective(self, chosen: ChosenObjective, models: Models, model: ModelConfig) -> PretrainingObjective:
        """Return one of the objectives of the run, without text, which reads ``models`` and trains ``model``."""
        module, config, phases, where = chosen
        settings, of_own = self.settings, of_phase(model, phases[0])
        lengths = {phase.kind: phase.max_length for phase in phases}
        with own_parts.contract_of(catalogue.name_of(module.__name__)):
            setting = Setting(
                model=of_own,
                max_lengths=lengths,
                seed=seed_of_member(self.experiment.seed, member_of(phases[0])),
                changes={phase.kind: phase.changes for phase in phases},
                heldout_seed=settings.seed,
                models=in_run(models, of_own, lengths, where),
                where=where,
                teacher=teacher_in_run(settings.teacher, self._teacher, of_own, lengths),
                heldout_masking=self._heldout_masking(chosen),
                shares=self._shares(chosen),
                batch_sizes={phase.kind: phase.batch_size for phase in phases},
            )
            objective: PretrainingObjective = module.Objective(config, setting)
            own_parts.check_objective(objective)
        check_features(models, objective.batch_specs, where)
        check_features(self._teacher, objective.batch_specs, distillation.WHERE)
        check_whole_batches(objective, self.experiment, self.mesh)
        check_kernel(
            objective.network(objective.setting.model), self.mesh, [objective.batch_specs[kind] for kind in lengths]
        )
        return objective

    def _heldout_masking(self, chosen: ChosenObjective) -> Mapping[str, Any]:
        """Return the keys of masking that held-out rows have, if the objective is evaluated."""
        phases = {phase.kind.partition("/")[0] for phase in chosen.phases}
        return self.settings.training.eval_masking if self.experiment.evaluated_phase.kind in phases else {}

    def _shares(self, chosen: ChosenObjective) -> dict[str, dict[str, float]]:
        """Return the shares of the parts of the corpus in the rows of each phase that names its shares.

        Raises ``UserError`` for shares that do not fit the parts.
        """
        given = {phase.kind: phase.shares for phase in chosen.phases if phase.shares is not None}
        for kind, shares in given.items():
            check_shares(shares, self.settings.corpus.parts, f"config.phases.{kind.partition('/')[0]}.shares")
        return {kind: normalised(shares) for kind, shares in given.items()}

    def _check_task(self) -> None:
        """Raise ``UserError`` if the objectives do not fit each other, the optimizer, the corpus or the export."""
        settings, task = self.settings, self.task
        check_memory(task, self.experiment, has_parts=bool(settings.corpus.parts))
        check_optimizer(task, self.experiment)
        if settings.export:
            check_family(task.setting.model)
            check_exported(task)
        # Kinds of batches may give one metric one meaning only.
        check_meanings({kind: one.terms(one.config) for kind, one in tasks_of(task).items()})
        self._check_columns()
        lengths = {kind for one in tasks_of(task).values() for kind in one.setting.max_lengths}
        if settings.corpus.parts and any(name not in lengths for name in task.batch_specs):
            raise UserError("a mixture has rows of one length: set config.objective.packing to 'packed' or 'none'")
        check_masked(self._filled, "config.examples")

    @property
    def _writes(self) -> list[str]:
        """The ways in which the finished model writes, as its facts name them."""
        last = self.experiment.phases.phases[-1].kind
        at_end = [self.task.of(kind) for kind in self.task.batch_specs if kind.partition("/")[0] == last]
        return sorted({one.writes for one in at_end} - {""})

    @property
    def _filled(self) -> list[str]:
        """The examples of the recipe that the finished model fills; a model that writes too goes on with the others."""
        able = abilities(self.task.setting.model, self.task.differs, self._writes)
        shown = self.settings.shows_examples and able.fills
        return [*(to_fill(self.settings.examples, able) or ())] if shown else []

    def _check_columns(self) -> None:
        """Raise ``UserError`` if rows read columns that the corpus is to be built without."""
        corpus = self.settings.corpus
        absent = [name for name in self.task.needed_columns if name not in corpus.columns]
        if absent and not (corpus.path or corpus.parts):
            is_unit = absent[0] in self.task.units
            valid = (*(("piece", "word") if is_unit else ()), *corpus.columns)
            known = configuration.nearest(absent[0], valid) if valid else "it has none"
            begin = "config.objective.masking.unit is" if is_unit else "the objective reads"
            other, otherwise = ("segmenter", ", or take the unit 'word'") if is_unit else ("NAME", "")
            raise UserError(
                f"{begin} {absent[0]!r}, a column that the corpus is to be built without "
                f"({known}); name its annotator, such as --config.corpus.columns=\"{{'{absent[0]}': {{'annotator':"
                f" '{other}'}}}}\"{otherwise}"
            )

    # ---- With text -----------------------------------------------------------------------------------------------

    @functools.cached_property
    def inputs(self) -> Inputs:
        """What finds or makes the vocabulary and the corpus."""
        settings, request = self.settings, self.request
        return Inputs(
            request.workdir,
            settings.vocab,
            settings.corpus,
            self.initial,
            self.bound,
            settings.private,
            self.task.needed_columns,
            WORD in self.task.units,
            typed=request.typed_keys,
        )

    def with_text(
        self, tokenizer: Tokenizer, corpus: Mixture
    ) -> tuple[PretrainingObjective | SeveralObjectives, Experiment]:
        """Return the task on a corpus, and the experiment, in which lengths given in epochs have become steps.

        Raises ``UserError`` if the text does not fit the model or the examples, the schedule does not fit the steps, or
        no evaluation reports the metric by which the best step is selected.
        """
        settings = self.settings
        model = with_vocabulary_size(self.task.setting.model, settings.architecture, tokenizer.size, self.initial)
        encode_masked(self._filled, tokenizer, model.max_length, "config.examples")
        task = self.task.with_text(corpus, tokenizer, model.vocab_size)
        experiment = self.experiment.in_steps(task, lambda phase: corpus.words_of_epoch(phase.shares))
        check_lanes(task, experiment)
        experiment.make_schedule()
        check_metrics(settings.selection.metric, experiment, task, self.mesh)
        return task, experiment

    # ---- What a run asks for (``Prepared``) ------------------------------------------------------------------------

    @property
    def num_steps(self) -> int:
        phases = self.experiment.phases
        return 0 if phases.in_epochs else phases.num_steps

    def titles(self) -> dict[str, str]:
        return {name: title for one in tasks_of(self.task).values() for name, title in titles_of(one).items()}

    def notes(self, initial: TrainedModel) -> list[str]:
        lines = overridden_settings(self.settings.architecture, self.request.typed_keys, initial)
        return lines + other_reading(self.task.setting.model, initial)

    def frozen_contents(self) -> dict[str, str]:
        each = tasks_of(self.task).items()
        return {f"{kind}/{name}": digest for kind, one in each for name, digest in frozen_contents(one).items()}

    def record(self, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any], str]:
        """See ``Prepared``. A private run records hashes and no command."""
        used, identity, init = used_keys(config, self.inputs), self.identity(), self.request.init
        if not self.settings.private:
            return used, identity, self.request.command
        return private_config(used), private_config(identity) | {"init": redact(init)}, ""

    def identity(self) -> dict[str, Any]:
        """Return what a resumed run may not change, of the recipe and of the request."""
        identity = _with_frozen(self.settings.identity(), self.task) | {"init": self.request.init}
        return identity | ({"init_optimizer": "kept"} if self.request.init_optimizer == "kept" else {})

    def check_inputs(self, note: Note) -> None:
        if not self.bound:
            check_vocabularies(self.task, self.inputs.source_tokenizer, self.settings.vocab.added)
        self.inputs.check()
        if not (self.bound or self.settings.corpus.path):
            columns = {column.name: column for column in find_columns(self.settings.corpus.columns)}
            for task in tasks_of(self.task).values():
                task.check_columns(columns)
        if self.request.init_optimizer == "kept" and not self.bound:
            rule, name = self.experiment.optimizer, self.settings.identity()["optimizer"]["name"]
            model, tokenizer = self.task.setting.model, self.inputs.source_tokenizer
            self._moments = read_moments(self.initial, self.task, model, rule, name, tokenizer)
            note(f"the moments of the optimizer of {self.request.init} are kept")

    def open(self, known: Opened | None, note: Note) -> Opened:
        tokenizer, corpus = self.inputs.open(note)
        task, experiment = self.with_text(tokenizer, corpus)
        text = [part.split("train") for name, part in corpus.corpora.items() if corpus.shares[name]]
        sizes = {key: sum(getattr(split, f"num_{key}") for split in text) for key in ("documents", "tokens")}
        return Opened(task, experiment, tokenizer, task.setting.model, corpus.fingerprint, sizes, corpus)

    def facts(self, opened: Opened) -> dict[str, Any]:
        task: Any = opened.task
        model, every = opened.model, [part.name for part in task.parts]
        parts = [name for name in every if name != distillation.PROJECTION]
        phases, writes = self.experiment.phases.phases, self._writes
        module = self.settings.objective_of(phases[-1]).module  # its name may be a user's file that imports the class
        replaced = sorted({key for phase in phases for key in phase.model})
        models = {p.kind: {key: getattr(task.of(p.kind).setting.model, key) for key in replaced} for p in phases}
        beside = {part.name: config_facts(part.config) for part in task.parts if isinstance(part, EncoderPart)}
        has_class = not task.differs and has_pretraining_class(model, parts)
        facts = {
            "model": config_facts(model),
            **({"model_of_phases": models} if replaced else {}),
            **opened.tokenizer.case._asdict(),
            "vocabulary_sha256": opened.tokenizer.sha256,
            "corpus_fingerprint": opened.fingerprint,
            "head": {"architecture": of_pretraining(model, parts)} if has_class else None,
            **({"differs": task.differs} if task.differs else {}),
            **({"asks": QUERIES} if QUERIES in task.of(phases[-1].kind).derived else {}),
            "objective": {"name": catalogue.name_of(module.__name__), **dataclasses.asdict(task.config)},
            **({"encoders": beside} if beside else {}),
            **({"writes": writes} if writes else {}),
            # the heads of other phases, and what only a teacher needed, are left out of the model
            **({"parts": parts} if isinstance(task, SeveralObjectives) or parts != every else {}),
        }
        return _with_frozen(with_contents(facts), task)

    def write_baselines(self, opened: Opened, note: Note) -> None:
        workdir = self.request.workdir
        folder = self.settings.corpus.path or files.as_path(workdir) / CORPUS
        task: Any = opened.task
        write_baselines(task, opened.experiment, workdir, opened.fingerprint, folder, note)

    def remarks(self, opened: Opened, reached: int) -> list[str]:
        """Return lines about the phases, about unusual settings of a new run, or that a run is done."""
        experiment = opened.experiment
        phases, num_steps = experiment.phases, experiment.phases.num_steps
        alone = phases.in_epochs and len(phases.phases) == 1
        lines = [phases.describe(experiment.evaluated_phase)] if alone else []
        if reached == num_steps:
            return [*lines, f"all {reached:,} steps are done already; --extend with more steps goes on"]
        of_schedules = [line for schedule, steps in experiment.schedules.values() for line in schedule.remarks(steps)]
        if reached:
            return lines
        return [*lines, *left_to_plain(self.task), *of_schedules, *experiment.checkpoints.remarks(num_steps)]

    def first_state(
        self, initial: TrainedModel, opened: Opened, facts: Mapping[str, Any], note: Note
    ) -> Callable[[TrainState], TrainState]:
        first = start_from(initial, opened.model, opened.tokenizer, note)
        return first if self._moments is None else with_moments(first, self._moments)

    def finish(
        self, opened: Opened, facts: Mapping[str, Any], observer: Observer, metrics: dict[str, float]
    ) -> dict[str, float]:
        assert opened.corpus
        finish(self.settings, opened.model, facts, opened.corpus, observer)
        return metrics


def first_model(settings: PretrainingSettings, initial: TrainedModel | None, pieces: int | None = None) -> ModelConfig:
    """Return the architecture of a run before there is text, with the size of vocabulary that is to be expected.

    ``pieces`` is this size if it is known.

    Raises ``UserError`` if the recipe has no architecture and there is no model to start from.
    """
    if initial is None and not settings.model:
        raise UserError(
            "config.model is empty, because this recipe goes on from a model and has its architecture; give "
            "--init=DIR, a Hugging Face directory or the workdir of a run"
        )
    vocab = settings.vocab
    size = vocab.with_added(initial.tokenizer).size if initial else vocab.size + len(vocab.added)
    return with_memory_of_recipe(choose_model(settings.architecture, pieces or size, initial), settings.architecture)


def _with_frozen(tree: dict[str, Any], task: Task) -> dict[str, Any]:
    """Return the ``tree`` of a recipe in which frozen models are named by their content, wherever they lie.

    The content stands in place of the path. Other frozen arrays are in an entry "frozen", by the first kind of batch.
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
