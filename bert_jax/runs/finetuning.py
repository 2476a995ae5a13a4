"""Fine-tunes a model on labelled examples, and writes its predictions and a report.

A run that was interrupted resumes if the same call is made again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

import jax

from bert_jax import catalogue, configuration
from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.cluster import distributed
from bert_jax.configuration import changed, old_defaults
from bert_jax.corpora.prepare import VocabularyConfig
from bert_jax.errors import UserError
from bert_jax.examples.columns import Roles
from bert_jax.examples.labels import described
from bert_jax.examples.load import DataConfig, load
from bert_jax.interchange.architectures import of_facts
from bert_jax.interchange.family import families
from bert_jax.interchange.initial import continued_seed, find_initial, frozen_parts, start_from
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import recorded as recorded_model
from bert_jax.program import program
from bert_jax.records import Example
from bert_jax.reporting import run_record
from bert_jax.reporting.loggers.base import check_loggers
from bert_jax.reporting.observer import Observer, observe
from bert_jax.reporting.profiled_steps import ProfiledSteps, with_profiled
from bert_jax.rows.encoded import ExampleRows
from bert_jax.rows.loader import LoaderConfig
from bert_jax.rows.phases import Phase, Phases, steps_per_epoch
from bert_jax.runs.details import write_details
from bert_jax.runs.finishing import BETTER_START, export_newest, report_at_the_end
from bert_jax.runs.inputs import find_vocabulary, keep_vocabulary
from bert_jax.runs.model_choice import check_kernel, choose_model, old_model, what_gives_way, with_classifier_dropout
from bert_jax.runs.own_code import keep_copies, with_contents
from bert_jax.runs.prediction import Predictor, trial, write_predictions
from bert_jax.storage import files
from bert_jax.tasks.base import KIND, ExampleTask, Setting
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.loop import Experiment, TrainingConfig, train_and_evaluate
from bert_jax.training.memory import check_fits
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import OptimizerConfig
from bert_jax.training.schedules import ScheduleConfig
from bert_jax.training.selection import SelectionConfig

Note = Callable[[str], None]
FREE_DATA_FIELDS = ("overlap",)
FREE_MODEL_FIELDS = ("attention_kernel",)
MOST_EPOCHS = 1_000_000  # keeps the number of steps finite


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The keys of ``config.train``.

    Devlin et al. 2019, appendix A.3: batches of 16 or 32, learning rates of 5e-5, 3e-5 or 2e-5, 2 to 4 epochs. The
    warm-up is the same as in google-research/bert.
    """

    learning_rate: float = 2e-5  # the rate at the end of the warm-up
    num_epochs: float = 3.0  # times that each training row is seen
    batch_size: int = 32  # rows of a step
    max_length: int = 128  # tokens of a row; longer texts are cut or become windows, by the task
    warmup_fraction: float = 0.1  # warm-up steps / all steps
    # how the rate falls after the warm-up
    schedule: Literal["linear_from_zero", "linear", "cosine"] = "linear_from_zero"
    evaluations_per_epoch: int = 1  # evaluations on dev, each with a save
    logs_per_evaluation: int = 10  # lines of metrics between two evaluations
    buckets: Literal["none", "lengths"] = "lengths"  # "lengths": rows of like length share a batch

    def __post_init__(self) -> None:
        configuration.check_fields(
            self, "config.train", "more than 0 is needed", "learning_rate", sound=lambda v: v > 0
        )
        epochs = f"more than 0 and at most {MOST_EPOCHS:,} is allowed"
        configuration.check_fields(self, "config.train", epochs, "num_epochs", sound=lambda v: 0 < v <= MOST_EPOCHS)
        hint = "at least 8 is needed: the special tokens of a pair are three"
        configuration.check_fields(self, "config.train", hint, "max_length", sound=lambda v: v >= 8)
        whole = ("batch_size", "evaluations_per_epoch", "logs_per_evaluation")
        configuration.check_fields(self, "config.train", "at least 1 is needed", *whole, sound=lambda v: v >= 1)
        share = "from 0 to below 1 is allowed"
        configuration.check_fields(self, "config.train", share, "warmup_fraction", sound=lambda v: 0 <= v < 1)


