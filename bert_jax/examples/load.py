"""Has the keys of ``config.data``; loads the examples of a run: files, columns, splits, and inputs in two splits."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bert_jax.configuration import build, check_fields
from bert_jax.errors import UserError
from bert_jax.examples import splits
from bert_jax.examples.columns import Columns, Roles, as_example, check_roles, choose
from bert_jax.examples.reading import BadRecord, DataRecord, Reader, few_bad, need, packed_name, text_lines
from bert_jax.parts import catalogue
from bert_jax.program import Note
from bert_jax.records import Example

_KINDS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The keys of ``config.data``: the files of labelled data, their format and their columns."""

    format: str  # the name of a reader
    splits: Mapping[str, str]  # name -> path below the data folder; names begin with train, dev or test
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # options of the reader
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # role -> column(s); a dot goes into a field
    # role -> what its values begin with, a regular expression
    strip_prefix: Mapping[str, str] = dataclasses.field(default_factory=dict)
    split_column: str = ""  # the column of the only file whose value says which split a row belongs to
    split_values: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # split -> its value or values
    # a file with the ids of the rows of train that become the dev split, one a line; a tab is between several columns
    dev_ids: str = ""
    dev_fraction: float = 0.0  # share of train to use as dev if there is no dev split
    split_seed: int = 42  # of the draws of dev_fraction and train_fraction
    train_fraction: float = 1.0  # share of train to use; a larger share contains every smaller share
    max_dev_rows: int | None = None  # the most examples of a dev split to use, with the proportions of the labels
    max_test_rows: int | None = None  # the same for a test split
    drop_labels: tuple[str, ...] = ()  # labels, such as "-", whose examples are left out of all splits and counted
    overlap: Literal["warn", "error", "drop"] = "warn"  # if splits overlap; "drop" removes shared examples from train
    bad_examples: Literal["error", "skip"] = "error"  # skip: leave out and count rows that lack something

    def __post_init__(self) -> None:
        wrong = [name for name in self.splits if not name.startswith(_KINDS)]
        if wrong or not self.splits:
            raise UserError(
                f"config.data.splits has {', '.join(map(repr, wrong)) or 'none'}; names that begin with train, dev or"
                " test are needed, such as dev_matched"
            )
        if wrong := [name for name in self.names if not re.fullmatch(r"[\w-]+", name)]:
            raise UserError(f"config.data has a split called {wrong[0]!r}; letters, digits, _ and - are allowed")
        if wrong := [name for name, path in self.splits.items() if not isinstance(path, str) or not path]:
            raise UserError(f"config.data.splits.{wrong[0]} is {self.splits[wrong[0]]!r}; a path is needed")
        check = functools.partial(check_fields, self, "config.data")
        check("at least 0 and less than 1 is needed", "dev_fraction", sound=lambda value: 0 <= value < 1)
        check("more than 0 and at most 1 is needed", "train_fraction", sound=lambda value: 0 < value <= 1)
        check("at least 1 is needed", "max_dev_rows", "max_test_rows", sound=lambda n: n is None or n > 0)
        for role, text in self.strip_prefix.items():
            try:
                re.compile(text)
            except (re.error, TypeError) as error:
                raise UserError(
                    f"config.data.strip_prefix.{role} is {text!r}, which is no regular expression ({error}); put \\ "
                    "before characters such as ( [ + ?"
                ) from None
        splits.check_column(self.split_column, self.split_values, self.splits)
        if (self.dev_fraction or self.dev_ids) and "train" not in self.splits:
            raise UserError(
                "config.data.dev_fraction and dev_ids need a split called train in config.data.splits; name its file"
            )
        if self.dev_ids and any(split.startswith("dev") for split in self.splits):
            raise UserError("config.data.dev_ids makes the dev split, and config.data.splits names one; leave one out")

    @property
    def names(self) -> list[str]:
        """The names of all splits that there may be once the files are read."""
        dealt = ["dev"] if self.dev_ids or self.dev_fraction else []
        by_column = [*(self.split_values or splits.KNOWN)] if self.split_column else []
        return list(dict.fromkeys([*self.splits, *by_column, *dealt]))


