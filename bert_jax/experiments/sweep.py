"""Fine-tunes over a grid of values and seeds: learning rates, epochs, fractions of the labels, pretrained or fresh."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.experiments import output, pictures
from bert_jax.experiments.compare import compare
from bert_jax.experiments.finetunings import check_labels
from bert_jax.experiments.grid import RESULTS, Grid
from bert_jax.experiments.nouns import Cell, Metrics, Tables, VariantSummary
from bert_jax.interchange.loading import load
from bert_jax.metric_names import lower_is_better
from bert_jax.recipes import key_names, recipes, trees
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.reporting.error_bars import Figure
from bert_jax.reporting.formats import is_number
from bert_jax.runs.finetuning import Finetuning, Splits
from bert_jax.runs.inputs import read_initial
from bert_jax.runs.prepared import Request
from bert_jax.runs.run import finetune
from bert_jax.storage import files
from bert_jax.workdir.run_record import only_writer

# The keys of ``vary`` for the model to start from and for the recipe's argument; all others are config keys.
_INIT, _VARIANT = "init", "variant"
# Groups of keys that change nothing in how examples are read and encoded.
_OF_OPTIMIZATION = ("optimizer", "schedule", "selection", "checkpoints", "training", "loader", "export", "weights")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The flags of ``bert-jax sweep``.

    Attributes:
      vary: a config key (without ``config.``), or ``init`` or ``variant`` -> its values as text, in the table's order.
      choose: keys of ``vary``. For each combination of the other keys, the table has only the best values of these.
    """

    recipe: str
    overrides: Sequence[str]
    vary: Mapping[str, tuple[str, ...]]
    seeds: tuple[int, ...]
    workdir: str
    data: str = "."
    init: str | None = None
    choose: tuple[str, ...] = ()
    command: str = ""
    over: str = ""  # the key of ``vary`` that makes the x axis of the picture


