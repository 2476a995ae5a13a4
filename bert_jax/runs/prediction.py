"""Predicts new examples with a fine-tuned model, and scores the predictions if the answers are known."""

from __future__ import annotations

import dataclasses
import json
import reprlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.examples.load import DataConfig, load, make_reader
from bert_jax.examples.reading import need, plain_name, text_lines
from bert_jax.examples.values import is_unicode
from bert_jax.interchange.loading import load as load_model
from bert_jax.interchange.loading import one_task
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.parts import catalogue, own_code
from bert_jax.program import Note
from bert_jax.recipes import recipes, trees
from bert_jax.records import Example
from bert_jax.rows.phases import Phase
from bert_jax.storage import files
from bert_jax.tasks.base import KIND, ExampleTask, Setting
from bert_jax.text.words import split_words
from bert_jax.training import mesh as meshes
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.mesh import MeshConfig

BATCH_SIZE = 32
_RAW_TEXT = "raw_text"  # a form of --input beside the formats of ``examples``: a text a line
TABLES = ("delimited", "jsonl")  # formats that the end of a file's name tells apart, as in the format ``table``
LINES = ("conll", "line_columns")  # formats of lines, which JSON is not
JSON = (".json", ".jsonl")
ENDINGS = (".csv", ".tsv", *JSON)
# The keys of config.data that say how a file is read
_READING = ("format", "options", "columns", "strip_prefix", "drop_labels", "bad_examples")
_TYPED = {"text", "pair", "question", "context"}  # roles that are a text each


def load_tuned(
    source: str, step: int | None = None, options: Mapping[str, Any] | None = None, task: str | None = None
) -> TrainedModel:
    """Return the fine-tuned model at ``source``, which takes the same values as ``load``.

    Args:
      options: keys of the task's config that are to differ from training, with their values.
      task: the task of a model of several; needed for such a model alone.

    Raises:
      UserError: there is no model, it was not fine-tuned, there is no such task, or an option does not exist.
    """
    model = load_model(source, step)
    if task is not None:
        model = one_task(model, task)
    elif tasks := model.facts.get("tasks"):
        raise UserError(
            f"{source} was trained on several tasks: {', '.join(tasks)}; say which one: --task={min(tasks)}"
        )
    if not model.facts.get("task"):
        raise UserError(f"{source} holds a pretrained model; fine-tune it first: bert-jax finetune --init={source}")
    model = dataclasses.replace(model, facts={**model.facts, "task": {**model.facts["task"], **(options or {})}})
    _task_of(model)
    return model


def typed_keys(overrides: Sequence[str], has_file: bool = True) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the task, and the overrides of ``config.data``, among ``--config.key=value`` overrides.

    Args:
      has_file: whether a file of examples is read, so that ``config.data`` counts.

    Raises:
      UserError: a key is no such key, or does not count.
    """
    options: dict[str, Any] = {}
    keys = []
    for override in overrides:
        key, _, value = override.partition("=")
        group, *rest = key.partition("config.")[2].split(".")
        if group == "task" and len(rest) == 1:
            options[rest[0]] = trees.literal(value)
        elif group == "data" and rest and rest[0] in _READING and has_file:
            keys.append(override)
        else:
            allowed = ", ".join(f"config.data.{name}" for name in _READING) if has_file else "config.data with a file"
            raise UserError(f"{key} changes nothing here; keys of the task (config.task.KEY) count, and {allowed}")
    return options, keys


def _task_of(model: TrainedModel) -> tuple[type[ExampleTask], Any]:
    """Return the task that a model was fine-tuned on, and the task's config."""
    keys = model.facts["task"]
    module = catalogue.find("tasks", keys["name"], having="Task")
    return module.Task, configuration.build(module.Config, keys, "task", also=("name",))


def _data_of(model: TrainedModel) -> Mapping[str, Any]:
    """Return the ``config.data`` of the run. For an imported model, return the settings of a plain table."""
    return model.facts.get("data") or {"format": "delimited", "options": {}, "columns": {}}


def make_task(model: TrainedModel, examples: Sequence[Example], name: str) -> ExampleTask:
    """Return the task of a model, with ``examples`` encoded as its only split, called ``name``."""
    task, config = _task_of(model)
    facts, batch_size = model.facts, BATCH_SIZE
    _check_files(facts.get("files") or {}, config)
    if task.whole_batches:  # the scores depend on the number of rows in a batch
        phases = facts.get("run", {}).get("phases") or {}
        batch_size = phases.get(KIND, {}).get("batch_size", BATCH_SIZE)
    setting = Setting(
        {name: tuple(examples)},
        model.tokenizer,
        model.config,
        tuple(facts.get("labels") or ()),
        facts.get("max_length") or model.config.max_length,
        batch_size,
        packing="none",
        bilstm_layers=facts.get("bilstm_layers", 0),
    )
    return task(config, setting)


