"""The first words of ``report.html``: what was trained, on what, how long, and what it reached."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.reporting.formats import count, figure, is_number
from bert_jax.reporting.loggers.base import Record
from bert_jax.reporting.measures import metric_title, to_beat, with_error

PLACES = ("paths", "path", "dataset", "name", "files")  # options of a source that name the place of its text


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping, else {}."""
    return value if isinstance(value, Mapping) else {}


def is_tuned(run: Mapping[str, Any]) -> bool:
    """Return whether a run is one of fine-tuning."""
    return not as_mapping(run.get("config")).keys().isdisjoint(("task", "tasks"))


def report_title(run: Mapping[str, Any]) -> str:
    """Return the title of the report of a run: the model and its task, or the text of pretraining."""
    config, model = as_mapping(run.get("config")), _model(run)
    if not model:
        return "A run"
    if tasks := ", ".join(map(str, as_mapping(config.get("tasks")))) or as_mapping(config.get("task")).get("name"):
        return f"{model}, fine-tuned for {str(tasks).replace('_', ' ')}"
    text = _text(run)
    return f"{model}, pretrained" + (f" on {text}" if text else "")


def opening_sentences(
    run: Mapping[str, Any],
    records: Sequence[Record],
    leading: tuple[str, float, int] | None,
    baselines: Mapping[str, Any],
    errors: Mapping[str, float] | None,
    titles: Mapping[str, str],
) -> str:
    """Return the sentences with which the report begins; "" if ``run.json`` does not name the model.

    Args:
      leading: the metric that leads the report, its held-out value, and the step of that value.
    """
    if not (model := _model(run)):
        return ""
    about, tuned = as_mapping(run.get("about")), is_tuned(run)
    trained = _tuned(run, about) if tuned else _pretrained(run, about)
    step = max(record["step"] for record in records)
    spent = [f"{step:,} steps"]
    if (tokens := _tokens_read(records, run)) is not None:
        spent.append(f"{count(tokens)} tokens")
    if (epochs := _epochs_read(run, step)) is not None:
        spent.append(f"{epochs:.3g} epoch{'s' * (round(epochs, 3) != 1)}")
    article = "An" if model.startswith((*"AEIOU", "XL")) else "A"
    text = f"{article} {model.partition(',')[0]} model{trained}, for {', '.join(spent)}."
    if leading:
        metric, value, chosen = leading
        name, comma, unit = metric_title(metric, titles).partition(", nats")
        text += f" {name}{unit} on held-out {'examples' if tuned else 'text'}"
        text += ": " if chosen == step else f" at step {chosen:,}, which was chosen: "
        text += with_error(metric, figure(value), errors) + comma.replace(",", "")
        text += f"; without learning: {beat}." if (beat := to_beat(metric, baselines)) else "."
    return text


def _model(run: Mapping[str, Any]) -> str:
    """Return the family of the model and its size, as in "BERT, 1.50M parameters"."""
    about, facts = as_mapping(run.get("about")), as_mapping(as_mapping(run.get("facts")).get("model"))
    family = about.get("family") or facts.get("encoder")
    if not isinstance(family, str) or not family:
        return ""
    number = about.get("parameters")
    return family + (f", {count(number)} parameters" if is_number(number) else "")


def _pretrained(run: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    text, sizes = _text(run), []
    if is_number(documents := about.get("documents")):
        sizes.append(_counted(int(documents), "document"))
    if is_number(tokens := about.get("tokens")):
        sizes.append(f"{count(tokens)} tokens")
    amount = f" ({', '.join(sizes)})" if sizes else ""
    return f"{_size(about)}{_begun(run)}, pretrained on {text or 'text'}{amount}"


def _tuned(run: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    number = about.get("examples")
    amount = f" on {_counted(int(number), 'example')}" if is_number(number) else ""
    return f"{_size(about)}{_begun(run) or ', begun from random weights'}, fine-tuned{amount}"


def _size(about: Mapping[str, Any]) -> str:
    return f" of {count(about['parameters'])} parameters" if is_number(about.get("parameters")) else ""


def _begun(run: Mapping[str, Any]) -> str:
    """Return words that name the model from which a run began; "" if there is none, or the run is private."""
    init = as_mapping(run.get("identity")).get("init")
    hidden = not init or as_mapping(run.get("config")).get("private")
    return "" if hidden else f", begun from {_last_name(init)}"


def _text(run: Mapping[str, Any]) -> str:
    """Return a name for the text that a run of pretraining reads: the last name of its place, or its source."""
    config = as_mapping(run.get("config"))
    corpus = as_mapping(config.get("corpus"))
    if config.get("private") or not corpus:
        return "private text" if config.get("private") else ""
    if parts := as_mapping(corpus.get("parts")):
        return ", ".join(map(str, parts))
    if path := corpus.get("path"):
        return _last_name(path)
    options = as_mapping(corpus.get("options"))
    places = next((options[name] for name in PLACES if options.get(name)), ())
    names = [_last_name(one) for one in (places if isinstance(places, list | tuple) else [places])]
    source = str(corpus.get("source") or "").removesuffix(".py").replace("_", " ")
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "") if names else source


def _last_name(path: Any) -> str:
    """Return the last name of a path; a pattern keeps its folder."""
    folder, name = os.path.split(str(path).rstrip("/"))
    return os.path.join(os.path.basename(folder), name) if set("*?[") & set(name) else name


def phases_of(run: Mapping[str, Any]) -> list[tuple[str, int, int, int]]:
    """Return (name, first step, steps, row length) of each phase, in order; [] if ``run.json`` does not name them."""
    phases, first = [], 0
    for name, values in as_mapping(run.get("phases")).items():
        steps, length = (as_mapping(values).get(key) for key in ("num_steps", "max_length"))
        if not (isinstance(steps, int) and isinstance(length, int)):
            return []
        phases.append((str(name), first, steps, length))
        first += steps
    return phases


def steps_done(run: Mapping[str, Any], until: int) -> dict[str, int]:
    """Return the steps of each phase up to the step ``until``; {} if ``run.json`` does not name the phases."""
    return {name: min(max(until - first, 0), steps) for name, first, steps, _ in phases_of(run)}


def _tokens_read(records: Sequence[Record], run: Mapping[str, Any]) -> float | None:
    """Return the tokens that all steps have read, by the mean of the windows of the log; None if no window says it."""
    until = max(record["step"] for record in records)
    steps = steps_done(run, until)
    sums = {name: [0.0, 0] for name in steps}
    before = 0
    for record in records:
        if record["split"] != "train":
            continue
        number, before = record["step"] - before, record["step"]
        speed, seconds = record.get("tokens_per_second"), record.get("step_seconds")
        phase = record.get("phase") or next(iter(steps), None)
        if phase in sums and number > 0 and is_number(speed) and is_number(seconds):
            sums[phase][0] += speed * seconds * number
            sums[phase][1] += number
    if not steps or any(number and not sums[name][1] for name, number in steps.items()):
        return None
    return math.fsum(number * sums[name][0] / sums[name][1] for name, number in steps.items() if number)


def _epochs_read(run: Mapping[str, Any], until: int) -> float | None:
    """Return the epochs that were read up to the step ``until``; None if ``run.json`` does not say it."""
    per_epoch, steps = as_mapping(as_mapping(run.get("about")).get("steps_per_epoch")), steps_done(run, until)
    if not steps or not all(is_number(per_epoch.get(name)) and per_epoch[name] > 0 for name in steps):
        return None
    return math.fsum(number / per_epoch[name] for name, number in steps.items())


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
