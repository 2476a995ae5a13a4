"""Runs ``bert-jax <verb>`` (a verb is a subcommand): reads the verb's flags, and reports an error in one line."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import os
import re
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import logging

import bert_jax
from bert_jax.cluster import exit_codes, signals
from bert_jax.configuration import nearest
from bert_jax.errors import OF_MACHINE, Preempted, UserError, first_line
from bert_jax.parts import catalogue, own_code
from bert_jax.program import say
from bert_jax.recipes import key_names, recipes
from bert_jax.storage import hub, reading, write_errors
from bert_jax.storage.retries import is_passing

HOME = re.compile(r"^(--[\w.-]+=|)~(?=/|$)")  # a ~ that the shell did not expand (after = or in quotes)
_PATHS = re.compile(r"--(workdir|output|input|init|corpus|vocab|data|dev|queries|qrels|squad)")
LEAST_MEMORY = 4 * 10**9  # bytes of addresses; with less, libraries abort where they fail to start a thread
_NO_VERBS = ("main", "flags")  # files of this folder without a verb
_TRAINING = ("ablate", "finetune", "pretrain", "sweep")  # verbs that train
FINETUNING = ("finetune", "sweep")  # verbs whose recipes are of configs/finetune
# Flags of other programs, and the flags here that do what they do; of these a verb has one at most.
_ELSEWHERE = {
    "lr": "--learning_rate",
    "format": "--as",
    "max_steps": "--steps",
    "num_train_epochs": "--epochs",
    "per_device_train_batch_size": "--batch_size",
    "max_seq_length": "--max_length",
    "model_name_or_path": "--init",
    "output_dir": "--workdir",
}
LINE = 2000  # longer error messages are shortened to so many characters


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises ``UserError`` for bad arguments."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def run(argv: Sequence[str] | None = None) -> int:
    """Run a verb (subcommand) and return its exit code: 0 or what the verb returns, 2 for bad input, 130 if
    interrupted.

    Any other exception is a bug and is raised with its traceback, unless it came through a file of the user's own.

    Args:
      argv: the arguments. If None, use the command line of this process, and also install its signal handlers.
    """
    if argv is not None:
        return _run(argv)
    signals.listen()
    code = _run(sys.argv[1:])
    if code != exit_codes.DONE:  # end the process at once, because threads of a library may wait for ever
        signals.leave(code)
    return code


def _run(argv: Sequence[str]) -> int:
    logging.set_verbosity(logging.FATAL)  # users need no logs of libraries: their errors arrive as exceptions
    try:
        return _dispatch(list(argv))
    except BrokenPipeError:  # the reader of our output has closed the pipe, as in `bert-jax ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.CRASHED
    except (Exception, KeyboardInterrupt, Preempted) as error:
        known = ending(error)
        if known is None:
            raise
        say(known[0])
        return known[1]


def ending(error: BaseException) -> tuple[str, int] | None:
    """Return (message, exit code) for an exception that ends a command; None if it is a bug and needs a traceback."""
    cause: BaseException | None = error
    while isinstance(cause, ImportError | SystemError):  # numpy's import turns a Ctrl-C into such an error
        cause = cause.__cause__ or cause.__context__
    error = cause if isinstance(cause, KeyboardInterrupt | Preempted) else error
    if isinstance(error, KeyboardInterrupt):
        return signals.interrupted(), exit_codes.INTERRUPTED
    if isinstance(error, Preempted):
        return str(error), exit_codes.of(error)
    place = catalogue.place_in_own(error)
    if os.environ.get("BERT_JAX_TRACEBACK") == "1" and (place or isinstance(error, UserError | OSError)):
        traceback.print_exception(error)
    if isinstance(error, UserError):
        return f"error: {_short(' '.join(str(error).split()))}", exit_codes.of(error)
    # The path is missing, unreadable or of the wrong kind, or the disk is full. None of these is a bug.
    if isinstance(error, OSError) and (error.filename is not None or error.errno in write_errors.REMEDIES):
        reason = (error.strerror or str(error)).lower()
        code = exit_codes.CRASHED if is_passing(error) else exit_codes.BAD_INPUT
        advice = "name another path, or change its permissions"
        if isinstance(error, reading.NotPlainError):
            return f"error: {error.filename} {error.strerror}; put a plain file in its place", code
        if isinstance(error, IsADirectoryError):
            advice = "name a file, or remove the folder that is in its place"
        if error.errno in write_errors.DISK_TROUBLE:
            advice = write_errors.write_advice(error)
        where = "" if error.filename is None else f"{error.filename}: "
        return f"error: {where}{reason}; {advice}", code
    for words, advice in OF_MACHINE.items() if isinstance(error, RuntimeError) else ():
        if words in str(error):
            forever = "known backends" in str(error)  # a platform that is there may only be taken
            return f"error: {first_line(error)}; {advice}", exit_codes.BAD_INPUT if forever else exit_codes.CRASHED
    if place:
        what = f"error: {place}, in a file of your own: {type(error).__name__}: {first_line(error)}"
        return f"{what}; mend it there (BERT_JAX_TRACEBACK=1 shows the traceback)", exit_codes.CRASHED
    return None


def _short(line: str) -> str:
    """Return ``line`` in a form that a terminal can show; a very long line loses its middle.

    An error message may quote a value of any length, even with lone surrogates.
    """
    line = line.encode("utf-8", "backslashreplace").decode()
    return line if len(line) <= LINE else f"{line[: LINE * 2 // 3]} ... {line[-LINE // 3 :]}"


def in_processes(arguments: argparse.Namespace, work: Callable[[], object], alike: bool = True) -> int:
    """Run ``work`` as one process of the job that the flags describe; return the exit code.

    ``alike``: whether to end the job if the processes differ in code, package versions or config.
    """
    if arguments.restarts:
        from bert_jax.cluster.supervisor import supervise

        return supervise([*sys.argv[1:], "--restarts=0"], arguments.restarts)
    from bert_jax.cluster import distributed
    from bert_jax.cluster.processes import find_processes
    from bert_jax.training import cards, compile_cache

    processes = find_processes(vars(arguments))
    with signals.handle(*signals.TOLD_TO_END):
        try:
            if processes is not None:
                config = arguments.config.to_json_best_effort() if alike else None
                distributed.join(processes, config)
            cards.say_what_is_unused()
            compile_cache.keep_compiled()
            try:
                work()
                code = exit_codes.DONE
            except signals.ToldError:
                raise
            except Preempted as ended:  # in all processes of the job
                say(str(ended))
                code = exit_codes.of(ended)
            distributed.leave()
            return code
        except BaseException as error:
            distributed.end_by(error, ending(error))  # at once, because other processes wait for this one
            raise


def verbs() -> dict[str, str]:
    """Return a dict: verb (subcommand) -> module name, such as ``fill-mask`` -> ``fill_mask``.

    A module name ends with ``_`` if the verb is a Python keyword (``import_``).
    """
    return {name.rstrip("_").replace("_", "-"): name for name in catalogue.parts("cli") if name not in _NO_VERBS}


def _usage() -> str:
    """Return the text that ``bert-jax`` prints if no verb (subcommand) is given.

    It lists all verbs with their first docstring lines, and all recipes.
    """
    files = catalogue.parts("cli")
    lines = []
    for verb, name in sorted(verbs().items()):
        text = ast.get_docstring(ast.parse(files[name].read_text(encoding="utf-8"))) or ""
        lines.append(f"  {verb:<12}{text.partition(chr(10))[0]}")
    head = "usage: bert-jax <verb> [options]   (bert-jax <verb> --help, bert-jax --version)"
    return "\n".join([head, "", *lines, "", f"recipes: {', '.join(recipes.names())}"])


def _dispatch(argv: list[str]) -> int:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the current folder was removed; change to one that is there, such as with cd ~") from None
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"bert-jax {bert_jax.__version__}")
        return 0
    known = verbs()
    if argv[0] not in known:
        print(_usage(), file=sys.stderr)
        raise UserError(f"unknown verb {argv[0]!r}; {nearest(argv[0], known)}")
    if 0 <= (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) < LEAST_MEMORY:
        problem = f"addresses are limited to {limit / 1e9:.1f} GB (ulimit -v), with which libraries abort"
        raise UserError(f"{problem}; allow at least {LEAST_MEMORY / 1e9:.0f} GB, or all: ulimit -v unlimited")
    module = importlib.import_module(f"bert_jax.cli.{known[argv[0]]}")
    parser = _Parser(
        prog=f"bert-jax {argv[0]}",
        description=module.__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    arguments = _parse(parser, argv[1:])
    if argv[0] in _TRAINING:
        from bert_jax.training.malloc import keep_freed_memory

        keep_freed_memory()  # must come before jax is imported
    output = getattr(arguments, "output", None)
    signals.unfinished[:] = [arguments.workdir] if argv[0] in _TRAINING else [f"{output}.partial"] if output else []
    return module.run(arguments) or 0


def _is_text(argument: str) -> bool:
    """Return whether ``argument`` is valid as a path or text: it has no NUL and no lone surrogate."""
    try:
        return b"\0" not in argument.encode("utf-8")
    except UnicodeEncodeError:
        return False


def _at_home(argv: Sequence[str]) -> list[str]:
    """Return ``argv`` with ``~`` at the start of a path replaced by the home folder."""
    home, expanded = os.path.expanduser("~"), []
    for before, text in zip(["", *argv], argv, strict=False):
        match = HOME.match(text)
        is_path = match is not None and (match[1] or _PATHS.fullmatch(before))
        expanded.append(HOME.sub(lambda match: match[1] + home, text) if is_path else text)
    return expanded


def _keys_like(name: str, options: Sequence[str], arguments: argparse.Namespace) -> list[str]:
    """Return the keys of the recipe that end in ``name`` or are close to it; none if one of ``options`` is closer.

    Args:
      arguments: the arguments that the parser knows, perhaps with ``--config``.
    """
    if difflib.get_close_matches(f"--{name}", options, n=1, cutoff=0.87):
        return []
    if name.partition(".")[0] in (*key_names.PRETRAINING, *key_names.FINETUNING):
        return [name]
    if not getattr(arguments, "config", None):
        return []
    every = recipes.keys(recipes.load(arguments.config).to_dict())
    matches = [key for key in every if re.search(rf"(^|[._]){re.escape(name)}$", key)]
    last = {key.rpartition(".")[2]: key for key in reversed(every)}
    close = difflib.get_close_matches(name, [*last, *(option.lstrip("-") for option in options)], n=1)
    return matches[:3] or [last[word] for word in close if word in last]


def _check_known(parser: _Parser, argv: list[str], folder: str) -> None:
    """Raise ``UserError`` for the first argument that the parser does not know, before any argument that is missing.

    Args:
      folder: the folder of the verb's recipes.
    """
    required = [action for action in parser._actions if action.required]
    for action in required:
        action.required = False
    arguments, unknown = parser.parse_known_intermixed_args(argv)
    for action in required:
        action.required = True
    options = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    for text in unknown:
        name = text.partition("=")[0]
        hint = nearest(name, options) if text.startswith("-") else f"options: {', '.join(options)}"
        if hasattr(arguments, "config"):
            arguments.config = recipes.in_folder(arguments.config, folder)
            if not (text.startswith("-") or arguments.config):
                hint = f"did you mean --config={text}?"
        if (same := _ELSEWHERE.get(name.lstrip("-"))) in options:
            hint = f"here it is {same}"
        elif keys := _keys_like(name.lstrip("-"), options, arguments):
            hint = f"a key of the recipe is {' or '.join(f'--config.{key}=VALUE' for key in keys)}"
        raise UserError(f"unexpected argument {text!r}; {hint}")


def _parse(parser: _Parser, argv: list[str]) -> argparse.Namespace:
    for text in argv:
        if not _is_text(text):
            raise UserError(f"the argument {text!r} is not UTF-8 text; check the encoding of the terminal")
        if text.endswith("=") and _PATHS.fullmatch(text[:-1]):
            raise UserError(f"{text} has no value; write {text}PATH")
        if re.fullmatch(r"--config\.[^=]+", text):
            raise UserError(f"{text} has no value; write {text}=VALUE")
        if re.fullmatch(r"--\w+=--", text):  # argparse would read it as an empty list
            raise UserError(f"{text}: '--' is not a value; write {text[:-2]}VALUE")
    argv = _at_home(argv)
    overrides = [text for text in argv if recipes.OVERRIDE.fullmatch(text)]
    rest = [text for text in argv if text not in overrides]
    folder = "finetune" if parser.prog.rpartition(" ")[2] in FINETUNING else "pretrain"
    _check_known(parser, rest, folder)
    arguments = parser.parse_intermixed_args(rest)
    if hasattr(arguments, "config"):
        arguments.config = recipes.in_folder(arguments.config, folder)
    overrides += getattr(arguments, "short", [])
    place = getattr(arguments, "workdir", None) or ""
    if hasattr(arguments, "step") and not hub.is_model(place) and (at := re.fullmatch(r"(.+)@([0-9]+)", place)):
        arguments.workdir, arguments.step = at[1], int(at[2])  # WORKDIR@STEP, as --init takes it
    trusts = getattr(arguments, "trust_code", False)
    for place in [getattr(arguments, name, None) for name in ("workdir", "init")] if trusts else ():
        if place:
            own_code.trust_copies(place)
    if getattr(arguments, "format", None):
        arguments.format = own_code.typed_name(catalogue.KEYS["data.format"], arguments.format, "--format")
    if getattr(arguments, "config", None) is not None:
        arguments.recipe, arguments.overrides = arguments.config, overrides  # for verbs that load it several times
        arguments.config = recipes.load(arguments.config, overrides, trusts)
    elif hasattr(arguments, "overrides"):  # keys of the run whose model the verb reads
        arguments.overrides = overrides
    elif overrides:
        raise UserError(f"{overrides[0].partition('=')[0]} needs a --config=RECIPE that it changes")
    return arguments