@dataclasses.dataclass(frozen=True)
class FinetuningOptimizerConfig(OptimizerConfig):
    """The keys of ``config.optimizer`` in fine-tuning, where Adam corrects its bias by default.

    Without this correction, fine-tuning on small data fails often and varies more from seed to seed (Zhang et al. 2021,
    arXiv 2006.05987, section 4).
    """

    # all other keys are as in pretraining
    bias_correction: Literal["none", "standard"] = changed("standard", before="none")


@dataclasses.dataclass(frozen=True)
class FinetuningSettings:
    """A fine-tuning recipe as typed values: each config key is a field of this class or of a class that it contains."""

    task: Mapping[str, Any]  # the task's name and its options
    data: DataConfig
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # dropout; without --init also size
    train: TrainConfig = TrainConfig()
    seed: int = 0  # of new parameters, the order of rows and dropout
    vocab: VocabularyConfig = VocabularyConfig()  # used only without --init
    weights: Literal["pretrained", "fresh"] = "pretrained"  # "fresh": --init gives no weights
    frozen: tuple[str, ...] = ()  # parts of the model that are not trained: encoder, pooler
    bilstm_layers: int = 0  # layers of a BiLSTM between encoder and head, as in the paper's ablation
    optimizer: FinetuningOptimizerConfig = FinetuningOptimizerConfig()
    selection: SelectionConfig = SelectionConfig()  # if its metric is "", the task's main metric is used
    mesh: MeshConfig = MeshConfig()
    loader: LoaderConfig = LoaderConfig()
    micro_batches: int = 1  # gradient accumulation: the parts in which a batch is computed
    loggers: tuple[str, ...] = ("tensorboard",)  # where metrics go besides metrics.jsonl: tensorboard, wandb, mlflow
    export: bool = True  # write a Hugging Face directory at the end (impossible with a BiLSTM)

    def __post_init__(self) -> None:
        configuration.check_fields(self, "config", "0 or more is needed", "bilstm_layers", sound=lambda v: v >= 0)

    def identity(self) -> dict[str, Any]:
        """Return the settings that a resumed run may not change; it may change all others."""
        tree: dict[str, Any] = dataclasses.asdict(self)
        for free in ("mesh", "loader", "micro_batches", "loggers", "export"):
            del tree[free]
        tree["data"] = {name: value for name, value in tree["data"].items() if name not in FREE_DATA_FIELDS}
        tree["model"] = {name: value for name, value in tree["model"].items() if name not in FREE_MODEL_FIELDS}
        del tree["vocab"]["path"]
        return with_contents(tree)


@dataclasses.dataclass(frozen=True)
class FinetuningRequest:
    """The values that the command line adds to a recipe."""

    workdir: str
    data: str  # the folder to which the paths in config.data.splits are relative
    command: str = ""
    init: str | None = None  # a Hugging Face directory or WORKDIR[@step]; if None, weights are random
    typed: tuple[str, ...] = ()  # the keys of the config that were given on the command line
    profiled: ProfiledSteps | None = None


