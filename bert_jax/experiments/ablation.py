"""Pretrains variants of a recipe with several seeds on the same text, and writes tables that compare the variants."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax import configuration
from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.corpora.mixture import Mixture
from bert_jax.errors import UserError
from bert_jax.experiments import measured, table, tuning
from bert_jax.experiments.grid import Cell, Metrics, Note, make_room, run_cells, say
from bert_jax.experiments.measured import OWN, Measured
from bert_jax.interchange.loading import load
from bert_jax.objectives import mlm
from bert_jax.objectives.base import Setting
from bert_jax.reporting import page
from bert_jax.reporting.run_record import only_writer
from bert_jax.runs import finetuning, recipes
from bert_jax.runs.inputs import CORPUS, Inputs
from bert_jax.runs.preparation import check_pretraining
from bert_jax.runs.pretraining import PretrainingRequest, pretrain
from bert_jax.runs.settings import PretrainingSettings
from bert_jax.storage import files, reading
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.state import metric_names

INPUTS = "inputs"  # folder of the vocabulary and corpus that all runs share
BASELINES = "The last line has what is reached without learning."
BILSTM = "+bilstm"  # suffix of a variant: a two-layer BiLSTM is added in fine-tuning (paper, section 5.1)
ROW_KEYS = tuple(field.name for field in dataclasses.fields(mlm.Config))  # keys that decide the rows
SAME_ROWS = ("mlm_loss", "mlm_accuracy")  # metrics that are computed on the first variant's held-out rows
FREE_OF_ROWS = ("num_steps", "batch_size", "micro_batches")  # fields of a phase that do not decide its held-out rows


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
    again: bool = False  # set aside runs of earlier calls that differ from what is asked for

    @property
    def pretrained(self) -> tuple[str, ...]:
        """The variants that are pretrained.

        ``x+bilstm`` is not among them: it is fine-tuned from the pretrained ``x``.
        """
        return tuple(dict.fromkeys(name.removesuffix(BILSTM) for name in self.variants))


def ablate(ablation: Ablation, note: Note = say) -> dict[str, list[table.VariantSummary]]:
    """Run the experiments that are not done yet; write and return a table for each metric.

    The files are ``table.md``, ``table.json`` and ``report.html``. The metrics ``mlm_loss`` and ``mlm_accuracy`` of all
    bidirectional variants are computed on the same rows, the masked held-out rows of the first variant.
    ``own_mlm_loss`` and ``own_mlm_accuracy`` are a variant's own term ``mlm``, on its own held-out rows.

    Raises:
      UserError: any error of ``pretrain`` in a variant's recipe, or a folder of the workdir that holds another run;
        where possible it is raised before the first run.
    """
    configs = _configs(ablation)
    settings = {
        name: configuration.build(PretrainingSettings, config, f"{name}: config") for name, config in configs.items()
    }
    variants = {name: _measured(name, one) for name, one in settings.items()}
    first = settings[ablation.pretrained[0]]
    _check_text(settings)
    tunings = tuning.read(ablation.finetune, ablation.data)
    recipes_of_tasks = {one.name: one.config for one in tunings}
    cells = _cells(ablation, settings, recipes_of_tasks)
    pretrained = cells[: len(ablation.seeds) * len(settings)]
    with only_writer(ablation.workdir):
        make_room(cells, ablation.workdir, note, ablation.again)
        tokenizer, corpus, paths = _inputs(ablation, first, pretrained, note)
        _check_finetunings(ablation, tunings, cells, variants, tokenizer)
        tunings.clear()  # the examples need not stay in memory

        def run(cell: Cell, workdir: str) -> Metrics:
            if "task" in cell.overrides:
                return _finetune(ablation, cell, workdir)
            config = configs[cell.overrides["variant"]]
            config = _replaced(config, seed=cell.overrides["seed"], **paths)
            own = pretrain(config, PretrainingRequest(workdir=workdir, command=ablation.command))
            return _metrics(own, _on_rows_of(first, corpus, tokenizer, workdir))

        found = run_cells(cells, run, ablation.workdir, note)
    runs: dict[str, list[Metrics]] = {name: [] for name in ablation.variants}
    for seed in ablation.seeds:
        for name, of_seeds in runs.items():
            scores = dict(found[f"{name.removesuffix(BILSTM)}-seed{seed}"]) if name in settings else {}
            for task in recipes_of_tasks:
                tuned = found[f"{task}-{name}-seed{seed}"]
                scores |= {f"{task}/{metric}": value for metric, value in tuned.items()}
            of_seeds.append(scores)
    tables, text = _write(ablation, runs, variants, tuple(recipes_of_tasks))
    note(text)
    return tables


def _measured(name: str, settings: PretrainingSettings) -> Measured:
    """Return what the metrics of a variant measure.

    Its model and its loss are traced (nothing is computed), so that errors in a user's own code are found now.
    """
    try:
        recipe = check_pretraining(settings)
        metric_names(recipe.task)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    except Exception as error:
        error.add_note(f"in the variant {name}")
        raise
    rows = {key: value for key, value in _evaluation(settings).items() if key not in FREE_OF_ROWS}
    rows["masks"] = _plain(dataclasses.asdict(masked_rows(settings).masking))  # before a phase replaces keys of it
    changes = {phase.kind: phase.changes for phase in recipe.experiment.phases.phases}
    return Measured(recipe.task, rows, _plain([dict(settings.objective), changes]))


def _cells(
    ablation: Ablation, settings: Mapping[str, PretrainingSettings], tasks: Mapping[str, dict[str, Any]]
) -> list[Cell]:
    """Return the runs of pretraining, then those of fine-tuning every pretrained model on every task."""
    evaluation = _evaluation(settings[ablation.pretrained[0]])
    origins = {
        (name, seed): {"variant": name, "seed": seed, "recipe": _plain(settings[name].identity())}
        for seed in ablation.seeds
        for name in ablation.pretrained
    }
    cells = [Cell(f"{name}-seed{seed}", facts, evaluation, "pretraining") for (name, seed), facts in origins.items()]
    for task, config in tasks.items():
        for seed in ablation.seeds:
            for name in ablation.variants:
                layers = 2 if name.endswith(BILSTM) else 0
                own = {**config, "seed": seed, "bilstm_layers": layers, "export": False}
                origin = origins[name.removesuffix(BILSTM), seed]
                facts = {"task": task, "variant": name, "seed": seed, "config": own, "origin": origin}
                cells.append(Cell(f"{task}-{name}-seed{seed}", facts, None, "fine-tuning"))
    return cells


def _configs(ablation: Ablation) -> dict[str, dict[str, Any]]:
    if ":" in ablation.recipe.replace("://", ""):
        raise UserError(f"--config={ablation.recipe} names a variant; give the file alone, and --variants")
    for what, values in (("--variants", ablation.variants), ("--seeds", ablation.seeds)):
        if not values or len(set(values)) < len(values):
            raise UserError(f"{what} is {','.join(map(str, values))!r}; give at least one, each once")
    if not ablation.finetune and ablation.pretrained != ablation.variants:
        raise UserError(f"--variants with {BILSTM} differ only in fine-tuning; give --finetune=RECIPE")
    names = ablation.pretrained
    return {name: recipes.load(f"{ablation.recipe}:{name}", ablation.overrides).to_dict() for name in names}


def _check_finetunings(
    ablation: Ablation,
    tunings: Sequence[tuning.Tuning],
    cells: Sequence[Cell],
    variants: Mapping[str, Measured],
    tokenizer: Tokenizer,
) -> None:
    """Raise ``UserError`` if a fine-tuning of which no run has begun could not begin; pretraining takes long."""
    root, models = files.as_path(ablation.workdir), [one.task.setting.model for one in variants.values()]
    layers = 2 if any(name.endswith(BILSTM) for name in ablation.variants) else 0
    begun = {cell.overrides.get("task") for cell in cells if (root / cell.name).exists()}
    for one in tunings:
        if one.name not in begun:
            one.check(tokenizer, models, layers)


def _finetune(ablation: Ablation, cell: Cell, workdir: str) -> Metrics:
    variant, seed = cell.overrides["variant"], cell.overrides["seed"]
    init = str(files.as_path(ablation.workdir) / f"{variant.removesuffix(BILSTM)}-seed{seed}")
    request = finetuning.FinetuningRequest(workdir, ablation.data, ablation.command, init)
    return finetuning.finetune(cell.overrides["config"], request)


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
    ablation: Ablation, settings: PretrainingSettings, cells: Sequence[Cell], note: Note
) -> tuple[Tokenizer, Mixture, dict[str, dict[str, str]]]:
    """Make the vocabulary and the corpus that all runs share; return both, and config entries with their paths."""
    root = files.as_path(ablation.workdir)
    bound = any(saved_steps(str(root / cell.name)) for cell in cells if (root / cell.name).exists())
    folder = root / INPUTS
    folder.mkdir(parents=True, exist_ok=True)
    inputs = Inputs(str(folder), settings.vocab, settings.corpus, None, bound, settings.private)
    inputs.check()
    tokenizer, corpus = inputs.open(note)
    place = settings.corpus.path or str(folder / CORPUS)
    return tokenizer, corpus, {"vocab": {"path": str(tokenizers.find(str(folder)))}, "corpus": {"path": place}}


def _replaced(config: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {**config, **{k: {**config.get(k, {}), **v} if isinstance(v, dict) else v for k, v in changes.items()}}


def _on_rows_of(reference: PretrainingSettings, corpus: Mixture, tokenizer: Tokenizer, workdir: str) -> Metrics:
    """Return the masked-LM metrics of the model in ``workdir`` on the held-out rows of ``reference``.

    A causal model has no such metrics; the result is then {}.
    """
    trained, experiment = load(workdir), reference.experiment()
    if trained.config.causal:
        return {}
    config, phase = masked_rows(reference), experiment.evaluated_phase
    lengths, changes = {phase.kind: phase.max_length}, {phase.kind: phase.changes}
    setting = Setting(trained.config, lengths, reference.seed, changes)
    task = mlm.Objective(config, setting).with_text(corpus, tokenizer)
    return Evaluation(task, experiment.make_mesh(), phase, experiment.training.eval_rows).run(trained.params, {})


def masked_rows(settings: PretrainingSettings) -> mlm.Config:
    """Return the config of the objective ``mlm`` on the rows of a recipe."""
    fields = {name: settings.objective[name] for name in ROW_KEYS if name in settings.objective}
    default = settings.find_objective()[0].Objective.arrangement
    if not fields.get("arrangement") and default != mlm.Objective.arrangement:
        fields["arrangement"] = default
    return configuration.build(mlm.Config, fields, "config.objective")


def _evaluation(settings: PretrainingSettings) -> dict[str, Any]:
    """Return the settings of the held-out rows, on which the figures of all runs depend."""
    experiment = settings.experiment()
    phase = dataclasses.asdict(experiment.evaluated_phase)
    phase = {name: value for name, value in phase.items() if name not in ("num_tokens", "num_epochs")}
    rows = dataclasses.asdict(masked_rows(settings)) | phase
    return _plain(rows | {"eval_rows": experiment.training.eval_rows, "seed": settings.seed})


def _metrics(own: Mapping[str, float], same_rows: Mapping[str, float]) -> Metrics:
    masked = {f"{OWN}{name}": value for name, value in own.items() if name in SAME_ROWS}
    other = {name: value for name, value in own.items() if not name.startswith(("mlm_", "perplexity"))}
    return {**{name: same_rows[name] for name in SAME_ROWS if name in same_rows}, **other, **masked}


def _plain(content: Any) -> Any:
    """Return ``content`` as JSON would read it back (tuples become lists)."""
    return json.loads(json.dumps(content))


def _write(
    ablation: Ablation,
    runs: Mapping[str, Sequence[Metrics]],
    variants: Mapping[str, Measured],
    tasks: Sequence[str],
) -> tuple[dict[str, list[table.VariantSummary]], str]:
    """Write the tables as Markdown, JSON and HTML; return them, and the text to show on the terminal."""
    folder, title = files.as_path(ablation.workdir), f"{', '.join(ablation.variants)}: {len(ablation.seeds)} seeds"
    scores = table.by_metric(runs)
    columns = measured.columns(scores, variants, tasks)
    tables = {metric: table.compare(scores[metric], by) for metric, by in columns.items()}
    first = ablation.pretrained[0]
    lines = {metric: measured.explained(metric, by, tasks, first) for metric, by in columns.items()}
    seed = variants[first].rows["seed"]
    baselines = {
        metric: text for metric in columns if (text := _to_beat(ablation, metric, scores[metric], tasks, seed))
    }
    overview, differences = table.overview(tables, baselines), table.differences(tables)
    notes = [table.SPREAD, *([BASELINES] if baselines else [])]
    parts = [f"# {title}", table.markdown(overview), " ".join(notes)]
    parts.append("\n".join(f"- {metric}: {line}" for metric, line in lines.items()))
    html = [f"<h1>{page.escape(title)}</h1>", page.table(*overview), f"<p>{' '.join(notes)}</p>"]
    html.append(page.table(("column", "what it is"), list(lines.items()), numbers_from=2))
    if differences[1]:
        parts += [f"## Differences from {ablation.variants[0]}", table.markdown(differences), table.NOTE]
        html.append(page.section(parts[-3].removeprefix("## "), page.table(*differences) + f"\n<p>{table.NOTE}</p>"))
    text = "\n\n".join(parts) + "\n"
    files.write_text(folder / "table.md", text)
    asked = {"variants": ablation.variants, "seeds": ablation.seeds, "command": ablation.command}
    by_seed = {metric: scores[metric] for metric in columns}  # metric -> variant -> scores in the order of the seeds
    facts = {"metrics": table.as_data(tables), "scores": by_seed, "columns": lines, "without_learning": baselines}
    files.write_text(folder / "table.json", json.dumps(asked | facts, indent=2) + "\n")
    files.write_text(folder / "report.html", page.page(title, "\n".join(html)))
    return tables, f"{text}\ntables: {folder / 'table.md'}, {folder / 'table.json'}, {folder / 'report.html'}"


def _to_beat(ablation: Ablation, metric: str, having: Mapping[str, Any], tasks: Sequence[str], seed: int) -> str:
    """Return the baselines of a metric, of the first variant that has it; "" if there are none.

    ``mlm_loss`` is of the rows of the first variant with the seed ``seed``, so those of another variant do not serve.
    """
    variant = next(iter(having))
    if metric.startswith(OWN) or (metric in SAME_ROWS and variant != ablation.pretrained[0]):
        return ""
    task = f"{metric.partition('/')[0]}-" if metric.partition("/")[0] in tasks else ""
    folder = files.as_path(ablation.workdir)
    same = metric in SAME_ROWS and seed in ablation.seeds
    seeds = (seed,) if same else ablation.seeds
    found = [reading.read_object(folder / f"{task}{variant}-seed{one}" / "baselines.json") for one in seeds]
    return measured.to_beat(metric, [one for one in found if one], tasks)
