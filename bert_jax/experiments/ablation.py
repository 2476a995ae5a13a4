"""Pretrains variants of a recipe with several seeds on the same text, and writes tables that compare the variants."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax import configuration
from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.corpora.mixture import Mixture
from bert_jax.errors import UserError, few
from bert_jax.examples.load import load as load_examples
from bert_jax.examples.splits import train_split
from bert_jax.experiments import output
from bert_jax.experiments.columns import Variant, by_metric, columns_of, task_of
from bert_jax.experiments.compare import compare
from bert_jax.experiments.finetunings import check_labels
from bert_jax.experiments.grid import RESULTS, Grid
from bert_jax.experiments.heldout_rows import HeldoutRows, plain
from bert_jax.experiments.nouns import OWN, SAME_ROWS, Cell, Metrics, Tables
from bert_jax.experiments.pictures import Over, of_metrics, over_numbers
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import ModelConfig
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.parts.own_code import at
from bert_jax.recipes import key_names, recipes
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.reporting.formats import figure
from bert_jax.reporting.loggers.base import flatten
from bert_jax.reporting.measures import known_baselines
from bert_jax.runs.finetuning import Splits
from bert_jax.runs.inputs import CORPUS, Inputs
from bert_jax.runs.prepare import prepare
from bert_jax.runs.prepared import Request
from bert_jax.runs.pretraining import Pretraining
from bert_jax.runs.run import finetune, pretrain
from bert_jax.storage import files, reading
from bert_jax.tasks.base import KIND
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.state import metric_names
from bert_jax.workdir.run_record import only_writer

_INPUTS = "inputs"  # folder of the vocabulary and corpus that all runs share
_BILSTM = "+bilstm"  # suffix of a variant: a two-layer BiLSTM is added in fine-tuning (paper, section 5.1)


@dataclasses.dataclass(frozen=True)
class Ablation:
    """The flags of ``bert-jax ablate``. Each variant is loaded as ``recipe:variant``."""

    recipe: str
    overrides: Sequence[str]
    variants: tuple[str, ...]  # all others are compared with the first
    seeds: tuple[int, ...]
    workdir: str
    command: str = ""
    # recipes with which every pretrained model is fine-tuned, each with ``--config.key=value`` after it if wanted
    finetune: tuple[str, ...] = ()
    data: str = "."  # the folder of the labelled examples for ``finetune``
    steps: tuple[int, ...] = ()  # the saved steps that are fine-tuned; (): the model that a run ends with
    over: str = ""  # the key of the variants' configs that is the x axis of the pictures

    @property
    def pretrained(self) -> tuple[str, ...]:
        """The variants that are pretrained.

        ``x+bilstm`` is not among them: it is fine-tuned from the pretrained ``x``.
        """
        return tuple(dict.fromkeys(name.removesuffix(_BILSTM) for name in self.variants))


def ablate(ablation: Ablation) -> Tables:
    """Run the experiments that are not done yet; write and return a table for each metric.

    The files are ``table.md``, ``table.json``, ``report.html`` and ``picture.svg``. The metrics ``mlm_loss`` and
    ``mlm_accuracy`` of all bidirectional variants are computed on the same rows, the masked held-out rows of the first
    variant. ``own_mlm_loss`` and ``own_mlm_accuracy`` are a variant's own term ``mlm``, on its own held-out rows.

    Raises:
      UserError: any error of ``pretrain`` in a variant's recipe, or a folder of the workdir that holds another run;
        where possible it is raised before the first run.
    """
    configs = _configs(ablation)
    checked = {name: _checked(name, config) for name, config in configs.items()}
    settings = {name: one.settings for name, one in checked.items()}
    rows = {name: HeldoutRows.of(one.experiment, _evaluated(one)) for name, one in checked.items()}
    variants = {name: _variant(settings[name], one, rows[name]) for name, one in checked.items()}
    reference = rows[ablation.pretrained[0]]
    _check_text(settings)
    _check_positions(checked)
    over = _over(ablation, configs)
    tunings = _tunings(ablation, [one.task.setting.model for one in checked.values()])
    tasks = {f"{name}{at}": one.config for at in _at(ablation) for name, one in tunings.items()}
    main = {f"{name}{at}": str(one.settings.main_metric) for at in _at(ablation) for name, one in tunings.items()}
    cells = _cells(ablation, settings, reference, tasks)
    pretrained = cells[: len(ablation.seeds) * len(settings)]
    _check_steps(ablation, checked, pretrained)
    with only_writer(ablation.workdir):
        grid = Grid(cells, ablation.workdir)
        tokenizer, corpus, paths = _inputs(ablation, settings[ablation.pretrained[0]], variants, pretrained)
        _check_finetunings(ablation, tunings, checked, tokenizer)
        tunings.clear()  # the examples need not stay in memory

        def run(cell: Cell, workdir: str) -> Metrics:
            if "task" in cell.overrides:
                metric, metrics = main[cell.overrides["task"]], _finetune(ablation, cell, workdir)
                return {metric: metrics[metric], **metrics}  # puts the main metric first
            config = configs[cell.overrides["variant"]]
            config = configuration.complete({"seed": cell.overrides["seed"], **paths}, config)
            own = pretrain(config, Request(workdir=workdir, command=ablation.command))
            return reference.metrics_of_run(own, corpus, tokenizer, workdir)

        results = grid.run(run)
    runs: dict[str, list[Metrics]] = {name: [] for name in ablation.variants}
    for seed in ablation.seeds:
        for name, of_seeds in runs.items():
            scores = dict(results[f"{name.removesuffix(_BILSTM)}-seed{seed}"]) if name in settings else {}
            for task in tasks:
                tuned = results[f"{task}-{name}-seed{seed}"]
                scores |= {f"{task}/{metric}": value for metric, value in tuned.items()}
            of_seeds.append(scores)
    tables, text = _write(ablation, runs, variants, main, over)
    print(text, flush=True)
    return tables


def _checked(name: str, config: Mapping[str, Any]) -> Pretraining:
    """Return the checked recipe of a variant.

    Its model and its loss are traced (nothing is computed), so that errors in a user's own code are found now.
    """
    try:
        recipe = prepare(PretrainingSettings.of(config))
        metric_names(recipe.task)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    except Exception as error:
        error.add_note(f"in the variant {name}")
        raise
    return recipe


def _evaluated(recipe: Pretraining) -> PretrainingObjective:
    """Return the objective of the phase whose held-out rows are evaluated."""
    return recipe.task.of(recipe.experiment.evaluated_phase.kind)


def _variant(settings: PretrainingSettings, recipe: Pretraining, rows: HeldoutRows) -> Variant:
    """Return what the metrics of a variant depend on."""
    changes = {phase.kind: phase.changes for phase in recipe.experiment.phases.phases}
    return Variant(_evaluated(recipe), rows.deciding, plain([dict(settings.objective), changes]))


def _over(ablation: Ablation, configs: Mapping[str, Mapping[str, Any]]) -> Over | None:
    """Return the x axis of the pictures, with the place of each variant; None if bars are drawn.

    Raises ``UserError`` for a key that is no number in a variant, or that puts two variants at one place of a curve.
    """
    if not (key := ablation.over):
        return None
    of_variants = {name: configs[name.removesuffix(_BILSTM)] for name in ablation.variants}
    values = {name: at(config, key_names.full(key, config)) for name, config in of_variants.items()}
    if all(value is None for value in values.values()):
        known = sorted({one for config in configs.values() for one in flatten(config)})
        close = "".join(f"; did you mean {one!r}?" for one in difflib.get_close_matches(key, known, n=1))
        raise UserError(f"--over={key} is a key that no variant sets{close}")
    over = over_numbers(key, values)
    over.check_curves()
    return over


def _cells(
    ablation: Ablation,
    settings: Mapping[str, PretrainingSettings],
    evaluation: HeldoutRows,
    tasks: Mapping[str, dict[str, Any]],
) -> list[Cell]:
    """Return the runs of pretraining, then the runs of fine-tuning every pretrained model on every task."""
    origins = {
        (name, seed): {"variant": name, "seed": seed, "recipe": plain(settings[name].identity())}
        for seed in ablation.seeds
        for name in ablation.pretrained
    }
    cells = [
        Cell(f"{name}-seed{seed}", facts, evaluation.record, "pretraining") for (name, seed), facts in origins.items()
    ]
    for task, config in tasks.items():
        for seed in ablation.seeds:
            for name in ablation.variants:
                own = {**config, "seed": seed, "export": False} | (
                    {"bilstm_layers": 2} if name.endswith(_BILSTM) else {}
                )
                facts = {"task": task, "variant": name, "seed": seed, "config": own, "data": ablation.data}
                facts["origin"] = origins[name.removesuffix(_BILSTM), seed]
                cells.append(Cell(f"{task}-{name}-seed{seed}", facts, None, "fine-tuning"))
    return cells


def _at(ablation: Ablation) -> Sequence[str]:
    """Return what follows the name of a recipe of ``finetune``: ``@STEP`` for each step; "" without steps."""
    return [f"@{step}" for step in ablation.steps] or [""]


def _check_steps(ablation: Ablation, checked: Mapping[str, Pretraining], cells: Sequence[Cell]) -> None:
    """Raise ``UserError`` if a run in ``cells`` has not kept, or would not keep, a step that is to be fine-tuned."""
    for cell in cells if ablation.steps else ():
        place, experiment = files.as_path(ablation.workdir) / cell.name, checked[cell.overrides["variant"]].experiment
        kept = saved_steps(str(place))
        if not (place / RESULTS).exists() and experiment.phases.in_epochs:
            raise UserError(
                f"{cell.name} has phases in epochs, of which no step is known; give num_steps or num_tokens"
            )
        if not (place / RESULTS).exists():
            last, every, there = experiment.phases.num_steps, experiment.save_every_steps, max(kept, default=0)
            planned = experiment.checkpoints.steps_to_keep(sorted({*range(every, last + 1, every), last}))
            kept = [*kept, *(step for step in planned if step > there)]
        if missing := [str(step) for step in ablation.steps if step not in kept]:
            each = math.gcd(*ablation.steps)
            raise UserError(
                f"--finetune_steps has {few(missing)}, not kept by {cell.name}, which keeps "
                f"{few([*map(str, kept)]) or 'none'}; to keep such "
                f"steps of new runs: --config.checkpoints.every_steps={each} "
                f"--config.checkpoints.keep_every_steps={each}"
            )


def _configs(ablation: Ablation) -> dict[str, dict[str, Any]]:
    if ":" in ablation.recipe.replace("://", ""):
        raise UserError(f"--config={ablation.recipe} names a variant; give the file alone, and --variants")
    given = {"--variants": ablation.variants, "--seeds": ablation.seeds}
    for what, values in (given | ({"--finetune_steps": ablation.steps} if ablation.steps else {})).items():
        if not values or len(set(values)) < len(values):
            raise UserError(f"{what} is {','.join(map(str, values))!r}; give at least one, each once")
    if min(ablation.steps, default=1) < 1:
        raise UserError(f"--finetune_steps has {min(ablation.steps)}; steps that are saved are 1 and more")
    if ablation.steps and not ablation.finetune:
        raise UserError("--finetune_steps are fine-tuned by a recipe; give --finetune=RECIPE")
    if not ablation.finetune and ablation.pretrained != ablation.variants:
        raise UserError(f"--variants with {_BILSTM} differ only in fine-tuning; give --finetune=RECIPE")
    names = ablation.pretrained
    return {name: recipes.load(f"{ablation.recipe}:{name}", ablation.overrides).to_dict() for name in names}


class _Tuning(NamedTuple):
    """A recipe with which all pretrained models are fine-tuned, and its examples (all of train)."""

    text: str  # what the user gave, such as ``glue:sst2 --epochs=1``
    config: dict[str, Any]
    settings: FinetuningSettings
    every: Mapping[str, Splits]


def _tunings(ablation: Ablation, models: Sequence[ModelConfig]) -> dict[str, _Tuning]:
    """Return the recipes of ``--finetune`` by their short names, which begin the names of their runs and metrics.

    Raises ``UserError`` if a recipe or its examples are wrong, its rows are too long for one of ``models``, or two
    recipes have one name.
    """
    tunings: dict[str, _Tuning] = {}
    for text in ablation.finetune:
        recipe, *flags = re.split(r"\s+(?=--)", text.strip())
        overrides = [re.sub(r"^--(?!config\.)", "--config.", flag) for flag in flags]
        name = re.sub(r"\.py$|\.json$", "", re.split(r"[/:]", recipe)[-1])
        if name in tunings:
            raise UserError(
                f"--finetune has {tunings[name].text!r} and {text!r}, whose runs would have one name, {name!r}; "
                "leave one out, rename its file, or compare settings of one model with bert-jax sweep --init"
            )
        config = recipes.load(recipes.in_folder(recipe, "finetune"), overrides).to_dict()
        try:
            settings = FinetuningSettings.of(config)
            every: dict[str, Splits] = {
                task: load_examples(one.data, ablation.data, one.typed[0].roles, lambda _: None)
                for task, one in settings.each.items()
            }
            for splits in every.values():
                train_split(splits)  # raises unless there is one
            for model in models:
                model.check_lengths({f"config.phases.{KIND}.max_length": settings.phase.max_length})
        except UserError as error:
            raise UserError(f"{text}: {error}") from error
        tunings[name] = _Tuning(text, config, settings, every)
    return tunings


def _check_finetunings(
    ablation: Ablation,
    tunings: Mapping[str, _Tuning],
    checked: Mapping[str, Pretraining],
    tokenizer: Tokenizer,
) -> None:
    """Raise ``UserError`` if a fine-tuning could not begin; pretraining takes long.

    The examples are encoded for the first model alone; of the others only the lengths are checked.
    """
    models = [one.task.setting.model for one in checked.values()]
    bilstm = any(name.endswith(_BILSTM) for name in ablation.variants)
    for text, _, settings, every in tunings.values():
        settings = dataclasses.replace(settings, bilstm_layers=2) if bilstm else settings
        try:
            first, *_ = [prepare(settings, TrainedModel("", {}, model, tokenizer)) for model in models]
            task, _ = first.with_examples(every)
            check_labels(task, {name: one.data for name, one in settings.each.items()}, every)
        except UserError as error:
            raise UserError(f"{text}: {error}") from error


def _finetune(ablation: Ablation, cell: Cell, workdir: str) -> Metrics:
    variant, seed = cell.overrides["variant"], cell.overrides["seed"]
    init = str(files.as_path(ablation.workdir) / f"{variant.removesuffix(_BILSTM)}-seed{seed}")
    init += "".join(cell.overrides["task"].partition("@")[1:])
    request = Request(workdir, ablation.command, init, data=ablation.data)
    return finetune(cell.overrides["config"], request)


def _check_positions(checked: Mapping[str, Pretraining]) -> None:
    """Raise ``UserError`` if a variant cannot read the first one's held-out rows, on which all are compared."""
    first, *others = checked
    length = checked[first].experiment.evaluated_phase.max_length
    for name in others:
        if not (model := checked[name].task.setting.model).causal:
            model.check_lengths({f"the held-out rows of {first}, on which {name} is judged too": length})


