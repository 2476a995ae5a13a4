"""Writes the tables of keys in configs/README.md from the dataclasses that read the keys (``make keys``).

The line about a key is the comment beside its field, or its entry in the docstring of the class.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.cli.schema import LINES, NOT_KEYS
from bert_jax.corpora.prepare import CorpusConfig, PartConfig, VocabularyConfig
from bert_jax.examples.load import DataConfig
from bert_jax.losses.teacher import AttentionConfig, HiddenConfig, SoftConfig, TeacherConfig
from bert_jax.models.config import ModelConfig, TransformerConfig
from bert_jax.models.encoders import bert
from bert_jax.models.kernels import choice
from bert_jax.objectives import base
from bert_jax.parts import catalogue, field_lines
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.recipes.settings import Settings
from bert_jax.recipes.task_settings import TaskSettings
from bert_jax.rows.loader import LoaderConfig
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.phases import Phase
from bert_jax.runs.evaluations import base as evaluations
from bert_jax.tasks.mixing import Mixing
from bert_jax.training.experiment import TrainingConfig
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import adamw
from bert_jax.training.schedules.base import Warmup
from bert_jax.training.selection import SelectionConfig

PAGE = Path(__file__).resolve().parents[2] / "configs" / "README.md"
BEGIN, END = "<!-- keys: made by `make keys` -->\n", "<!-- end of keys -->\n"


class Row(NamedTuple):
    """A key with its type, its default and a line about it."""

    key: str
    type: str
    default: str
    line: str


# Keys whose values the catalogue knows: most choose the dataclass that reads the rest of their group.
VOCAB_SIZE = Row("vocab_size", "int", "", LINES["model.vocab_size"])
ENCODER = Row("encoder", "str", '"bert"', LINES["model.encoder"])
SIZE = Row("size", "str", "", LINES["model.size"])
KERNELS = ", ".join(f'"{name}"' for name in choice.names())
KERNEL = Row("attention_kernel", KERNELS, '"auto"', LINES["model.attention_kernel"])
OBJECTIVE = Row("name", "str", "required", LINES["objective.name"])
MEMBERS = Row("members", "group", "", LINES["objective.members"])
OPTIMIZER = Row("name", "str", '"adamw"', LINES["optimizer.name"])
SCHEDULE = Row("name", "str", '"linear_from_zero"', LINES["schedule.name"])
TASK = Row("name", "str", "required", LINES["task.name"])
EVALUATION = Row("name", "str", "required", LINES["training.evaluations.*.name"])
Groups = tuple[tuple[str, tuple[Row, ...], tuple[type, ...]], ...]
BOTH: Groups = (
    ("config", (), (Settings,)),
    ("config.vocab", (), (VocabularyConfig,)),
    ("config.model", (ENCODER, SIZE, VOCAB_SIZE, KERNEL), (ModelConfig, TransformerConfig, bert.Config)),
    ("config.phases.NAME", (), (Phase,)),
    ("config.optimizer", (OPTIMIZER,), (adamw.Adam, adamw.Optimizer)),
    ("config.schedule", (SCHEDULE,), (Warmup,)),
    ("config.selection", (), (SelectionConfig,)),
    ("config.training", (), (TrainingConfig,)),
    ("config.training.evaluations.NAME", (EVALUATION,), (evaluations.Config,)),
    ("config.checkpoints", (), (CheckpointConfig,)),
    ("config.loader", (), (LoaderConfig,)),
    ("config.mesh", (), (MeshConfig,)),
    ("config.teacher", (), (TeacherConfig,)),
    ("config.teacher.soft", (), (SoftConfig,)),
    ("config.teacher.hidden", (), (HiddenConfig,)),
    ("config.teacher.attention", (), (AttentionConfig,)),
)
PRETRAINING: Groups = (
    ("config", (), (PretrainingSettings,)),
    ("config.corpus", (), (CorpusConfig,)),
    ("config.corpus.parts.NAME", (), (PartConfig,)),
    ("config.objective", (OBJECTIVE, MEMBERS), (base.Config,)),
    ("config.objective.masking", (), (MaskingConfig,)),
)
FINETUNING: Groups = (
    ("config", (), (FinetuningSettings,)),
    ("config.task", (TASK,), ()),
    ("config.data", (), (DataConfig,)),
    ("config.tasks.NAME", (), (TaskSettings,)),
    ("config.mixing", (), (Mixing,)),
)
# Group of keys -> (package, the class that a part of this kind has, the class with its options).
OPTIONS = {
    "config.objective": ("objectives", "Objective", "Config"),
    "config.objective.arrangement_options": ("rows.arrangements", "Arrangement", "Arrangement"),
    "config.objective.masking.options": ("rows.strategies", "select", "Config"),
    "config.model": ("models.encoders", "Encoder", "Config"),
    "config.training.evaluations.NAME": ("runs.evaluations", "Evaluator", "Config"),
    "config.corpus.options": ("corpora", "Source", "Source"),
    "config.corpus.columns.NAME": ("corpora.annotators", "Annotator", "Annotator"),
    "config.task": ("tasks", "Task", "Config"),
    "config.data.options": ("examples", "Reader", "Reader"),
    "config.optimizer": ("training.optimizers", "Optimizer", "Optimizer"),
    "config.schedule": ("training.schedules", "Schedule", "Schedule"),
}


def page() -> str:
    """Return configs/README.md with its tables made anew."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, marker, after = rest.partition(END)
    assert marker, f"{PAGE} lacks the lines {BEGIN!r} and {END!r}"
    return before + BEGIN + "\n".join(_lines()) + "\n" + END + after


