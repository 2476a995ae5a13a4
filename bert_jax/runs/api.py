"""The functions of ``import bert_jax``, documented in bert_jax/README.md. Their names and arguments are stable.

An argument is named after the flag of the command that does the same, so a function has as many as its command has
flags. This module imports nothing that imports jax, so that a run can first choose which freed memory it keeps.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar

from absl import logging
from ml_collections import ConfigDict

from bert_jax.errors import UserError
from bert_jax.parts import catalogue, own_code
from bert_jax.program import say
from bert_jax.recipes import recipes

if TYPE_CHECKING:
    from bert_jax.interchange.trained_model import TrainedModel
    from bert_jax.reporting.curves import Curves
    from bert_jax.runs.training_batches import TrainingBatches

AnyPath: TypeAlias = str | os.PathLike[str]
Recipe: TypeAlias = AnyPath | Mapping[str, Any] | ConfigDict  # a name, a file, or a config tree
P = ParamSpec("P")
T = TypeVar("T")


def _quiet(function: Callable[P, T]) -> Callable[P, T]:
    """Keep what libraries log off the screen while ``function`` runs, as commands do: errors arrive as exceptions."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        before = logging.get_verbosity()
        logging.set_verbosity(logging.FATAL)
        try:
            return function(*args, **kwargs)
        finally:
            logging.set_verbosity(before)

    return run


@_quiet
def load(source: AnyPath, *, trust_code: bool = False) -> TrainedModel:
    """Return a trained model.

    Args:
      source: the workdir of a run (``WORKDIR@step`` for another step than the best or newest), a Hugging Face
        directory, ``hf://USER/NAME[@REVISION]``, or a directory with a TensorFlow checkpoint of google-research/bert.
      trust_code: run the users' own components of which the workdir has copies.

    Raises:
      UserError: there is no model, or it cannot be read.
    """
    from bert_jax.interchange import loading

    return loading.load(_trust(trust_code, _path("source", source)))


@_quiet
def batches(
    config: Recipe,
    workdir: AnyPath,
    *,
    overrides: Mapping[str, Any] | None = None,
    init: AnyPath | None = None,
    vocab: AnyPath | None = None,
    first_step: int = 0,
    trust_code: bool = False,
) -> TrainingBatches:
    """Return the batches that ``pretrain`` with the same arguments trains on, or has trained on, in their order.

    A vocabulary or corpus that is missing is made in ``workdir``, where ``pretrain`` finds it.

    Args:
      first_step: the step of the first batch, from 0.
      others: see ``pretrain``.

    Returns:
      An iterable of dicts of numpy arrays [B, ...], with the ``tokenizer`` and the ``task`` that reads them.

    Raises:
      UserError: the recipe, the workdir or the texts do not fit together, or the run does not have such a step.
    """
    from bert_jax.recipes.pretraining_settings import with_flags
    from bert_jax.runs.prepared import Request
    from bert_jax.runs.training_batches import training_batches

    request = Request(_path("workdir", workdir), init=_maybe_path("init", init))
    tree = with_flags(_tree(config, overrides, trust_code, request), _maybe_path("vocab", vocab), private=False)
    return training_batches(tree, request, first_step, say)


@_quiet
def pretrain(
    config: Recipe,
    workdir: AnyPath,
    *,
    overrides: Mapping[str, Any] | None = None,
    init: AnyPath | None = None,
    init_optimizer: Literal["fresh", "kept"] = "fresh",
    vocab: AnyPath | None = None,
    extend: bool = False,
    private: bool = False,
    trust_code: bool = False,
) -> dict[str, float]:
    """Pretrain a model in this process and return the metrics of the last evaluation, as ``bert-jax pretrain`` does.

    The same call resumes a run that was interrupted. Ctrl-C, or the stop button of a notebook, saves the step first.

    Args:
      config: a recipe: the name of one, such as "quickstart", a file (FILE.py[:argument] runs as code, FILE.json is
        only read), or a config tree. Paths of own components in a tree begin at the current folder.
      workdir: the run's folder: vocabulary, corpus, checkpoints, metrics, report, export.
      overrides: key -> value that replaces the recipe's, such as ``{"model.size": "tiny"}``.
      init: the model to start from: a Hugging Face directory, hf://USER/NAME, or WORKDIR[@step].
      init_optimizer: "kept": begin with the optimizer's moments of ``init``, a step of a run, too.
      vocab: a vocabulary file to use in place of ``config.vocab.path``.
      extend: resume with another number of steps.
      private: keep text and paths of the corpus out of logs, report, manifest and model card.
      trust_code: run the users' own components that the workdirs (by their copies) or a .json recipe name. Those that
        this call names itself run anyway.

    Raises:
      UserError: the recipe, the workdir, the texts or the machine do not fit together. The message is one line that
        says what was found, what is allowed and what to do. It is raised before anything slow starts.
    """
    _prepare_to_train()
    from bert_jax.recipes.pretraining_settings import with_flags
    from bert_jax.runs import run
    from bert_jax.runs.prepared import Request

    if init_optimizer not in ("fresh", "kept"):
        raise UserError(f"init_optimizer is {init_optimizer!r}; allowed: 'fresh', 'kept'")
    arguments = {"overrides": overrides, "init": init, "init_optimizer": init_optimizer, "vocab": vocab}
    request = Request(
        workdir=_path("workdir", workdir),
        command=_call("pretrain", config, workdir, **arguments, extend=extend, private=private, trust_code=trust_code),
        init=_maybe_path("init", init),
        init_optimizer=init_optimizer,
        extend=extend,
        typed_keys=recipes.changed_keys(overrides or {}),
    )
    tree = with_flags(_tree(config, overrides, trust_code, request), _maybe_path("vocab", vocab), private)
    return run.pretrain(tree, request)