def _check_files(recorded: Mapping[str, str], config: Any) -> None:
    """Raise ``UserError`` if a file that the task's ``config`` names is not as it was in training."""
    for name, content in own_code.contents(type(config), vars(config), "config.task").items():
        digests = [one.rpartition("@")[2] for one in (recorded.get(name, content), content)]
        if digests[0] != digests[1]:
            raise UserError(
                f"config.task.{name} is {getattr(config, name)!r}, whose sha256 begins with {digests[1]}; the model "
                f"was trained with {recorded[name]}: put that file back, or name it: --config.task.{name}=FILE"
            )


class Predicted(NamedTuple):
    """The metrics of a split, one record per example, and the standard errors of metrics (``ExampleTask.errors``)."""

    metrics: dict[str, float]
    records: list[dict[str, Any]]
    errors: dict[str, float]


def predict(
    model: TrainedModel,
    examples: Sequence[Example],
    note: Note = lambda line: None,
    progress: Callable[[int, int], None] = lambda done, rows: None,
) -> Predicted:
    """Return the metrics, and one record per example, in order; see ``predict_split``.

    ``note`` is called with lines about the examples, such as how many were cut.

    Raises:
      UserError: there are no examples, or the model does not know a label.
    """
    if not examples:
        raise UserError("there are no examples to predict; check the input")
    given = [example for example in examples if not _is_blank(example)]
    if len(given) < len(examples):
        note(f"{len(examples) - len(given):,} of {len(examples):,} lines are blank; their prediction is null")
    task = make_task(model, given, "predict")
    for line in task.notes:
        note(line)
    found = predict_split(model, task, "predict", progress, note)
    records = iter(found.records)
    every = [{**one, "prediction": None} if _is_blank(one) else next(records) for one in examples]
    return found._replace(records=every)


def _is_blank(example: Example) -> bool:
    """Return whether an example stands for a blank line of raw text."""
    return [*example] == ["id"]


