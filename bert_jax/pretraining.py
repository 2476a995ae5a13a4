"""One command, from nothing to a model: vocabulary, corpus, training, examples, report, export.

Whatever is there already is kept; whatever is missing is made. The same call resumes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from bert_jax import catalogue, configuration, files
from bert_jax.corpora.prepare import CorpusConfig, VocabularyConfig, prepare_corpus, prepare_vocabulary
from bert_jax.corpora.store import Corpus
from bert_jax.interchange.initial import Initial, load_initial, start_from
from bert_jax.interchange.workdir import export_workdir, load_trained
from bert_jax.models.config import ModelConfig
from bert_jax.models.sizes import SIZES
from bert_jax.objectives.fill_mask import as_record, as_table, fill_mask
from bert_jax.rows.loader import LoaderConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.task import Task
from bert_jax.text.wordpiece import WordPiece
from bert_jax.training import run as runs
from bert_jax.training.checkpoints import CheckpointConfig, saved_steps
from bert_jax.training.loop import Experiment, TrainingConfig, train_and_evaluate
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.observer import Observer
from bert_jax.training.optimizers import OptimizerConfig
from bert_jax.training.report import write_report
from bert_jax.training.schedules import ScheduleConfig

Note = Callable[[str], None]

# Fields of config.model that change how fast it runs, not what it learns.
FREE_MODEL_FIELDS = ("remat",)
# Fields of config.model that a model to start from leaves open; the rest is its architecture.
OPEN_MODEL_FIELDS = ("dropout_rate", "attention_dropout_rate", "dtype", "layers", "remat")


@dataclasses.dataclass(frozen=True)
class Settings:
    """A recipe, typed: every key of the config is a field of this class or of the classes it names."""

    objective: Mapping[str, Any]  # name, and what that objective takes
    model: Mapping[str, Any]  # size, and fields of ModelConfig that differ from it
    phases: Mapping[str, Any]  # name -> num_steps, batch_size, max_length, masking; run in the order of their names
    seed: int = 0
    vocab: VocabularyConfig = VocabularyConfig()
    corpus: CorpusConfig = CorpusConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    mesh: MeshConfig = MeshConfig()
    training: TrainingConfig = TrainingConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    loader: LoaderConfig = LoaderConfig()
    examples: tuple[str, ...] = ()  # texts with [MASK] that the finished model fills
    export: bool = True  # write a Hugging Face directory at the end

    def experiment(self) -> Experiment:
        phases = tuple(
            configuration.build(Phase, {**values, "kind": name}, f"config.phases.{name}")
            for name, values in sorted(self.phases.items())
        )
        return Experiment(
            self.seed,
            Phases(phases),
            self.optimizer,
            self.schedule,
            self.mesh,
            self.training,
            self.checkpoints,
            self.loader,
        )

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same run. The rest is free, paths too: content hashes stand for them."""
        return {
            "seed": self.seed,
            "vocab": _without(dataclasses.asdict(self.vocab), "path"),
            "corpus": _without(dataclasses.asdict(self.corpus), "path", "num_workers"),
            "objective": dict(self.objective),
            "model": _without(dict(self.model), *FREE_MODEL_FIELDS),
            "phases": {name: dict(values) for name, values in self.phases.items()},
            "optimizer": dataclasses.asdict(self.optimizer),
            "schedule": dataclasses.asdict(self.schedule),
        }


def _without(mapping: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in names}


def model_config(settings: Settings, vocabulary_size: int, initial: Initial | None) -> ModelConfig:
    """The architecture: that of the model to start from, else ``size`` with the overrides of ``config.model``."""
    overrides = _without(dict(settings.model), "size")
    if initial is not None:
        chosen = {name: overrides[name] for name in OPEN_MODEL_FIELDS if name in overrides}
        return dataclasses.replace(initial.model, **chosen, vocab_size=vocabulary_size)
    size = settings.model.get("size")
    fields = dict(configuration.choose("model size", size, SIZES)) if size else {}
    return configuration.build(ModelConfig, {"vocab_size": vocabulary_size} | fields | overrides, "config.model")


@dataclasses.dataclass(frozen=True)
class Request:
    """What the command line adds to a recipe."""

    workdir: str
    command: str = ""
    init: str | None = None  # a Hugging Face directory, or WORKDIR[@step]
    init_optimizer: Literal["fresh", "kept"] = "fresh"  # kept: the moments of the run to start from
    vocab: str | None = None  # replaces config.vocab.path
    extend: bool = False