def _check_text(settings: Mapping[str, PretrainingSettings]) -> None:
    name, *others = settings
    for other in others:
        for group in ("vocab", "corpus"):
            mine, theirs = (dataclasses.asdict(getattr(settings[n], group)) for n in (name, other))
            if differing := configuration.differences(mine, theirs, f"config.{group}"):
                raise UserError(
                    f"all variants must read one text, and {other} reads another than {name}: {'; '.join(differing)}; "
                    "make two ablations of it"
                )


def _inputs(
    ablation: Ablation,
    settings: PretrainingSettings,
    variants: Mapping[str, Variant],
    cells: Sequence[Cell],
) -> tuple[Tokenizer, Mixture, dict[str, dict[str, str]]]:
    """Make the vocabulary and the corpus that all runs share; return both, and config entries with their paths."""
    root = files.as_path(ablation.workdir)
    bound = any(saved_steps(str(root / cell.name)) for cell in cells if (root / cell.name).exists())
    folder = root / _INPUTS
    folder.mkdir(parents=True, exist_ok=True)
    units = tuple(dict.fromkeys(unit for variant in variants.values() for unit in variant.task.units))
    inputs = Inputs(str(folder), settings.vocab, settings.corpus, None, bound, settings.private, units)
    inputs.check()
    tokenizer, corpus = inputs.open(lambda line: print(line, flush=True))
    place = settings.corpus.path or str(folder / CORPUS)
    return tokenizer, corpus, {"vocab": {"path": str(tokenizers.find(str(folder)))}, "corpus": {"path": place}}