class _Common(NamedTuple):
    """The facts that all runs share; recorded as a list."""

    data: str
    init: str | None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The scores of one combination of values, over all seeds."""

    values: Mapping[str, str]
    scores: tuple[float, ...]  # a score per seed

    @property
    def name(self) -> str:
        return _name(self.values)

    @property
    def median(self) -> float:
        return statistics.median(self.scores)


def sweep(request: Sweep) -> list[Outcome]:
    """Run the combinations that are not done yet; write their tables and pictures; report the best by the dev score.

    Returns:
      The combinations in the table. For each key in ``choose``, the table keeps only the best value.

    Raises:
      UserError: unknown keys or values in any combination, or a folder of the workdir that holds another run; raised
        before the first run.
    """
    combinations = {name: _load(request, values) for name, values in _combinations(request).items()}
    metric, common = _metric([one.settings for one in combinations.values()]), _Common(request.data, request.init)
    over = _over(request, combinations)
    cells = [
        Cell(_folder(one.values, seed), {"seed": seed, "config": one.config, **one.values}, common, "fine-tuning")
        for seed in request.seeds
        for one in combinations.values()
    ]
    typed = (*recipes.typed_keys(request.overrides), *request.vary)
    with only_writer(request.workdir):

        def run(cell: Cell, workdir: str) -> Metrics:
            config = {**cell.overrides["config"], "seed": cell.overrides["seed"]}
            init = _init(request, cell.overrides)
            metrics = finetune(config, Request(workdir, request.command, init, data=request.data, typed_keys=typed))
            return {metric: metrics[metric], **metrics}  # puts the main metric first

        grid, root = Grid(cells, request.workdir), files.as_path(request.workdir)
        new = {
            name: one
            for name, one in combinations.items()
            if not all((root / _folder(one.values, seed) / RESULTS).exists() for seed in request.seeds)
        }
        _check(request, new, typed)
        metrics_of = grid.run(run)
    outcomes = [
        Outcome(one.values, tuple(metrics_of[_folder(one.values, seed)][metric] for seed in request.seeds))
        for one in combinations.values()
    ]
    kept = _best_of(outcomes, request.choose, metric)
    print(_write(request, outcomes, kept, metric, over), flush=True)
    return kept


class _Combination(NamedTuple):
    """A combination of values with its recipe: the given config and its typed settings."""

    values: Mapping[str, str]
    config: dict[str, Any]
    settings: FinetuningSettings


def _load(request: Sweep, values: Mapping[str, str]) -> _Combination:
    recipe, changes = request.recipe, [f"--config.{k}={v}" for k, v in values.items() if k not in (_INIT, _VARIANT)]
    if _VARIANT in values and ":" in recipe.replace("://", ""):
        raise UserError(f"--config={recipe} names a variant; give the file alone, and --vary={_VARIANT}=A,B")
    recipe += f":{values[_VARIANT]}" if _VARIANT in values else ""
    config = recipes.load(recipe, [*request.overrides, *changes]).to_dict()
    return _Combination(values, config, FinetuningSettings.of(config))


def _init(request: Sweep, values: Mapping[str, Any]) -> str | None:
    init = values.get(_INIT, request.init)
    return None if init in ("", "none") else init


def _check(request: Sweep, combinations: Mapping[str, _Combination], typed: tuple[str, ...]) -> None:
    """Raise ``UserError`` if a run could not begin. Each model, its examples and their labels are read and checked.

    Examples are encoded once for all combinations that differ only in how they are optimized.

    ``typed``: the keys of the config that the user gave.
    """
    read, encoded, read_once = dict[str, dict[str, Splits]](), set[str](), functools.cache(load)
    for name, (values, config, settings) in combinations.items():
        init, data = _init(request, values), {**config.get("data", {}), "train_fraction": 1.0}
        files_of = json.dumps([config.get("task"), config.get("tasks"), data], default=str)
        rows_of = json.dumps([init, {k: v for k, v in config.items() if k not in _OF_OPTIMIZATION}], default=str)
        try:
            initial = read_initial(settings.vocab, typed, init, read_once) if init else None
            checked = Finetuning(settings, initial)
            if files_of not in read:
                read[files_of] = checked.load(request.data, lambda _: None)
            if rows_of not in encoded:
                task, _ = checked.with_examples(read[files_of])
                check_labels(task, settings, read[files_of])
                encoded.add(rows_of)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error


def _best_of(outcomes: Sequence[Outcome], choose: Sequence[str], metric: str) -> list[Outcome]:
    """Return the best outcome, by the median score, of each group of outcomes that differ only in the keys ``choose``.

    If several outcomes are equally good, the first is taken.
    """
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        key = tuple(value for name, value in outcome.values.items() if name not in choose)
        groups.setdefault(key, []).append(outcome)
    best = min if lower_is_better(metric) else max
    return [best(group, key=lambda outcome: outcome.median) for group in groups.values()]


def _combinations(request: Sweep) -> dict[str, dict[str, str]]:
    """Return a dict: name -> values. Raises ``UserError`` if a flag has no value, or a value twice."""
    for what, values in (*request.vary.items(), ("--seeds", request.seeds)):
        if not values or "" in values or len({_same(value) for value in values}) < len(values):
            raise UserError(f"{what} is {','.join(map(str, values))!r}; give at least one value, each once")
    if "seed" in request.vary:
        raise UserError("--vary=seed: seeds are given by --seeds=0,1,2, and each trains the whole grid")
    unknown = set(request.choose) - set(request.vary)
    if unknown:
        raise UserError(f"--choose names {', '.join(sorted(unknown))}; what varies is {', '.join(request.vary)}")
    for key, values in request.vary.items():
        if len(names := {_name({key: value}) for value in values}) < len(values):
            raise UserError(
                f"{key} is {','.join(values)!r}, of which the last folder names a run, and several would be "
                f"{' and '.join(sorted(names))}; name folders that end differently, such as the workdirs of models"
            )
    every = [dict(zip(request.vary, values, strict=True)) for values in itertools.product(*request.vary.values())]
    named = [(_name(values), values) for values in every]
    if len(dict(named)) < len(named):
        twice, _ = Counter(name for name, _ in named).most_common(1)[0]
        raise UserError(f"two combinations of --vary would both be called {twice!r}; vary them one after another")
    return dict(named)


def _same(value: Any) -> Any:
    """Return a value that is equal for equal numbers, such as ``0.1`` and ``0.10``."""
    number = trees.literal(str(value))
    return float(number) if is_number(number) else value


def _metric(every: Sequence[FinetuningSettings]) -> str:
    """Return the metric by which runs are compared: the metric that the recipe selects, else the task's main metric."""
    names = set()
    for settings in every:
        settings.experiment.check()
        names.add(settings.main_metric)
    if len(names) > 1:
        raise UserError(f"the runs have several scores, {', '.join(sorted(names))}; set config.selection.metric")
    return str(names.pop())


def _name(values: Mapping[str, str]) -> str:
    """Return a name that can be a folder, such as ``learning_rate=2e-5+num_epochs=3``."""
    parts = (f"{key.rpartition('.')[2]}={value.rstrip('/').rpartition('/')[2]}" for key, value in values.items())
    return "+".join(parts) or "run"


def _folder(values: Mapping[str, str], seed: int) -> str:
    return f"{_name(values)}-seed{seed}" if values else f"seed{seed}"


def _doubt(best: Outcome, others: Sequence[Outcome]) -> str:
    """Return the end of a sentence that says why the best outcome may not be better than others; "" if it is better."""
    rows = compare({one.name: one.scores for one in (best, *others)})[1:]
    if any(row.beyond_noise is None for row in rows):
        return "; one seed each cannot tell small differences from chance (--seeds=0,1,2)"
    near = [row.variant for row in rows if not row.beyond_noise]
    return f"; within the noise of the seeds: {', '.join(near)}" if near else ""