def pretrain(config: Mapping[str, Any], request: Request) -> dict[str, float]:
    """Run a recipe to its end in ``request.workdir``, from wherever it stands.

    Returns:
      The last evaluation's metrics.

    Raises:
      UserError: anything in the recipe, the workdir, the texts or the machine that does not fit.
    """
    settings = configuration.build(Settings, config, "config")
    experiment = settings.experiment()
    experiment.check()  # before anything slow starts
    objective_room = catalogue.find("objectives", settings.objective.get("name", ""))
    objective_config = configuration.build(
        objective_room.Config, _without(dict(settings.objective), "name"), "config.objective"
    )
    kinds = {phase.kind: phase.max_length for phase in experiment.phases.phases}
    masking = {phase.kind: phase.masking for phase in experiment.phases.phases}
    objective_room.batch_specs(objective_config, kinds, masking)  # says what is wrong with them
    initial = load_initial(request.init) if request.init else None
    model_config(settings, settings.vocab.size, initial).check_lengths(kinds)
    if request.vocab:
        settings = dataclasses.replace(settings, vocab=dataclasses.replace(settings.vocab, path=request.vocab))

    workdir = request.workdir
    with runs.only_writer(workdir):
        run = runs.open_run(
            workdir, config, settings.identity() | {"init": request.init}, request.command, request.extend
        )
        observer = Observer(workdir, run, experiment.phases.num_steps, experiment.training.loggers)
        with observer.to_the_end():
            fresh = not saved_steps(workdir)
            tokenizer = open_vocabulary(settings, config, workdir, initial, observer.note)
            corpus = open_corpus(settings, config, workdir, tokenizer, observer.note)
            model = model_config(settings, tokenizer.size, initial)
            task = objective_room.Objective(objective_config, corpus, tokenizer, model, kinds, settings.seed, masking)
            facts = {
                "model": dataclasses.asdict(model),
                "lowercase": tokenizer.lowercase,
                "vocabulary_sha256": tokenizer.sha256,
                "corpus_fingerprint": corpus.fingerprint,
            }
            run = runs.settle(workdir, run, facts)
            write_baselines(task, experiment, workdir, observer.note)
            start = (
                start_from(initial, model, tokenizer, request.init_optimizer, observer.note)
                if initial and fresh
                else None
            )
            result = train_and_evaluate(task, experiment, workdir, observer, facts | {"run": run}, start)
        finish(settings, request, observer.note)
    return result


def open_vocabulary(
    settings: Settings, config: Mapping[str, Any], workdir: str, initial: Initial | None, note: Note
) -> WordPiece:
    """``workdir/vocab.txt``, made first if it is not there: that of config.vocab.path, of the model to start from, or
    a learned one."""
    path = files.as_path(workdir) / "vocab.txt"
    lowercase = initial.tokenizer.lowercase if initial else settings.vocab.lowercase
    if not path.exists():
        if initial and not settings.vocab.path:
            initial.tokenizer.save(path)
        else:
            if not settings.vocab.path:
                note(f"learning a vocabulary of {settings.vocab.size:,} pieces from {settings.corpus.source}")
            prepare_vocabulary({**config, "vocab": dataclasses.asdict(settings.vocab)}, path)
    tokenizer = WordPiece.load(path, lowercase=lowercase)
    note(f"vocabulary: {tokenizer.size:,} pieces, {'uncased' if lowercase else 'cased'}")
    return tokenizer


def open_corpus(
    settings: Settings, config: Mapping[str, Any], workdir: str, tokenizer: WordPiece, note: Note
) -> Corpus:
    """The store at config.corpus.path, or ``workdir/corpus``, built first if it is not there."""
    path = settings.corpus.path or files.as_path(workdir) / "corpus"
    if not settings.corpus.path and not files.committed(path):
        note(f"reading {settings.corpus.source} and writing the tokenized corpus")
        vocab = dataclasses.replace(settings.vocab, path="", lowercase=tokenizer.lowercase)
        vocabulary = files.as_path(workdir) / "vocab.txt"
        prepare_corpus({**config, "vocab": dataclasses.asdict(vocab)}, vocabulary, path)
    corpus = Corpus(path)
    train, heldout = corpus.split("train"), corpus.split("heldout")
    note(
        f"corpus: {train.num_documents:,} documents, {train.num_tokens:,} tokens to train on; "
        f"{heldout.num_documents:,} documents, {heldout.num_tokens:,} tokens held out"
    )
    return corpus


def write_baselines(task: Task, experiment: Experiment, workdir: str, note: Note) -> None:
    """``baselines.json``: what the held-out figures are to be compared with."""
    path = files.as_path(workdir) / "baselines.json"
    if not path.exists():
        files.write_text(
            path, json.dumps(task.baselines(experiment.evaluated_phase.kind, experiment.training.eval_rows))
        )
    shown = [f"{name.replace('_', ' ')} {value:.3f}" for name, value in json.loads(path.read_text()).items()]
    note(f"to beat on the held-out rows: {', '.join(shown)}")


def finish(settings: Settings, request: Request, note: Note) -> None:
    """Examples, export and report of a run that has ended, and what to do next."""
    workdir = files.as_path(request.workdir)
    if settings.examples:
        trained = load_trained(request.workdir)
        filled = fill_mask(trained.params, trained.config, trained.tokenizer, settings.examples)
        files.write_text(workdir / "examples.json", json.dumps([as_record(f) for f in filled]))
        note("\n".join(as_table(f) for f in filled))
    if settings.export and not (workdir / "hugging_face" / "config.json").exists():
        note(export_workdir(request.workdir, workdir / "hugging_face"))
    example = settings.examples[0] if settings.examples else "The [MASK] of the story."
    note(
        f"done: report {write_report(request.workdir)}, model {workdir / 'hugging_face'}, "
        f"metrics {workdir / 'metrics.jsonl'}\n"
        f'next: bert-jax fill-mask --workdir={request.workdir} "{example}"'
    )