@_quiet
def finetune(
    config: Recipe,
    workdir: AnyPath,
    *,
    overrides: Mapping[str, Any] | None = None,
    data: AnyPath = ".",
    init: AnyPath | None = None,
    trust_code: bool = False,
) -> dict[str, float]:
    """Fine-tune a model in this process and return the metrics of the best evaluation, as ``bert-jax finetune`` does.

    The same call resumes a run that was interrupted.

    Args:
      config, workdir, overrides, trust_code: see ``pretrain``.
      data: the folder with the files of ``config.data.splits``.
      init: the model to start from: a Hugging Face directory, hf://USER/NAME, or WORKDIR[@step]; else it is random.

    Raises:
      UserError: the recipe, the examples, the model or the machine do not fit together (see ``pretrain``).
    """
    _prepare_to_train()
    from bert_jax.runs import run
    from bert_jax.runs.prepared import Request

    arguments = {"overrides": overrides, "data": data, "init": init}
    request = Request(
        workdir=_path("workdir", workdir),
        data=_path("data", data),
        command=_call("finetune", config, workdir, **arguments, trust_code=trust_code),
        init=_maybe_path("init", init),
        typed_keys=recipes.changed_keys(overrides or {}),
    )
    return run.finetune(_tree(config, overrides, trust_code, request, "finetune"), request)


@_quiet
def predict(
    workdir: AnyPath,
    texts: Iterable[str | Sequence[str]] | None = None,
    *,
    input: AnyPath | None = None,
    format: str | None = None,
    options: Mapping[str, Any] | None = None,
    task: str | None = None,
    step: int | None = None,
    trust_code: bool = False,
) -> list[dict[str, Any]]:
    """Return the predictions of a fine-tuned model, one record per example, as ``bert-jax predict`` prints them.

    Args:
      texts: texts to predict, in place of ``input``; a pair, or a question and its context, as a tuple.
      input: a file like the files that the model was trained on, but answers may be missing; with format "raw_text", a
        text a line.
      format: the format of ``input``, the name of a file in bert_jax/examples. None means as in training.
      options: options of the task, to decide otherwise than in training.
      task: one of the tasks, for a model that was trained on several.
      step: a saved step. None means the step of the best evaluation.
      trust_code: run the users' own components of which the workdir has copies.

    Raises:
      UserError: there is no fine-tuned model in ``workdir``, or the examples do not fit it.
    """
    if (texts is None) == (input is None):
        raise UserError("give either texts or input, a file")
    if isinstance(texts, str):
        raise UserError(f"texts is one string; a list of strings is needed: [{texts[:40]!r}]")
    from bert_jax.reporting.progress import progress_notes
    from bert_jax.runs.prediction import load_tuned, read_examples, texts_as_examples
    from bert_jax.runs.prediction import predict as predicted

    model = load_tuned(_trust(trust_code, _path("workdir", workdir)), step, options, task)
    if input is not None:
        own_format = own_code.typed_name(catalogue.KEYS["data.format"], format, "format")
        examples = read_examples(model, _path("input", input), own_format, "test", say)
    else:
        examples = texts_as_examples(model, {f"texts[{i}]": row for i, row in enumerate(texts or ())})
    return predicted(model, examples, note=say, progress=progress_notes(say))[1]


def curves(workdir: AnyPath) -> Curves:
    """Return the curves of a run; a notebook draws them. Call it again while the run goes on, from another process.

    Raises:
      UserError: there is no record of a run in ``workdir``.
    """
    from bert_jax.reporting.curves import read_curves

    return read_curves(_path("workdir", workdir))


def _prepare_to_train() -> None:
    """Do what the commands do before they train: keep freed memory on a CPU, and compiled programs elsewhere."""
    from bert_jax.training.malloc import keep_freed_memory

    keep_freed_memory()  # it saves most if jax is not imported yet
    from bert_jax.training import cards, compile_cache

    cards.say_what_is_unused()
    compile_cache.keep_compiled()


def _tree(
    config: Recipe, overrides: Mapping[str, Any] | None, trust_code: bool, request: Any, folder: str = "pretrain"
) -> dict[str, Any]:
    """Return the config tree of a run. ``request`` names the workdirs whose copies of code ``trust_code`` lets run."""
    config = recipes.in_folder(config, folder)
    for source in filter(None, (request.workdir, request.init)):
        _trust(trust_code, source)
    tree: dict[str, Any] = recipes.with_values(config, overrides or {}, trust_code).to_dict()
    return tree


def _trust(trust_code: bool, source: str) -> str:
    """Return ``source``, after letting the code of its copies run if ``trust_code`` says so."""
    if trust_code:
        own_code.trust_copies(source)
    return source


def _path(name: str, path: AnyPath) -> str:
    """Return a path as text, with ``~`` replaced by the home folder."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise UserError(f"{name} is {path!r}; give a path")
    return os.path.expanduser(os.fspath(path))


def _maybe_path(name: str, path: AnyPath | None) -> str | None:
    return None if path is None else _path(name, path)


def _call(function: str, config: Recipe, workdir: AnyPath, **arguments: Any) -> str:
    """Return the call as Python code, which the run's files record as the command that resumes it."""
    given = {name: value for name, value in arguments.items() if value not in (None, {}, False, "fresh", ".")}
    recipe = _repr(config) if isinstance(config, str | os.PathLike) else "config"
    texts = [recipe, _repr(workdir), *(f"{name}={_repr(value)}" for name, value in given.items())]
    return f"bert_jax.{function}({', '.join(texts)})"


def _repr(value: Any) -> str:
    return repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
