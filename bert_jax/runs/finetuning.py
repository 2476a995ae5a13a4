"""A fine-tuning: what is checked before examples are read, what needs the examples, and what a finished run leaves."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax

from bert_jax.cluster import distributed
from bert_jax.errors import UserError
from bert_jax.examples.labels import label_note
from bert_jax.examples.load import load as load_examples
from bert_jax.examples.load import to_train_on
from bert_jax.examples.splits import train_split
from bert_jax.interchange.architectures import of_facts
from bert_jax.interchange.family import families
from bert_jax.interchange.initial import frozen_parts, start_from
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.losses import distillation
from bert_jax.losses.teacher import content
from bert_jax.metric_names import titles_of
from bert_jax.models.model import config_facts
from bert_jax.objectives.several import seed_of_member
from bert_jax.parts import catalogue, own_code
from bert_jax.program import Note
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.recipes.task_settings import TaskSettings, at_task, with_keys_of
from bert_jax.records import Example
from bert_jax.reporting.observer import Observer
from bert_jax.rows.phases import Phases
from bert_jax.runs import own_parts
from bert_jax.runs.cached_teacher import fill
from bert_jax.runs.checks import check_metrics, check_one_part, check_optimizer, check_steps_fit
from bert_jax.runs.finetuning_end import finish
from bert_jax.runs.inputs import describe_vocabulary, find_vocabulary, keep_vocabulary, overridden_vocabulary
from bert_jax.runs.model_choice import (
    check_kernel,
    choose_model,
    entity_notes,
    overridden_settings,
    pooling_notes,
    with_classifier_dropout,
    with_entities,
    with_pooling,
    with_vocabulary_size,
)
from bert_jax.runs.models_read import check_vocabulary, initial_of_teacher, teacher_in_run, teacher_of_finetuning
from bert_jax.runs.packed import check_packed_batch, check_packing
from bert_jax.runs.prepared import Opened, Prepared, Request
from bert_jax.runs.used_keys import with_vocabulary
from bert_jax.storage import files
from bert_jax.tasks import base as tasks
from bert_jax.tasks.base import KIND, PACKED, ExampleTask
from bert_jax.tasks.several import Member, SeveralTasks, each_task, shared_setting
from bert_jax.training.experiment import Experiment
from bert_jax.training.memory import check_fits
from bert_jax.training.state import TrainState

Splits: TypeAlias = Mapping[str, tuple[Example, ...]]  # name -> examples


class _ChosenTask(NamedTuple):
    """A task of a recipe: its keys, its class and its config."""

    settings: TaskSettings
    task: type[ExampleTask]
    config: Any


class Finetuning(Prepared):
    """A fine-tuning, of which everything is checked that needs no examples.

    Attributes:
      model: the architecture; without ``initial``, its size of vocabulary is known once the vocabulary is learned.
      tasks: the tasks of the recipe by name; the only task of a recipe is called "".
      task: the task with its examples, once ``check_inputs`` has read them.
    """

    purpose = "fine-tuning"
    settings: FinetuningSettings
    task: ExampleTask | SeveralTasks

    def __init__(
        self,
        settings: FinetuningSettings,
        initial: TrainedModel | None = None,
        devices: list[jax.Device] | None = None,
        read: Callable[..., TrainedModel] = load,
        request: Request | None = None,
        saved: Sequence[int] = (),
    ):
        """Check the recipe; see ``Prepared``. ``read`` reads the other models that it names, such as a teacher."""
        super().__init__(settings, initial, devices, request, saved)
        if initial is None and settings.weights == "pretrained" and settings.frozen:
            raise UserError("config.frozen holds parts of a pretrained model; give --init=DIR, or set it to ()")
        self.tasks = {name: self._choose(name, task) for name, task in settings.each.items()}
        if not settings.main_metric:
            raise UserError(
                "config.selection.metric is needed, because the main metrics of the tasks have no mean: "
                f"{', '.join(settings.main_metrics)}; name one of them"
            )
        self._check_micro_batches()
        size = initial.tokenizer.size if initial else settings.vocab.size
        self.model = choose_model(settings.architecture, size, initial)
        if (longest := settings.phase.max_length) > (most := self.model.max_length):
            raise UserError(
                f"config.phases.{KIND}.max_length is {longest}, and the model has {most} positions; give "
                f"--max_length={most}{'' if initial else ', or raise config.model.max_length'}"
            )
        self._teacher = teacher_of_finetuning(settings.teacher, initial, settings.vocab.path, read)
        if settings.packing == "packed":
            models = [self.model, *(teacher.config for teacher in self._teacher.values())]
            check_packing(settings, [chosen.task for chosen in self.tasks.values()], models)
        self.initial_of_teacher = initial_of_teacher(settings.teacher, self._teacher, self.model, initial)

    @property
    def initial_weights(self) -> TrainedModel | None:
        """The model of --init, if it gives weights and not its architecture alone."""
        return self.initial if self.settings.weights == "pretrained" else None

    def _choose(self, name: str, settings: TaskSettings) -> _ChosenTask:
        """Return a task, with what the model of --init says of its head filled in."""
        with at_task(name):
            task, config = settings.built
        initial = self.initial_weights
        config = with_classifier_dropout(config, self.settings.architecture, initial if task.exported_as else None)
        return _ChosenTask(settings, task, with_entities(with_pooling(config, name, initial), initial))

    def _check_micro_batches(self) -> None:
        """Raise ``UserError`` if a task computes something from a whole batch, and would be given a part of it."""
        for name, chosen in self.tasks.items():
            if chosen.task.whole_batches:
                where = f", as in config.tasks.{name}" if name else ""
                why = f"; only 1 is allowed where the rows of a batch are each other's negatives{where}"
                parts = self.experiment.micro_batches(self.settings.phase)
                check_one_part(self.settings.phase, parts, f"{why}. Lower config.phases.{KIND}.batch_size")

    # ---- With examples -------------------------------------------------------------------------------------------

    def load(self, folder: str, note: Callable[[str], None]) -> dict[str, Splits]:
        """Return the splits of each task, with all of train.

        Args:
          folder: the paths of ``config.data.splits`` are relative to it.
          note: called with lines about the examples.

        Raises ``UserError`` for the reasons of ``examples.load.load``, or if a task has no split to train or evaluate.
        """
        found: dict[str, Splits] = {}
        for name, one in self.tasks.items():
            notes: list[str] = []
            with at_task(name):
                found[name] = load_examples(one.settings.data, folder, one.task.roles, notes.append)
                train_split(found[name])
            for line in notes:
                note(f"{name}: {with_keys_of(name, line)}" if name else line)
        return found

    def with_examples(
        self, every: Mapping[str, Splits], workdir: str | None = None, note: Callable[[str], None] | None = None
    ) -> tuple[ExampleTask | SeveralTasks, Experiment]:
        """Return the task on the encoded examples, and the experiment, in which lengths given in epochs are steps.

        Args:
          every: the splits of each task, with all of train, whatever ``config.data.train_fraction`` is, because the
            task takes its labels from all.
          workdir: the folder with the run's vocabulary, if it has saved a step.
          note: called with a line if a learned vocabulary lacks characters that it should have.

        Raises:
          UserError: the examples do not fit the task, the model or the machine.
        """
        settings, phase = self.settings, self.settings.phase
        made = self._encode(every, workdir, note)
        task: ExampleTask | SeveralTasks = made.get("") or self._several(made)
        phase = dataclasses.replace(phase, max_length=max(one.lengths[KIND] for one in made.values()))
        selection = dataclasses.replace(settings.selection, metric=settings.selection.metric or task.main_metric)
        experiment = dataclasses.replace(self.experiment, phases=Phases((phase,)), selection=selection).in_steps(task)
        mesh = experiment.check()
        for name, one in each_task(task).items():
            spec, model = one.batch_specs[KIND], one.setting.model
            trained_on = [one.batch_specs[kind] for kind in (KIND, PACKED) if kind in one.batch_specs]
            with at_task(name):
                check_kernel(model, mesh, trained_on)
                if PACKED in one.batch_specs:
                    check_packed_batch(one, mesh, experiment.micro_batches(phase))
                check_fits(model.num_parameters, {f"config.phases.{KIND}.batch_size": (phase.batch_size, spec)})
                if settings.packing == "bucketed":
                    check_steps_fit(one, experiment)
                jax.eval_shape(one.init, jax.random.key(0))  # raises for options that the model cannot be built from
                if catalogue.is_own(catalogue.name_of(type(one).__module__)):
                    for of_kind in trained_on:
                        own_parts.check_terms(one, of_kind, dict)
        if settings.selection.metric != task.main_metric or settings.training.evaluations:
            check_metrics(settings.selection.metric, experiment, task, mesh)
        check_optimizer(task, experiment)
        return task, experiment

    def _several(self, made: Mapping[str, ExampleTask]) -> SeveralTasks:
        frozen = self.settings.frozen
        members = {}
        for name, task in made.items():
            with at_task(name):
                keys = self.tasks[name].settings
                members[name] = Member(name, task, keys.weight, keys.frozen, frozen)
        return SeveralTasks(members, self.settings.mixing, self.settings.phase, frozen)

    def _encode(
        self, every: Mapping[str, Splits], workdir: str | None, note: Callable[[str], None] | None
    ) -> dict[str, ExampleTask]:
        settings, phase, seed = self.settings, self.settings.phase, self.experiment.seed
        splits = {
            name: to_train_on(one.settings.data, every[name], one.task.roles.together)
            for name, one in self.tasks.items()
        }
        read = [(splits[name][train_split(splits[name])], one.task.roles) for name, one in self.tasks.items()]
        tokenizer = find_vocabulary(settings.vocab, self.initial, workdir, read, note)
        model = with_vocabulary_size(self.model, settings.architecture, tokenizer.size, self.initial)
        check_vocabulary(self._teacher, tokenizer, distillation.WHERE, settings.vocab.added)
        made = {}
        for name, one in self.tasks.items():
            with at_task(name):
                setting = tasks.Setting(
                    splits=splits[name],
                    tokenizer=tokenizer,
                    model=model,
                    labels=one.task.labels(one.config, every[name][train_split(every[name])]),
                    max_length=phase.max_length,
                    batch_size=phase.batch_size,
                    seed=seed_of_member(seed, name),
                    packing=settings.packing,
                    frozen=settings.frozen,
                    bilstm_layers=settings.bilstm_layers,
                    teacher=teacher_in_run(settings.teacher, self._teacher, model, {KIND: phase.max_length}, name),
                )
                made[name] = one.task(one.config, setting)
        return made

    # ---- What a run asks for (``Prepared``) ------------------------------------------------------------------------

    def titles(self) -> dict[str, str]:
        every, main = titles_of(self.task), self.experiment.selection.metric
        return ({main: every[main]} if main in every else {}) | every

    def notes(self, initial: TrainedModel) -> list[str]:
        settings, typed = self.settings, self.request.typed_keys
        lines = overridden_settings(settings.architecture, typed, initial)
        lines += overridden_vocabulary(settings.vocab, typed, initial)
        configs = {name: one.config for name, one in self.tasks.items()}
        return lines + pooling_notes(configs, initial) + entity_notes(configs, initial)

    def frozen_contents(self) -> dict[str, str]:
        return {name: f"teacher@{content(one)}" for name, one in self._teacher.items()}

    def record(self, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any], str]:
        vocab, initial, request = self.settings.vocab, self.initial, self.request
        if not (initial or self.bound):
            vocab.load_tokenizer(typed=request.typed_keys)  # raises if a key contradicts its file
        identity = self.settings.identity() | {"init": request.init}
        if self._teacher:  # by its content, wherever it lies
            identity["teacher"]["init"] = self.frozen_contents()["init"]
        return with_vocabulary(config, vocab.path, initial.tokenizer if initial else None), identity, request.command

    def check_inputs(self, note: Note) -> Opened:
        """Return what the run trains on, after reading and encoding the examples; see ``Prepared``."""
        every = self.load(self.request.data, note)
        workdir = self.request.workdir if self.bound else None
        self.task, self.experiment = self.with_examples(every, workdir, note)
        shared, each = shared_setting(self.task), each_task(self.task)
        splits = {
            f"{name}/{split}" if name else split: examples
            for name, one in each.items()
            for split, examples in one.setting.splits.items()
        }
        fingerprint = _fingerprint(splits)
        distributed.agree("the vocabulary", shared.tokenizer.sha256)
        distributed.agree("the examples", fingerprint)
        trained_on = [one.setting.splits[name] for one in each.values() for name in one.setting.names("train")]
        sizes = {"examples": sum(map(len, trained_on))}
        return Opened(self.task, self.experiment, shared.tokenizer, shared.model, fingerprint, sizes)

    def open(self, known: Opened | None, note: Note) -> Opened:
        """Return what is ``known``, after keeping its vocabulary."""
        assert known
        if distributed.is_first() and not self.bound:
            keep_vocabulary(known.tokenizer, self.request.workdir)
        return known

    def facts(self, opened: Opened) -> dict[str, Any]:
        of_each = {name: self._facts_of(name, one) for name, one in each_task(self.task).items()}
        if isinstance(self.task, SeveralTasks):
            of_each = {name: {**of, "parts": _kept(self.task.members[name].parts)} for name, of in of_each.items()}
        return {
            "model": config_facts(opened.model),
            **opened.tokenizer.case._asdict(),
            "vocabulary_sha256": opened.tokenizer.sha256,
            "corpus_fingerprint": opened.fingerprint,
            **of_each.get("", {"tasks": of_each}),
        }

    def _facts_of(self, name: str, task: ExampleTask) -> dict[str, Any]:
        keys = self.settings.each[name]
        taught = task.lessons and task.lessons.parts  # a loaded model does not have the parts that a teacher needs
        return {
            "task": {"name": keys.task["name"], **dataclasses.asdict(task.config)},
            "labels": list(task.setting.labels),
            "max_length": self.settings.phase.max_length,
            "bilstm_layers": self.settings.bilstm_layers,
            "data": dataclasses.asdict(keys.data),
            "files": own_code.contents(type(task.config), vars(task.config), "config.task"),
            **({"parts": _kept(part.name for part in task.model.parts)} if taught else {}),
            **({"writes": [task.writes]} if task.writes else {}),
        }

    def fill(self, opened: Opened, note: Note) -> None:
        """Fill in the outputs of a teacher that are kept (``config.teacher.cached``)."""
        teacher = "".join(self.frozen_contents().values())
        fill(each_task(self.task), teacher, opened.fingerprint, self.request.workdir, note)

    def write_baselines(self, opened: Opened, note: Note) -> None:
        path = files.as_path(self.request.workdir) / "baselines.json"
        files.write_text(path, json.dumps(self.task.baselines(KIND, 0)))

    def remarks(self, opened: Opened, reached: int) -> list[str]:
        """Return lines that tell the user which examples are read and how long the run is."""
        task, experiment = self.task, opened.experiment
        phase, each = experiment.phases.phases[0], each_task(task)
        lines = [*task.notes, describe_vocabulary(opened.tokenizer)]
        for name, one in each.items():
            sizes = ", ".join(f"{split} {len(examples):,}" for split, examples in one.setting.splits.items())
            labels = f"; {with_keys_of(name, label_note(one.setting.labels))}" if one.setting.labels else ""
            lines.append(f"{name or 'examples'}: {sizes}{labels}")
        packed = self.settings.packing == "packed"
        lengths = sorted({n for one in each.values() for kind, n in one.lengths.items() if (kind == PACKED) == packed})
        rows = "examples, in packed rows of" if packed else "rows, padded to"
        every = f"an evaluation every {experiment.training.eval_every_steps:,}"
        lines.append(f"{phase.num_steps:,} steps of {phase.batch_size} {rows} {', '.join(map(str, lengths))}; {every}")
        if isinstance(task, SeveralTasks):
            lines.append(task.describe())
        return lines

    def first_state(
        self, initial: TrainedModel, opened: Opened, facts: Mapping[str, Any], note: Note
    ) -> Callable[[TrainState], TrainState]:
        """See ``Prepared``. Of several tasks, each keeps its head if ``initial`` has the task with the same labels."""
        head, others = None, list[str]()
        if isinstance(self.task, SeveralTasks):
            known, here = initial.facts.get("tasks") or {}, json.loads(json.dumps(facts["tasks"]))
            for name, one in self.task.members.items():
                same = all((known.get(name) or {}).get(key) == here[name][key] for key in ("task", "labels"))
                others += [] if same else [whole for part, whole in one.parts.items() if whole != part]
        elif self.task.exported_as and opened.model.encoder in families():
            head = of_facts(facts)
        return start_from(initial, opened.model, opened.tokenizer, note, head, others)

    def given_frozen(self, facts: Mapping[str, Any]) -> Callable[[Any], Any] | None:
        return frozen_parts(self.settings.frozen, self.initial_weights, self.request.workdir, facts, self.bound)

    def finish(
        self, opened: Opened, facts: Mapping[str, Any], observer: Observer, metrics: dict[str, float]
    ) -> dict[str, float]:
        """See ``Prepared``. The metrics that are returned are of the best evaluation."""
        return finish(self.settings, self.task, observer, opened.experiment.selection.metric)


def _kept(parts: Iterable[str]) -> list[str]:
    """Return the names of ``parts`` without the parts that only a teacher needed."""
    return sorted({*parts} - {distillation.PROJECTION, distillation.FROZEN})


def _fingerprint(splits: Splits) -> str:
    """Return a hash of the examples of all splits, which depends on their order."""
    digest = hashlib.sha256()
    for name, examples in splits.items():
        digest.update(f"{name} {len(examples)}\n".encode())
        for example in examples:
            digest.update(json.dumps(example, sort_keys=True, default=str).encode())
    return digest.hexdigest()