def _over(request: Sweep, combinations: Mapping[str, _Combination]) -> pictures.Over | None:
    """Return the x axis of the picture, with the place of each combination; None if bars are drawn.

    Without ``--over``, the last key that varies makes the axis if it has at least three values, all of them numbers.

    Raises ``UserError`` if ``--over`` names a key that does not vary, or that has a value which is no number.
    """
    compared, config = _compared_keys(request), next(iter(combinations.values())).config
    keys = [key for key in compared if key not in (_INIT, _VARIANT)]
    if request.over:
        wanted = key_names.full(request.over, config)
        found = [key for key in keys if key_names.full(key, config) == wanted]
        if not found:
            raise UserError(
                f"--over={request.over} is none of the config keys that the table compares: "
                f"{', '.join(keys) or 'there are none'}; name one of these, or leave --over out"
            )
    else:
        found = [key for key in keys if key == compared[-1] and len(request.vary[key]) > 2]
        found = [key for key in found if all(is_number(trees.literal(value)) for value in request.vary[key])]
    if not found:
        return None
    values = {name: trees.literal(one.values[found[0]]) for name, one in combinations.items()}
    return pictures.over_numbers(found[0], values)


def _compared_keys(request: Sweep) -> list[str]:
    return [key for key, values in request.vary.items() if len(values) > 1 and key not in request.choose]


def _compare_values(
    request: Sweep, kept: Sequence[Outcome], metric: str, over: pictures.Over | None = None
) -> tuple[list[output.Block], Tables, list[Figure]]:
    """Return blocks with the tables that compare values, these tables, and their figures.

    A table has the values of the last key for one combination of the other keys; with ``over``, the combinations of the
    other keys for one value of ``over``.
    """
    keys, better = _compared_keys(request), f"{'lower' if lower_is_better(metric) else 'higher'} is better"
    at = [] if len(keys) < 2 else [over.key] if over else keys[:-1]
    groups: dict[str, dict[str, Outcome]] = {}
    for outcome in kept:
        group = _name({key: outcome.values[key] for key in at}) if at else metric
        groups.setdefault(group, {})[_name({key: outcome.values[key] for key in keys if key not in at})] = outcome
    tables = {group: compare({name: o.scores for name, o in every.items()}) for group, every in groups.items()}
    if not over:
        figures = [
            pictures.figure_of(f"{metric} at {group}" if at else metric, better, {"": [(0.0, row) for row in rows]})
            for group, rows in tables.items()
        ]
    else:
        curves: dict[str, list[tuple[float, VariantSummary]]] = {}
        for group, rows in tables.items():
            for row in rows:
                point = over.values[groups[group][row.variant].name], row
                curves.setdefault(row.variant if at else metric, []).append(point)
        ordered = {name: sorted(points, key=lambda point: point[0]) for name, points in curves.items()}
        figures = [pictures.figure_of(metric, better, ordered, over.key)]
    head, lines = output.differences(tables)
    if not lines:
        return [], tables, figures
    blocks: list[output.Block] = [f"## Compared with {tables[next(iter(tables))][0].variant}"]
    blocks += [output.overview(tables, {}), output.SPREAD] if at else []
    blocks += [(("at" if at else "metric", *head[1:]), lines), output.NOTE]
    return blocks, tables, figures


def _write(
    request: Sweep, outcomes: Sequence[Outcome], kept: Sequence[Outcome], metric: str, over: pictures.Over | None
) -> str:
    """Write the tables and pictures; return the text for the terminal."""
    top = min if lower_is_better(metric) else max
    [best] = _best_of(outcomes, list(request.vary), metric)
    seed = request.seeds[best.scores.index(top(best.scores))]
    folder = _folder(best.values, seed)
    head, rows = (*request.vary, "seeds", f"median {metric}", "mean", "spread", "best"), list[tuple[str, ...]]()
    for outcome in kept:
        spread = f"{statistics.stdev(outcome.scores):.4f}" if len(outcome.scores) > 1 else ""
        figures = (f"{outcome.median:.4f}", f"{statistics.fmean(outcome.scores):.4f}", spread)
        rows.append((*outcome.values.values(), str(len(outcome.scores)), *figures, f"{top(outcome.scores):.4f}"))
    winner = f"best by the median {metric}: {best.name}; its best seed is {seed}, in {request.workdir}/{folder}"
    winner += _doubt(best, [outcome for outcome in outcomes if outcome is not best])
    compared, tables, drawn = _compare_values(request, kept, metric, over)
    data = {
        "metric": metric,
        "command": request.command,
        "outcomes": [
            {"values": dict(o.values), "seeds": list(request.seeds), "scores": list(o.scores), "kept": o in kept}
            for o in outcomes
        ],
        "best": {"values": dict(best.values), "seed": seed, "workdir": folder},
        "compared": output.as_data(tables),
    }
    blocks = [f"# {request.recipe}", (head, rows), winner, *compared]
    return output.write(request.workdir, blocks, data, drawn, drawn)
