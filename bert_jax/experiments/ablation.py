"""Pretrains variants of a recipe with several seeds on the same text, and writes tables that compare the variants."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax import configuration
from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.checkpoints.revisions import steps_at
from bert_jax.corpora.mixture import Mixture
from bert_jax.errors import UserError, few
from bert_jax.examples.load import load as load_examples
from bert_jax.examples.splits import train_split
from bert_jax.experiments.ablation_table import Results, Variant, cell_name, write_tables
from bert_jax.experiments.finetunings import check_labels
from bert_jax.experiments.grid import RESULTS, Grid
from bert_jax.experiments.heldout_rows import HeldoutRows, plain
from bert_jax.experiments.nouns import Cell, Metrics, Tables
from bert_jax.experiments.pictures import Over, over_numbers
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import ModelConfig
from bert_jax.parts.own_code import at
from bert_jax.recipes import key_names, recipes
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.reporting.loggers.base import flatten
from bert_jax.rows.units import WORD
from bert_jax.runs.finetuning import Finetuning, Splits
from bert_jax.runs.inputs import CORPUS, Inputs
from bert_jax.runs.prepared import Request
from bert_jax.runs.pretraining import Pretraining
from bert_jax.runs.run import finetune, pretrain
from bert_jax.storage import files
from bert_jax.tasks.base import KIND
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.state import step_metrics
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
    over: str = ""  # the key of the variants' configs that makes the x axis of the pictures

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
    _check_flags(ablation)
    pretrained = {name: _load(ablation, name) for name in ablation.pretrained}
    variants = {name: one.variant for name, one in pretrained.items()}
    rows = variants[ablation.pretrained[0]].rows
    _check_text(pretrained)
    _check_positions(pretrained)
    over = _over(ablation, pretrained)
    tunings, examples = _tunings(ablation, pretrained)
    cells = _pretraining_cells(ablation, pretrained, rows)
    _check_steps(ablation, pretrained, cells)
    with only_writer(ablation.workdir):
        grid = Grid([*cells, *_tuning_cells(ablation, tunings, cells)], ablation.workdir)
        tokenizer, corpus, paths = _inputs(ablation, pretrained, cells)
        _check_finetunings(ablation, tunings, examples, pretrained, tokenizer)
        del examples  # they need not stay in memory

        def run(cell: Cell, workdir: str) -> Metrics:
            if task := cell.overrides.get("task"):
                main, found = tunings[task].main_metric, _finetune(ablation, cell, workdir)
                return {main: found[main], **found}  # puts the main metric first
            config = pretrained[cell.overrides["variant"]].config
            config = configuration.complete({"seed": cell.overrides["seed"], **paths}, config)
            own = pretrain(config, Request(workdir=workdir, command=ablation.command))
            return rows.metrics_of_run(own, corpus, tokenizer, workdir)

        metrics = grid.run(run)
    tasks = {task: one.main_metric for task, one in tunings.items()}
    results = Results(ablation.workdir, ablation.variants, ablation.seeds, metrics, variants, tasks)
    tables, text = write_tables(results, ablation.command, over)
    print(text, flush=True)
    return tables


def _check_flags(ablation: Ablation) -> None:
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


class _Recipe(NamedTuple):
    """The recipe of a variant: the given config, its typed settings, and the checked run."""

    config: dict[str, Any]
    settings: PretrainingSettings
    checked: Pretraining

    @property
    def model(self) -> ModelConfig:
        return self.checked.task.setting.model

    @property
    def variant(self) -> Variant:
        task, experiment = self.checked.task, self.checked.experiment
        objective = task.of(experiment.evaluated_phase.kind)
        changes = {phase.kind: phase.changes for phase in experiment.phases.phases}
        keys = plain([dict(self.settings.objective), changes])
        return Variant(objective, HeldoutRows.of(experiment, objective), keys)


def _load(ablation: Ablation, variant: str) -> _Recipe:
    """Return the recipe of a variant.

    Its model and its loss are traced (nothing is computed), so that errors in the code of a user are found now.
    """
    config = recipes.load(f"{ablation.recipe}:{variant}", ablation.overrides).to_dict()
    try:
        checked = Pretraining(PretrainingSettings.of(config))
        step_metrics(checked.task)
    except UserError as error:
        raise UserError(f"{variant}: {error}") from error
    except Exception as error:
        error.add_note(f"in the variant {variant}")
        raise
    return _Recipe(config, checked.settings, checked)


def _check_text(pretrained: Mapping[str, _Recipe]) -> None:
    name, *others = pretrained
    for other in others:
        for group in ("vocab", "corpus"):
            mine, theirs = (dataclasses.asdict(getattr(pretrained[n].settings, group)) for n in (name, other))
            if differing := configuration.differences(mine, theirs, f"config.{group}"):
                raise UserError(
                    f"all variants must read one text, and {other} reads another than {name}: {'; '.join(differing)}; "
                    "make two ablations of it"
                )


def _check_positions(pretrained: Mapping[str, _Recipe]) -> None:
    """Raise ``UserError`` if a variant cannot read the held-out rows of the first variant, which all must read."""
    first, *others = pretrained
    length = pretrained[first].checked.experiment.evaluated_phase.max_length
    for name in others:
        if (model := pretrained[name].model).reads == "both sides":
            model.check_lengths({f"the held-out rows of {first}, on which {name} is judged too": length})


def _over(ablation: Ablation, pretrained: Mapping[str, _Recipe]) -> Over | None:
    """Return the x axis of the pictures, with the place of each variant; None if bars are drawn.

    Raises ``UserError`` if a variant has no number for the key, or two variants would stand at one place of a curve.
    """
    if not (key := ablation.over):
        return None
    configs = {name: pretrained[name.removesuffix(_BILSTM)].config for name in ablation.variants}
    values = {name: at(config, key_names.full(key, config)) for name, config in configs.items()}
    if all(value is None for value in values.values()):
        known = sorted({one for config in configs.values() for one in flatten(config)})
        close = "".join(f"; did you mean {one!r}?" for one in difflib.get_close_matches(key, known, n=1))
        raise UserError(f"--over={key} is a key that no variant sets{close}")
    over = over_numbers(key, values)
    over.check_curves()
    return over


class _Tuning(NamedTuple):
    """A recipe with which all pretrained models are fine-tuned."""

    text: str  # the value of the flag, such as ``glue:sst2 --epochs=1``
    config: dict[str, Any]
    settings: FinetuningSettings
    main_metric: str


def _tunings(
    ablation: Ablation, pretrained: Mapping[str, _Recipe]
) -> tuple[dict[str, _Tuning], dict[str, Mapping[str, Splits]]]:
    """Return the recipes of ``--finetune``, and for the text of each recipe the splits of its tasks, train uncut.

    The names of the recipes begin the names of their runs and metrics: the short name, then ``@STEP`` for each of
    ``ablation.steps``.

    Raises ``UserError`` if a recipe or its examples are wrong, its rows are too long for a model, or two recipes have
    one name.
    """
    tunings, examples = dict[str, _Tuning](), dict[str, Mapping[str, Splits]]()
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
                task: load_examples(one.data, ablation.data, one.built[0].roles, lambda _: None)
                for task, one in settings.each.items()
            }
            for splits in every.values():
                train_split(splits)  # raises unless there is one
            for one in pretrained.values():
                one.model.check_lengths({f"config.phases.{KIND}.max_length": settings.phase.max_length})
        except UserError as error:
            raise UserError(f"{text}: {error}") from error
        tunings[name], examples[text] = _Tuning(text, config, settings, str(settings.main_metric)), every
    steps = [f"@{step}" for step in ablation.steps] or [""]
    return {f"{name}{step}": one for step in steps for name, one in tunings.items()}, examples


def _pretraining_cells(ablation: Ablation, pretrained: Mapping[str, _Recipe], rows: HeldoutRows) -> list[Cell]:
    common, cells = rows.record, list[Cell]()
    for seed in ablation.seeds:
        for name, recipe in pretrained.items():
            facts = {"variant": name, "seed": seed, "recipe": plain(recipe.settings.identity())}
            cells.append(Cell(cell_name(name, seed), facts, common, "pretraining"))
    return cells


def _tuning_cells(ablation: Ablation, tunings: Mapping[str, _Tuning], pretrainings: Sequence[Cell]) -> list[Cell]:
    """Return the runs of fine-tuning every pretrained model on every task."""
    origins, cells = {cell.name: cell.overrides for cell in pretrainings}, list[Cell]()
    for task, one in tunings.items():
        for seed in ablation.seeds:
            for name in ablation.variants:
                own = {**one.config, "seed": seed, "export": False}
                if name.endswith(_BILSTM):
                    own["bilstm_layers"] = 2
                facts = {"task": task, "variant": name, "seed": seed, "config": own, "data": ablation.data}
                facts["origin"] = origins[cell_name(name.removesuffix(_BILSTM), seed)]
                cells.append(Cell(cell_name(name, seed, task), facts, None, "fine-tuning"))
    return cells


def _check_steps(ablation: Ablation, pretrained: Mapping[str, _Recipe], cells: Sequence[Cell]) -> None:
    """Raise ``UserError`` if a run in ``cells`` has not kept, or will not keep, a step that is to be fine-tuned."""
    for cell in cells if ablation.steps else ():
        place = files.as_path(ablation.workdir) / cell.name
        kept, experiment = saved_steps(str(place)), pretrained[cell.overrides["variant"]].checked.experiment
        if not (place / RESULTS).exists():
            if experiment.phases.in_epochs:
                raise UserError(
                    f"{cell.name} has phases in epochs, of which no step is known; give num_steps or num_tokens"
                )
            last, every, there = experiment.phases.num_steps, experiment.save_every_steps, max(kept, default=0)
            named = steps_at(experiment.checkpoints.at, experiment.phases, None).values()
            saves = sorted({*range(every, last + 1, every), last, *named})
            planned = experiment.checkpoints.steps_to_keep(saves, named)
            kept = [*kept, *(step for step in planned if step > there)]
        if missing := [str(step) for step in ablation.steps if step not in kept]:
            each = math.gcd(*ablation.steps)
            raise UserError(
                f"--finetune_steps has {few(missing)}, not kept by {cell.name}, which keeps "
                f"{few([*map(str, kept)]) or 'none'}; to keep such "
                f"steps of new runs: --config.checkpoints.every_steps={each} "
                f"--config.checkpoints.keep_every_steps={each}"
            )


def _inputs(
    ablation: Ablation, pretrained: Mapping[str, _Recipe], cells: Sequence[Cell]
) -> tuple[Tokenizer, Mixture, dict[str, dict[str, str]]]:
    """Make the vocabulary and the corpus that all runs share; return both, and config entries with their paths."""
    root, settings = files.as_path(ablation.workdir), pretrained[ablation.pretrained[0]].settings
    bound = any(saved_steps(str(root / cell.name)) for cell in cells if (root / cell.name).exists())
    folder = root / _INPUTS
    folder.mkdir(parents=True, exist_ok=True)
    objectives = [one.variant.objective for one in pretrained.values()]
    needed = tuple(dict.fromkeys(name for one in objectives for name in one.needed_columns))
    words = any(WORD in one.units for one in objectives)
    inputs = Inputs(str(folder), settings.vocab, settings.corpus, None, bound, settings.private, needed, words)
    inputs.check()
    tokenizer, corpus = inputs.open(lambda line: print(line, flush=True))
    place = settings.corpus.path or str(folder / CORPUS)
    return tokenizer, corpus, {"vocab": {"path": str(tokenizers.find(str(folder)))}, "corpus": {"path": place}}


def _check_finetunings(
    ablation: Ablation,
    tunings: Mapping[str, _Tuning],
    examples: Mapping[str, Mapping[str, Splits]],
    pretrained: Mapping[str, _Recipe],
    tokenizer: Tokenizer,
) -> None:
    """Raise ``UserError`` if a fine-tuning could not begin; pretraining takes long.

    The examples are encoded for the first model alone. For every other model, only the lengths are checked.
    """
    bilstm = any(name.endswith(_BILSTM) for name in ablation.variants)
    models = [TrainedModel("", {}, one.model, tokenizer) for one in pretrained.values()]
    for text, settings in {one.text: one.settings for one in tunings.values()}.items():
        settings = dataclasses.replace(settings, bilstm_layers=2) if bilstm else settings
        try:
            first, *_ = [Finetuning(settings, model) for model in models]
            task, _ = first.with_examples(examples[text])
            check_labels(task, settings, examples[text])
        except UserError as error:
            raise UserError(f"{text}: {error}") from error


def _finetune(ablation: Ablation, cell: Cell, workdir: str) -> Metrics:
    variant, seed = cell.overrides["variant"], cell.overrides["seed"]
    init = str(files.as_path(ablation.workdir) / cell_name(variant.removesuffix(_BILSTM), seed))
    init += "".join(cell.overrides["task"].partition("@")[1:])
    request = Request(workdir, ablation.command, init, data=ablation.data)
    return finetune(cell.overrides["config"], request)