def load(
    config: DataConfig, folder: str | os.PathLike[str], roles: Roles, note: Note
) -> dict[str, tuple[Example, ...]]:
    """Return the examples of every split, in the order of the files, with the roles of a task and an ``id``.

    The split train has all its examples; ``to_train_on`` takes the fraction that the config asks for.

    Args:
      folder: the paths of ``config.splits`` are relative to it; "" if they are absolute.
      note: called with lines about skipped examples and about examples that are in two splits.

    Raises:
      UserError: an unknown format, option, role or column; a file that is missing or not of the format; bad examples or
        overlapping splits, if the config makes these errors; a split without examples.
    """
    check_roles(config.columns, roles)
    check_roles(config.strip_prefix, roles, "config.data.strip_prefix")
    reader = make_reader(config)
    items = {split: list(reader.read(path)) for split, path in _paths(config, folder, reader).items()}
    if config.split_column:
        items = splits.deal_by_column(next(iter(items.values())), config.split_column, config.split_values, note)
    result = _examples(config, items, roles, note)
    if config.drop_labels:
        dropped, every = set(map(str, config.drop_labels)), result
        result = {s: tuple(e for e in of if str(e.get("label")) not in dropped) for s, of in every.items()}
        counts = ", ".join(f"{split} {len(of) - len(result[split]):,}" for split, of in every.items())
        note(f"examples left out by their label ({', '.join(sorted(dropped))}): {counts} (config.data.drop_labels)")
    if config.dev_ids:
        file = need(os.path.join(os.fspath(folder), config.dev_ids))
        ids = {"-".join(line.split("\t")) for _, line in text_lines(file) if line.strip()}
        result["train"], result["dev"] = splits.deal_by_ids(result["train"], ids, file)
    elif config.dev_fraction and not any(split.startswith("dev") for split in result):
        if len(result["train"]) == 1:
            raise UserError(
                f"{config.splits['train']} has 1 example, and 2 are needed: to train on and to evaluate on; add some"
            )
        dealt = splits.deal(result["train"], config.dev_fraction, config.split_seed, roles.together)
        result["train"], result["dev"] = dealt
    result = _without_overlap(config, result, roles, note)
    for split in result:
        for kind, most in (("dev", config.max_dev_rows), ("test", config.max_test_rows)):
            if split.startswith(kind) and most is not None and most < len(result[split]):
                note(f"{split}: {most:,} of {len(result[split]):,} examples are used (config.data.max_{kind}_rows)")
                result[split] = splits.at_most(result[split], most, config.split_seed, roles.together)
    if empty := [split for split, examples in result.items() if not examples]:
        found = ", ".join(f"{split} ({config.splits[split]})" if split in config.splits else split for split in empty)
        raise UserError(
            f"no example is left in {found}; give a file that has some, in the format {config.format}, or name its own "
            "with config.data.format"
        )
    return result


def to_train_on(
    config: DataConfig, every: Mapping[str, tuple[Example, ...]], together: Sequence[str] = ()
) -> dict[str, tuple[Example, ...]]:
    """Return the splits with ``config.train_fraction`` of train. What it leaves out may have rare labels.

    ``together``: as in the task's ``Roles``.
    """
    return {
        split: splits.keep_fraction(examples, config.train_fraction, config.split_seed, together)
        if split.startswith("train")
        else examples
        for split, examples in every.items()
    }


def make_reader(config: DataConfig) -> Reader:
    """Return the reader of ``config.format``. Raises ``UserError`` for an unknown format or option."""
    module = catalogue.find("examples", config.format, having="Reader")
    reader: Reader = build(module.Reader, config.options, "config.data.options")
    return reader