def finetune(config: Mapping[str, Any], request: FinetuningRequest) -> dict[str, float]:
    """Run a recipe to its end in ``request.workdir``, starting from the last saved step if there is one.

    Returns:
      The metrics of the best evaluation. Only the first process of a job returns them; all others return {}.

    Raises:
      UserError: the recipe, the examples, the model to start from or the machine do not fit together.
    """
    settings, module, task_config = checked(
        run_record.as_begun(request.workdir, config, FinetuningSettings, bool(saved_steps(request.workdir)))
    )
    absent = {"model": old_model(settings.model), "task": old_defaults(module.Config), "data": old_defaults(DataConfig)}
    workdir = request.workdir
    with run_record.only_writer(workdir):
        saved = distributed.first_says("the saved steps", saved_steps(workdir))
        initial = find_initial(request.init, workdir, resumes=bool(saved))
        if initial is None and settings.weights == "pretrained" and settings.frozen:
            raise UserError("config.frozen holds parts of a pretrained model; give --init=DIR, or set it to ()")
        notes = what_gives_way(settings.model, request.typed, initial) if initial and not saved else []
        splits = load(settings.data, request.data, module.Task.roles, notes.append)
        check_splits(splits)
        train = next(examples for name, examples in splits.items() if name.startswith("train"))
        labels = module.Task.labels(task_config, all_to_train_on(settings.data, request.data, module.Task.roles, train))
        identity = settings.identity() | {"init": request.init}
        meant = old_defaults(FinetuningSettings) | absent
        run = run_record.described(workdir, config, identity, request.command, bound=bool(saved), absent=meant)
        given = initial if settings.weights == "pretrained" else None
        task_config = with_classifier_dropout(task_config, settings.model, given if module.Task.exported else None)
        seed, parent = continued_seed(settings.seed, given, "fine-tuning")
        settings = dataclasses.replace(settings, seed=seed)
        kept = workdir if saved else None
        tokenizer = find_vocabulary(settings.vocab, initial, kept, train, module.Task.roles, notes.append)
        model = choose_model(settings.model, tokenizer.size, initial)
        trained_on = {name: examples for name, examples in splits.items() if not name.startswith("test")}
        task = module.Task(task_config, setting(settings, trained_on, tokenizer, model, labels))
        task.check(splits)
        for name in () if saved else [name for name in splits if name.startswith("test")]:  # to find their errors early
            module.Task(task_config, setting(settings, {name: splits[name]}, tokenizer, model, labels))
        experiment = dataclasses.replace(make_experiment(settings, task), profiled=request.profiled)
        run = with_profiled(request.profiled, run, experiment.phases.num_steps, max(saved, default=0))
        experiment.check()
        check_kernel(model, experiment.make_mesh(), [task.batch_specs[KIND]])
        check_fits(
            model.num_parameters, {"config.train.batch_size": (settings.train.batch_size, task.batch_specs[KIND])}
        )
        check_metric(settings.selection.metric, task, experiment)
        jax.eval_shape(task.init, jax.random.key(0))  # raises for options that the model cannot be built from
        distributed.wait("the vocabulary", tokenizer.sha256)
        distributed.wait("the examples", fingerprint(splits))
        if not saved and distributed.is_first():
            keep_vocabulary(tokenizer, workdir)
        observer = observe(workdir, run, experiment.phases.num_steps, settings.loggers)
        with observer.to_the_end():
            for line in [*notes, *task.notes, *describe(task, splits, experiment)]:
                observer.note(line)
            facts = {
                "model": recorded_model(model),
                "lowercase": tokenizer.lowercase,
                "vocabulary_sha256": tokenizer.sha256,
                "corpus_fingerprint": fingerprint(splits),
                "task": {"name": settings.task["name"], **dataclasses.asdict(task_config)},
                "labels": list(labels),
                "max_length": settings.train.max_length,
                "bilstm_layers": settings.bilstm_layers,
                "data": dataclasses.asdict(settings.data),
                **parent,
            }
            if distributed.is_first():
                keep_copies(workdir, run, facts)
                run = run_record.settle(workdir, run, facts, absent)
                files.write_text(files.as_path(workdir) / "baselines.json", json.dumps(task.baselines(KIND, 0)))
            head = of_facts(facts) if module.Task.exported and model.encoder in families() else None
            start = None
            if given and not saved:
                start = start_from(given, model, tokenizer, "fresh", observer.note, head=head)
            facts = facts | {"run": run}
            frozen = frozen_parts(settings.frozen, given, workdir, facts, bool(saved))
            train_and_evaluate(task, experiment, workdir, observer, facts, start, frozen)
            if not distributed.is_first():
                return {}
            return finish(settings, request, splits, observer, experiment.selection.metric)