def all_keys() -> Iterator[Row]:
    """Yield every key and every group of keys, with its path (``phases.NAME.masking``)."""
    for where, extra, classes in (*BOTH, *PRETRAINING, *FINETUNING):
        path = where.removeprefix("config").lstrip(".")
        for row in [Row(path, "group", "", ""), *extra, *(row for cls in classes for row in _rows(cls))]:
            yield row if row.key == path else row._replace(key=f"{path}.{row.key}".lstrip("."))
    for where, (package, having, options) in OPTIONS.items():
        path = where.removeprefix("config.")
        rows = (row for name in catalogue.parts(package, having) for row in _own(package, having, name, options))
        yield from (row._replace(key=f"{path}.{row.key}") for row in rows)
    yield from (Row(f"corpus.{name}", "group", "", "") for name in ("parts", "columns", "columns.NAME"))


def _lines() -> Iterator[str]:
    for kind, groups in (
        ("pretraining and fine-tuning", BOTH),
        ("pretraining", PRETRAINING),
        ("fine-tuning", FINETUNING),
    ):
        yield f"\n## Keys of {kind}"
        for where, extra, classes in groups:
            rows = [*extra, *(row for cls in classes for row in _rows(cls))]
            rows += _of_part_defaults() if FinetuningSettings in classes else ()
            yield f"\n### `{where}`" + (f" ({kind})" if where == "config" else "")
            yield from ("", "| key | type | default | |", "|---|---|---|---|")
            yield from (f"| `{r.key}` | {r.type} | {r.default} | {r.line} |" for r in rows)
    yield "\n## Options of parts"
    yield "\nKeys that only the named part reads. Parts that are not listed have none of their own."
    for where, (package, having, options) in OPTIONS.items():
        found = [
            (name, row)
            for name in sorted(catalogue.parts(package, having))
            for row in _own(package, having, name, options)
        ]
        yield f"\n### `{where}`: by {package.rpartition('.')[2].replace('_', ' ')}"
        yield from ("", "| part | key | type | default | |", "|---|---|---|---|---|")
        yield from (f"| `{name}` | `{r.key}` | {r.type} | {r.default} | {r.line} |" for name, r in found)


def _own(package: str, having: str, name: str, options: str) -> list[Row]:
    """Return the keys of a part that the tables of its group do not have: its own, and of bases that are no parts."""
    module = catalogue.find(package, name, having=having)
    cls = getattr(module, options)
    common = {base.Config, evaluations.Config, ModelConfig, TransformerConfig, bert.Config, adamw.Optimizer, adamw.Adam}
    common |= {Warmup}
    if cls in common or cls.__module__ != module.__name__ or not dataclasses.is_dataclass(cls):
        return []
    parts = {f"bert_jax.{package}.{one}" for one in catalogue.parts(package, having)}
    bases = [one for one in cls.__mro__[1:] if dataclasses.is_dataclass(one) and one.__module__ not in parts]
    rows = {row.key: row for one in (*reversed(bases), cls) if one not in common for row in _rows(one)}
    return list(rows.values())


def _rows(cls: type) -> Iterator[Row]:
    """Yield a row for each field that the class itself defines, and for each key of a group that it has changed."""
    hints, lines = typing.get_type_hints(cls), field_lines.own_lines(cls)
    own = cls.__dict__.get("__annotations__", {})
    for field in dataclasses.fields(cls):
        if field.name not in own or (cls.__name__, field.name) in NOT_KEYS:
            continue
        if dataclasses.is_dataclass(group := hints[field.name]):
            yield from _changed(field.name, field.default, {row.key: row for row in _rows(group)})  # type: ignore[arg-type]
            continue
        line = lines.get(field.name, "")
        assert line, f"write a comment beside {cls.__module__}.{cls.__qualname__}.{field.name}: tables of keys show it"
        yield Row(field.name, _type(hints[field.name]), _default(field), _shown(line))


def _changed(name: str, default: Any, rows: Mapping[str, Row]) -> Iterator[Row]:
    """Yield a row for each key of the group ``name`` of which ``default`` has another value than the class."""
    if dataclasses.is_dataclass(default):
        plain = vars(type(default)())  # type: ignore[operator]
        for key in (key for key in rows if getattr(default, key, None) != plain.get(key)):
            yield rows[key]._replace(key=f"{name}.{key}", default=_value(getattr(default, key)))


def _of_part_defaults() -> Iterator[Row]:
    """Yield a row for each option of optimizer and schedule that has another default in fine-tuning."""
    for group, cls in (("optimizer", adamw.Optimizer), ("schedule", Warmup)):
        values = FinetuningSettings.part_defaults[group]
        for row in (row for row in _rows(cls) if row.key in values):
            yield row._replace(key=f"{group}.{row.key}", default=_value(values[row.key]))


def _shown(line: str) -> str:
    """Return a comment as a cell of a table: it code has single backticks."""
    line = line.replace("``", "`").replace("|", "\\|")
    return line if line.endswith("...") or not line.endswith(".") else line[:-1]


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("None" if a is type(None) else _type(a) for a in arguments)
    if origin is typing.Literal:
        return ", ".join(f'"{a}"' for a in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin in (dict, Mapping, collections.abc.Mapping):
        return "group"
    return "group" if dataclasses.is_dataclass(hint) else str(hint.__name__)


def _default(field: dataclasses.Field[Any]) -> str:
    return _value(field.default if field.default_factory is dataclasses.MISSING else field.default_factory())


def _value(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | dict | types.MappingProxyType):
        shown = ", ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in value) or "empty"
        return shown if len(shown) < 60 else "a list in the file"
    return f"{value:,}" if type(value) is int else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: tables made anew")
