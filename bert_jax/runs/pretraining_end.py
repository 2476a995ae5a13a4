"""What a finished pretraining leaves: filled and continued examples, the export, the report, the next command."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from bert_jax.checkpoints.restoring import BEST, saved_steps
from bert_jax.corpora.mixture import Mixture
from bert_jax.interchange.loading import load
from bert_jax.models.config import ModelConfig
from bert_jax.program import program, quoted
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.reporting.observer import Observer
from bert_jax.runs.filled_examples import abilities, continue_examples, fill_examples, to_fill
from bert_jax.runs.finishing import LONGER_PRETRAINING, export_newest, report_at_the_end, without_class
from bert_jax.storage import files


def finish(
    settings: PretrainingSettings, model: ModelConfig, facts: Mapping[str, Any], corpus: Mixture, observer: Observer
) -> None:
    """Write the examples, the export and the report of a finished run, and print what the user can do next."""
    workdir, head = files.as_path(observer.workdir), facts["head"]
    able = abilities(model, facts.get("differs", ""), facts.get("writes", ()))
    filled, begun = list[dict[str, Any]](), list[dict[str, Any]]()
    trained = None
    if settings.shows_examples and any(able):
        with observer.showing("reporting"):
            trained, texts = load(observer.workdir), settings.examples
            if able.fills:
                filled = fill_examples(trained, to_fill(texts, able), corpus, observer.note)
            if able.writes:
                begun = continue_examples(trained, texts, corpus, observer.note)
            if shown := filled + begun:
                files.write_text(workdir / "examples.json", json.dumps(shown))
    exported = None
    if settings.export and (unknown := without_class(model, head, observer.workdir)):
        observer.note(f"not exported: transformers has no class for {unknown}")
    elif settings.export:
        exported = export_newest(observer, trained)
    best = max(saved_steps(str(workdir / BEST)), default=0)
    metric = settings.selection.metric
    report = report_at_the_end(observer, LONGER_PRETRAINING, best or sys.maxsize, metric)
    chosen = f", best by {metric} at step {best:,}" if best else ""
    where = f"report {report}" + (f", model {exported}" if exported else "")
    observer.note(f"done{chosen}: {where}, metrics {workdir / 'metrics.jsonl'}")
    for verb, can, examples, of in (
        ("fill-mask", head and able.fills, filled, "A sentence with a [MASK]"),
        ("generate", able.writes, begun, "The beginning"),
    ):
        if can:
            example = quoted(examples[0]["text"]) if examples else f'"{of} of your text."'
            observer.note(f"next: {program()} {verb} --workdir={shlex.quote(observer.workdir)} {example}")