def _paths(config: DataConfig, folder: str | os.PathLike[str], reader: Reader) -> dict[str, str]:
    paths = {
        split: path if "://" in path else os.path.join(os.fspath(folder), path) for split, path in config.splits.items()
    }
    if reader.named_splits:
        return paths
    found = {split: packed_name(path) for split, path in paths.items()}
    if missing := [f"{split}: {paths[split]}" for split, path in found.items() if path is None]:
        raise UserError(
            f"no file for {'; '.join(missing)}, nor a compressed one of that name; check --data, or name the file: "
            + " ".join(f"--config.data.splits.{split}=FILE" for split, path in found.items() if path is None)
        )
    return {split: path for split, path in found.items() if path is not None}


def _examples(
    config: DataConfig, items: Mapping[str, Sequence[DataRecord | BadRecord]], roles: Roles, note: Note
) -> dict[str, tuple[Example, ...]]:
    prefixes = {role: re.compile(text) for role, text in config.strip_prefix.items()}
    examples: dict[str, list[Example | BadRecord]] = {}
    problems: dict[str, list[str]] = {}  # problem -> the splits that have it
    for split, of_split in items.items():
        records = [item for item in of_split if isinstance(item, DataRecord)]
        # A split without records is another error, raised later.
        chosen, wrong = choose(split, records, config.columns, roles) if records else ({}, [])
        for problem in wrong:
            problems.setdefault(problem, []).append(split)
        examples[split] = [
            item if isinstance(item, BadRecord) else as_example(item, chosen, roles, split.startswith("test"), prefixes)
            for item in ([] if wrong else of_split)
        ]
    if problems:
        raise UserError("; ".join(f"{', '.join(names)}: {problem}" for problem, names in problems.items()))
    bad = {split: [e for e in of_split if isinstance(e, BadRecord)] for split, of_split in examples.items()}
    every = [one for of_split in bad.values() for one in of_split]
    if every and config.bad_examples == "error":
        foreign = any("not UTF-8" in one.reason for one in every)
        convert = " (such as with: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW)" if foreign else ""
        raise UserError(
            f"{len(every):,} of {sum(map(len, items.values())):,} examples are bad: {few_bad(every)}; mend"
            f" them{convert}, or --config.data.bad_examples=skip counts them and leaves them out"
        )
    for split, of_split in bad.items():
        if of_split:
            note(f"{split}: {len(of_split):,} of {len(items[split]):,} examples skipped: {few_bad(of_split)}")
    return {split: _with_ids(split, of_split, config.columns, note) for split, of_split in examples.items()}


def _with_ids(split: str, made: Sequence[Example | BadRecord], columns: Columns, note: Note) -> tuple[Example, ...]:
    """Return the good examples with ids: the file's own ids, or split and row number (bad rows are numbered too)."""
    good = [(row, example) for row, example in enumerate(made) if not isinstance(example, BadRecord)]
    own = Counter(example["id"] for _, example in good if "id" in example)
    if twice := [name for name, count in own.items() if count > 1]:
        problem = f"{split} has {len(twice):,} ids more than once, such as {twice[0]!r}"
        if "id" in columns:
            raise UserError(f"{problem}; check config.data.columns.id, or leave it out to number the rows")
        note(f"{problem}; its rows are numbered instead")
    return tuple(
        {**example, "id": f"{split}-{row}" if twice else example.get("id", f"{split}-{row}")} for row, example in good
    )


def _without_overlap(
    config: DataConfig, result: dict[str, tuple[Example, ...]], roles: Roles, note: Note
) -> dict[str, tuple[Example, ...]]:
    lines = "; ".join(splits.overlaps(result, roles.inputs))
    if not lines:
        return result
    if config.overlap == "error":
        raise UserError(f"{lines}; --config.data.overlap=drop drops them from train, warn goes on")
    note(lines if config.overlap == "drop" else f"{lines}; --config.data.overlap=drop drops them from train")
    if config.overlap == "drop":
        result, dropped = splits.drop_shared(result, roles.inputs)
        note(f"{dropped:,} examples dropped from train")
    return result