def checked(config: Mapping[str, Any]) -> tuple[FinetuningSettings, ModuleType, Any]:
    """Return a recipe's settings, its task's module, and its task's config. Raises ``UserError`` for a wrong value."""
    if "objective" in config:
        raise UserError(
            "this recipe is one for pretraining (it has config.objective); run it with bert-jax pretrain, or choose "
            "one of configs/finetune"
        )
    settings = configuration.build(FinetuningSettings, config, "config")
    check_loggers(settings.loggers)
    module = catalogue.find("tasks", settings.task.get("name", ""), having="Task")
    own = {name: value for name, value in settings.task.items() if name != "name"}
    if module.Task.whole_batches and settings.micro_batches > 1:
        raise UserError(
            f"config.micro_batches is {settings.micro_batches}; only 1 is allowed where the rows of a batch are each "
            "other's negatives. Lower config.train.batch_size, or set config.model.remat to 'full'"
        )
    return settings, module, configuration.build(module.Config, own, "config.task", also=("name",))


def all_to_train_on(config: DataConfig, folder: str, roles: Roles, chosen: tuple[Example, ...]) -> tuple[Example, ...]:
    """Return all examples to train on, whatever ``config.data.train_fraction`` is.

    The label names are taken from all examples, because ``chosen``, the fraction to train on, may lack a rare label.
    """
    if config.train_fraction == 1.0:
        return chosen
    splits = load(dataclasses.replace(config, train_fraction=1.0), folder, roles, lambda _: None)
    return next(examples for name, examples in splits.items() if name.startswith("train"))


def check_splits(splits: Mapping[str, Sequence[Example]]) -> None:
    """Raise ``UserError`` unless there are exactly one split to train on and at least one to evaluate on."""
    train = [name for name in splits if name.startswith("train")]
    if len(train) != 1 or not any(name.startswith("dev") for name in splits):
        raise UserError(
            f"the splits are {', '.join(splits) or 'none'}; needed are one train split, and one dev split or "
            "config.data.dev_fraction"
        )


def setting(
    settings: FinetuningSettings,
    splits: Mapping[str, tuple[Example, ...]],
    tokenizer: Tokenizer,
    model: ModelConfig,
    labels: tuple[str, ...],
) -> Setting:
    """Return the ``Setting`` for the task, which holds all arguments of the task except the task's config."""
    train = settings.train
    model.check_lengths({"config.train.max_length": train.max_length})
    return Setting(
        splits,
        tokenizer,
        model,
        labels,
        train.max_length,
        train.batch_size,
        settings.seed,
        train.buckets,
        settings.frozen,
        settings.bilstm_layers,
    )