def predict_split(
    model: TrainedModel,
    task: ExampleTask,
    name: str,
    progress: Callable[[int, int], None] = lambda done, rows: None,
    note: Note = lambda line: None,
) -> Predicted:
    """Return the metrics of a split of ``task``, one record per example, in order, and standard errors.

    Metrics and errors are {} if any answer is unknown. ``progress`` is called after every batch with the rows that are
    done and all rows; ``note`` with a line if the model's outputs for some rows are not finite numbers.
    """
    task = task.with_model(model.config)
    mesh = meshes.make_mesh(MeshConfig(), jax.local_devices())  # without the devices of other processes
    shards, batch_size = mesh.shape["data"], task.setting.batch_size if task.whole_batches else BATCH_SIZE
    phase = Phase(1, -(-batch_size // shards) * shards, task.lengths[KIND], KIND)
    params = jax.device_put(model.params, meshes.replicated(mesh))
    sums, outputs = Evaluation(task, mesh, phase, 2**31, progress=progress).read(name, params, {})
    finite = np.stack([np.isfinite(values.reshape(len(values), -1)).all(axis=1) for values in outputs.values()])
    if broken := np.count_nonzero(~finite.all(axis=0)):
        rows = f"{broken:,} of {finite.shape[1]:,} rows"
        note(f"the model's outputs for {rows} are not finite numbers; do not trust the predictions for them")
    metrics, errors = dict[str, float](), dict[str, float]()
    if task.has_answers(name):
        metrics = {k: v for k, v in task.summary(sums).items() if k != "tokens"} | task.finish(name, outputs)
        errors = _errors(task, name, outputs)
    return Predicted(metrics, task.predictions(name, outputs), errors)


def _errors(task: ExampleTask, name: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the standard errors of a split; {} if a user's class scores by a ``finish`` without ``errors``."""
    classes = type(task).__mro__
    errors, finish = (next(i for i, one in enumerate(classes) if of in vars(one)) for of in ("errors", "finish"))
    return task.errors(name, outputs) if errors <= finish else {}


def read_examples(
    model: TrainedModel, path: str, form: str | None, split: str, note: Note, keys: Sequence[str] = ()
) -> tuple[Example, ...]:
    """Return the examples of a file, read as the format ``form``, or as the run's own format if ``form`` is None.

    If ``form`` is None and the run read tables, the file may be JSON or separated values, by the end of its name; if
    the run read files with a word a line, the file may be JSON too. The form ``_RAW_TEXT`` is a text a line; if the
    model reads several, tabs separate them. The id of such an example is the number of its line; the example of a blank
    line has nothing else.

    Args:
      split: "dev" if every example needs an answer, "test" if no example needs an answer.
      keys: overrides of ``config.data``, such as ``--config.data.options.delimiter=;``.

    Raises:
      UserError: the file does not exist, has another format, or lacks a column.
    """
    data = {**_data_of(model), "splits": {split: path}, "dev_fraction": 0.0, "train_fraction": 1.0}
    data |= {"dev_ids": "", "split_column": "", "split_values": {}, "max_dev_rows": None, "max_test_rows": None}
    if form == _RAW_TEXT:
        if split == "dev":
            raise UserError("--format=raw_text has texts without answers; evaluate needs a file with answers")
        if keys:
            raise UserError(f"{keys[0].partition('=')[0]} changes nothing with --format=raw_text; leave it out")
        return _raw_text(model, path)
    if form and form != data["format"]:
        data |= {"format": form, "options": {}}
    if not form and data["format"] in TABLES and plain_name(path).lower().endswith(ENDINGS):
        data["format"] = "table"
    if not form and data["format"] in LINES and plain_name(path).lower().endswith(JSON):
        data |= {"format": "jsonl", "options": {}}
    data = recipes.changed({"task": {}, "data": data}, keys)["data"]
    config = configuration.build(DataConfig, data, "config.data")
    if not make_reader(config).named_splits:
        need(path)
    try:
        return load(config, "", _task_of(model)[0].roles, note)[split]
    except UserError as error:
        if split == "test" and form is None and path.endswith(".txt"):
            raise UserError(f"{error}. If the file has a text a line, add --format={_RAW_TEXT}") from error
        raise


def _raw_text(model: TrainedModel, path: str) -> tuple[Example, ...]:
    """Return an example for each line of a file, whose id is the number of the line."""
    pairs, lines = len(_typed_roles(model)) > 1, dict(text_lines(need(path)))
    full = {number: line for number, line in lines.items() if line.strip()}
    rows = {f"{path}:{number}": line.split("\t") if pairs else line for number, line in full.items()}
    examples = dict(zip(full, texts_as_examples(model, rows), strict=True))
    return tuple({**examples.get(number, {}), "id": str(number)} for number in lines) if full else ()


def texts_as_examples(model: TrainedModel, rows: Mapping[str, Any]) -> tuple[Example, ...]:
    """Return texts as examples.

    For a model that tags words, a text is split into words, and the example also has the ``text`` and the ``starts`` of
    its words.

    Args:
      rows: a name for messages, such as ``texts[0]`` -> the texts of an example: a string or, in the order of
        ``_typed_roles``, a tuple.

    Raises ``UserError`` for an empty text, a wrong number of texts, or a task that reads more than texts.
    """
    reads, examples = _typed_roles(model), []
    for number, (where, row) in enumerate(rows.items()):
        texts = [row] if isinstance(row, str) else row
        sound = isinstance(texts, list | tuple) and len(texts) == len(reads)
        if not sound or not all(isinstance(text, str) and text.strip() for text in texts):
            needed = f"{len(reads)} texts, {' and '.join(reads)}, are" if len(reads) > 1 else "a text is"
            raise UserError(f"{where} is {reprlib.repr(row)}; {needed} needed for each example of this model")
        if not is_unicode(texts):
            raise UserError(
                f"{where} is not UTF-8; convert it (such as with: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW)"
            )
        example: dict[str, Any] = {"id": str(number), **dict(zip(reads, texts, strict=True))}
        if reads == ["words"]:
            words = split_words(texts[0])
            example |= {"words": [w.text for w in words], "text": texts[0], "starts": [w.start for w in words]}
        examples.append(example)
    return tuple(examples)


def in_rows(model: TrainedModel, texts: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return typed texts as the rows of ``texts_as_examples``: as many for each example as the model reads."""
    size = len(_typed_roles(model))
    return {f"text {i + 1}": texts[i : i + size] for i in range(0, len(texts), size)}


def _typed_roles(model: TrainedModel) -> list[str]:
    """Return the roles that the model reads, in the order in which a user types them.

    Raises ``UserError`` if a role is not a text.
    """
    reads = list(_task_of(model)[0].roles.required)
    if "pair" in _data_of(model)["columns"] and "pair" not in reads:
        reads.append("pair")
    if reads != ["words"] and not {*reads} <= _TYPED:
        raise UserError(f"this model reads {', '.join(reads)}; give them in a file: --input=FILE")
    return reads


def trial(model: TrainedModel, workdir: str, task: str = "") -> str:
    """Return a verb with its flags to try the model: a search for vectors of texts, otherwise predictions.

    ``task``: the task of a model of several.
    """
    workdir = shlex.quote(workdir)
    if "pooling" in model.facts["task"]:  # the task learns vectors of texts
        return f'retrieve --workdir={workdir} --corpus=FILE --query="TEXT"'
    try:
        typed = " ".join(f'"{role.upper()}"' for role in _typed_roles(model)).replace('"WORDS"', '"TEXT"')
    except UserError:
        typed = "--input=FILE"
    trusts = " --trust_code" if any(catalogue.names_in([model.facts["task"], model.config.encoder])) else ""
    return f"predict --workdir={workdir}{f' --task={task}' if task else ''}{trusts} {typed}"


def write_predictions(path: Any, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line; the file appears whole or not at all."""
    files.write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
