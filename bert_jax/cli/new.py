"""Write a folder with a recipe for your text, a README with the commands for it, and a .gitignore."""

from __future__ import annotations

import argparse
import contextlib
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError, few
from bert_jax.program import program
from bert_jax.recipes import key_names, recipes
from bert_jax.storage import files

FIRST = "quickstart"  # it ends within minutes on a laptop
# Keys of a phase that say how long it is, and how long a trial is at most.
_TRIAL = {"num_steps": 200, "num_tokens": 10**6, "num_epochs": 1.0}
_SMALL, _RATE_OF_SMALL = 512, "--learning_rate=5e-4"  # models up to this width need this rate to learn a task
_RECIPE = '''"""The recipe {recipe} of bert_jax, on the text files of the folder text. README.md has the commands.

bert-jax recipes recipe.py shows all keys and their values.
"""

from ml_collections import ConfigDict

from bert_jax.recipes import recipes


def get_config() -> ConfigDict:
    config = recipes.derive("{recipe}")

    # Your text, in UTF-8. Each file is a document. If the files are a few books, write "pages" in place of "file"; if a
    # file has many documents, write what ends a document: "blank_line" or "line". A language other than "en" has other
    # rules for the ends of sentences.
    config.corpus.source = "text_files"
    config.corpus.options = ConfigDict({{"paths": "text/*.txt", "document_boundary": "file", "language": "{language}"}})
    config.corpus.heldout_fraction = 0.1  # the share of documents that no step learns from, and that evaluations read

    return config
'''
_README = """# {name}

A model of your text, by the recipe `{recipe}` of bert_jax. Give all commands in this folder.

Put text files (`.txt`, UTF-8) into the folder `text`. Each file is a document, and some thirty documents are needed;
`recipe.py` says how to cut books and other large files into documents.
{from_model}
## A trial

A small part of the training shows whether all of it works on your text:

    bert-jax pretrain --config=recipe.py{init} --workdir=runs/trial{part}

## The model

The same command goes on with a run that was stopped. At its end `runs/model/report.html` shows the curves.

    bert-jax pretrain --config=recipe.py{init} --workdir=runs/model
"""
_FROM_MODEL = """
In the commands, MODEL is the model that the training goes on from: a Hugging Face directory or the workdir of a run.
"""
_TASK = """
## A task

`labels.csv` is a table of yours with the columns `text` and `label`; a tenth of its rows is kept to measure the result.

    bert-jax finetune --config=classification --init=runs/model --workdir=runs/labels \\
        --config.data.splits.train=labels.csv{rate}
    bert-jax predict --workdir=runs/labels "a text without a label"
"""
_ELSEWHERE = """
## Elsewhere

Each command writes a folder that `transformers` reads:

    bert-jax export --workdir=runs/model --output=model
"""
_TASK_ELSEWHERE = """    bert-jax export --workdir=runs/labels --output=labels-model
"""
_FILL = """    bert-jax fill-mask --workdir=runs/model "He opened the [MASK] and went in."
"""
_GO_ON = """    bert-jax generate --workdir=runs/model "He opened the door and" --max_new_tokens=20
"""
_IGNORED = "/runs/\n/model/\n/labels-model/\n__pycache__/\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the new folder, or one without such files (.)")
    given = "a recipe for pretraining, perhaps with :argument, from which the new recipe derives (default: %(default)s)"
    parser.add_argument("--from", dest="recipe", metavar="RECIPE", default=FIRST, help=given)


def run(arguments: argparse.Namespace) -> None:
    if files.is_remote(arguments.name):
        raise UserError(f"{arguments.name} is on an object store; name a folder of this machine")
    place = Path(arguments.name)
    texts = _texts(place.absolute().name, recipes.in_folder(arguments.recipe, "pretrain"))
    if place.exists() and not place.is_dir():
        raise UserError(f"{place} exists already, and is no folder; give another name")
    if there := [file for file in texts if (place / file).exists()]:
        raise UserError(f"{place} has {few(there, 3)} already; give another name")
    # A folder that is there is not replaced: a shell may be in it.
    with contextlib.nullcontext(place) if place.exists() else files.whole_directory(place) as folder:
        for file, text in texts.items():
            files.write_text(folder / file, text)
        (folder / "text").mkdir(exist_ok=True)
    print(f"{place}: {', '.join(texts)} and the folder text for your text")
    print(f"next: put .txt files into {place / 'text'}, then follow {place / 'README.md'}")


def _texts(name: str, recipe: str) -> dict[str, str]:
    """Return the files of a new folder, file -> text. Raises ``UserError`` for a recipe that does not fit."""
    if recipe.partition(":")[0].endswith((".py", ".json")):
        raise UserError(f"--from={recipe} is a file; copy it, or name a recipe of bert_jax: {program()} recipes")
    config = recipes.load(recipe).to_dict()
    if key_names.is_finetuning(config):
        raise UserError(f"the recipe {recipe} is one for fine-tuning; name one for pretraining, such as {FIRST}")
    if "parts" in config["corpus"]:
        raise UserError(f"the recipe {recipe} mixes several texts; name a recipe with one text, such as {FIRST}")
    goes_on = not _has_shape(config)
    values = {
        "name": name,
        "recipe": recipe,
        "init": " --init=MODEL" if goes_on else "",
        "from_model": _FROM_MODEL if goes_on else "",
        "part": _part(config),
        "language": config["corpus"]["options"].get("language", "en"),
    }
    return {
        "recipe.py": _RECIPE.format_map(values),
        "README.md": _README.format_map(values) + _after_training(config),
        ".gitignore": _IGNORED,
    }


def _has_shape(config: Mapping[str, Any]) -> bool:
    """Return whether a recipe says how large its model is; other recipes go on from a model."""
    return bool({"size", "num_layers"} & config["model"].keys())


def _part(config: Mapping[str, Any]) -> str:
    """Return the flags for a tenth of each phase, but at most ``_TRIAL``, as they go on in a README."""
    flags = []
    for name, phase in config["phases"].items():
        for key, length in ((key, phase.get(key)) for key in _TRIAL):
            if length is not None:
                tenth = length / 10 if key == "num_epochs" else max(1, length // 10)
                flags.append(f"--config.phases.{name}.{key}={min(tenth, _TRIAL[key])}")
    if any(config["schedule"].get(key) for key in ("warmup_steps", "warmup_tokens")):
        flags.append("--config.schedule.warmup_fraction=0.1")
    indent = " " * 8
    lines = textwrap.wrap(" ".join(flags), 110, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return "".join(f" \\\n{line}" for line in lines)


def _after_training(config: Mapping[str, Any]) -> str:
    """Return the end of the README: the commands that can be given for the trained model."""
    from bert_jax.interchange.family import families  # slow: both import jax
    from bert_jax.recipes.pretraining_settings import PretrainingSettings

    settings = PretrainingSettings.of(config)
    model, objectives = settings.architecture.config, [chosen.module.Objective for chosen in settings.objectives]
    is_small = _has_shape(config) and model.hidden_size <= _SMALL
    task = _TASK.format(rate=f" {_RATE_OF_SMALL}" if is_small else "")
    reads_on = objectives[-1].reads == "what came before"
    parts = {
        _GO_ON: reads_on,
        _FILL: objectives[-1].reads == "both sides" and not model.decodes,
        task: not model.decodes,
        _ELSEWHERE: (known := model.encoder in families() and not any(one.differs for one in objectives)),
        _TASK_ELSEWHERE: known and not model.decodes and not reads_on,  # a GPT that classifies has no class here
    }
    return "".join(text for text, is_able in parts.items() if is_able)