def make_experiment(settings: FinetuningSettings, task: ExampleTask) -> Experiment:
    """Return the experiment settings of the run.

    The number of steps follows from the number of epochs. The settings also say how often the run evaluates and saves,
    and how the best checkpoint is chosen.
    """
    train = settings.train
    source = task.source("train", KIND, 0)
    assert isinstance(source, ExampleRows)
    per_epoch = steps_per_epoch(source.rows_per_epoch, source.buckets, train.batch_size)
    num_steps = max(1, round(train.num_epochs * per_epoch))
    every = max(1, -(-num_steps // max(1, round(train.num_epochs * train.evaluations_per_epoch))))
    phase = Phase(num_steps, train.batch_size, task.lengths[KIND], KIND)
    schedule = ScheduleConfig(train.schedule, train.learning_rate, round(train.warmup_fraction * num_steps))
    metric = settings.selection.metric or task.main_metric
    return Experiment(
        seed=settings.seed,
        phases=Phases((phase,)),
        optimizer=settings.optimizer,
        schedule=schedule,
        mesh=settings.mesh,
        training=TrainingConfig(
            log_every_steps=max(1, every // train.logs_per_evaluation),
            eval_every_steps=every,
            eval_rows=2**31,
            micro_batches=settings.micro_batches,
            loggers=settings.loggers,
        ),
        checkpoints=CheckpointConfig(every_steps=every, keep=1),
        loader=settings.loader,
        selection=dataclasses.replace(settings.selection, metric=metric),
        batch_key="config.train.batch_size",
    )


def check_metric(metric: str, task: ExampleTask, experiment: Experiment) -> None:
    """Raise ``UserError`` if no evaluation reports ``metric``; "" is allowed. This does not run the model."""
    if not metric:
        return
    evaluation = Evaluation(task, experiment.make_mesh(), experiment.evaluated_phase, experiment.training.eval_rows)
    if metric not in (known := evaluation.metric_names()):
        raise UserError(f"config.selection.metric is {metric!r}; {configuration.nearest(metric, known)}")


def fingerprint(splits: Mapping[str, Sequence[Example]]) -> str:
    """Return a hash of the examples of all splits, which depends on their order."""
    digest = hashlib.sha256()
    for name, examples in splits.items():
        digest.update(f"{name} {len(examples)}\n".encode())
        for example in examples:
            digest.update(json.dumps(example, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def describe(task: ExampleTask, splits: Mapping[str, Sequence[Example]], experiment: Experiment) -> list[str]:
    """Return lines that tell the user which model is trained and on which examples."""
    sizes = ", ".join(f"{name} {len(examples):,}" for name, examples in splits.items())
    labels = f"; {described(task.setting.labels)}" if task.setting.labels else ""
    phase, lengths = experiment.phases.phases[0], ", ".join(map(str, task.lengths.values()))
    return [
        f"examples: {sizes}{labels}",
        f"{phase.num_steps:,} steps of {phase.batch_size} rows, padded to {lengths}; an evaluation every "
        f"{experiment.training.eval_every_steps:,}",
    ]


def finish(
    settings: FinetuningSettings,
    request: FinetuningRequest,
    splits: Mapping[str, tuple[Example, ...]],
    observer: Observer,
    metric: str,
) -> dict[str, float]:
    """Write the report, the export, and the predictions of the best checkpoint, which was chosen by ``metric``.

    Returns the metrics of the first dev split.
    """
    workdir = files.as_path(request.workdir)
    with observer.shown("reporting"):
        predictor = Predictor.load(request.workdir)
        results: dict[str, Any] = {"best_step": predictor.step, "metric": metric, "metrics": {}}
        predictions: dict[str, Any] = {}
        for name, examples in splits.items():
            if not name.startswith("train"):
                found = predictor.predict(examples, name, progress=observer.evaluated)
                results["metrics"][name], predictions[name] = found
                write_predictions(workdir / f"predictions_{name}.jsonl", predictions[name])
        files.write_text(workdir / "results.json", json.dumps(results, indent=1))
        write_details(request.workdir, predictor, splits, predictions, results)
    plain = predictor.task.exported and not settings.bilstm_layers and not catalogue.is_own(settings.task["name"])
    trained = predictor.trained.config
    exports = settings.export and plain and not trained.causal and trained.encoder in families()
    model = f", model {export_newest(request.workdir, observer)}" if exports else ""
    report = report_at_the_end(request.workdir, observer, BETTER_START, predictor.step)
    observer.note(
        f"done, best by {metric} at step {predictor.step:,}: report {report}{model}, predictions in {workdir}\n"
        f"next: {program()} {trial(predictor, request.workdir)}"
    )
    return results["metrics"][next(name for name in splits if name.startswith("dev"))]  # type: ignore[no-any-return]