def _write(
    ablation: Ablation,
    runs: Mapping[str, Sequence[Metrics]],
    variants: Mapping[str, Variant],
    tasks: Mapping[str, str],
    over: Over | None = None,
) -> tuple[Tables, str]:
    """Write the tables and pictures; return the tables, and the text to show on the terminal.

    Args:
      runs: variant -> the metrics of each seed.
      variants: the variants that were pretrained.
      tasks: the names of fine-tunings, with which the names of their metrics begin -> the main metric of each.
      over: the place of each variant along x in the pictures.
    """
    seeds, scores = ablation.seeds, by_metric(runs)
    columns = columns_of(scores, variants, tasks)
    for metric, column in columns.items():
        baselines = _baselines(ablation, metric, scores[metric], variants, tasks)
        columns[metric] = dataclasses.replace(column, baselines=baselines)
    references = over.references if over else None
    tables = {metric: compare(scores[metric], column.measures, references) for metric, column in columns.items()}
    lines = {metric: column.line for metric, column in columns.items()}
    to_beat = {
        metric: ", ".join(f"{name} {figure(value)}" for name, value in column.baselines.items())
        for metric, column in columns.items()
        if column.baselines
    }
    blocks: list[output.Block] = [
        f"# {', '.join(runs)}: {len(seeds)} seed{'s' * (len(seeds) > 1)}",
        output.overview(tables, to_beat),
        output.SPREAD + (" The last line has what is reached without learning." if to_beat else ""),
        lines,
    ]
    if (compared := output.differences(tables))[1]:
        heading = "## Differences" + ("" if references else f" from {next(iter(runs))}")
        blocks += [heading, compared, output.NOTE]
    record = {"variants": tuple(runs), "seeds": seeds, "command": ablation.command, "metrics": output.as_data(tables)}
    record["scores"] = {metric: scores[metric] for metric in columns}  # of each variant, in the order of the seeds
    record |= {"columns": lines, "without_learning": to_beat}
    if over:
        record["over"] = {over.key: over.values}
    figures = of_metrics(tables, columns, over)
    main = {SAME_ROWS[0], *(f"{task.partition('@')[0]}/{metric}" for task, metric in tasks.items())}
    shown = [one for one in figures if one.title in main and len(one.marks) > 1]
    return tables, output.write(ablation.workdir, blocks, record, figures, shown or figures)


def _baselines(
    ablation: Ablation, metric: str, having: Collection[str], variants: Mapping[str, Variant], tasks: Collection[str]
) -> dict[str, float]:
    """Return what ``metric`` is without learning, by name: the mean over the runs of the first variant that has it.

    ``mlm_loss`` is computed on the rows of the first variant with its own seed, so only that run's baselines count.
    """
    variant, first, task = next(iter(having)), next(iter(variants)), task_of(metric, tasks)
    if metric.startswith(OWN) or (metric in SAME_ROWS and variant != first):
        return {}
    seeds, own_seed = ablation.seeds, variants[first].rows["seed"]
    if metric in SAME_ROWS and own_seed in seeds:
        seeds = (own_seed,)
    known: dict[str, list[float]] = {}
    for seed in seeds:
        folder = files.as_path(ablation.workdir) / f"{f'{task}-' if task else ''}{variant}-seed{seed}"
        baselines = reading.read_object(folder / "baselines.json") or {}
        for name, value in known_baselines(metric.removeprefix(f"{task}/"), baselines):
            known.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in known.items()}
