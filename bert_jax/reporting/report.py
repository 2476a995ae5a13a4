"""Writes ``report.html``: a run on a single page, which can be viewed anywhere, even offline."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from bert_jax.errors import UserError
from bert_jax.metric_names import has_goal, lower_is_better
from bert_jax.program import MISSING, duration
from bert_jax.reporting import run_log, status
from bert_jax.reporting.charts import chart_svg
from bert_jax.reporting.curves import charts_of
from bert_jax.reporting.formats import count, figure, in_words, is_number, phase_label
from bert_jax.reporting.loggers.base import Record, flatten, metrics_of
from bert_jax.reporting.measures import (
    cell_text,
    compare_score,
    decimals_of,
    headline_metrics,
    heldout_errors,
    in_order,
    meanings_line,
    metric_title,
    titles_in,
    to_beat,
    with_error,
    with_shares,
)
from bert_jax.reporting.page import chart_card, collapsed, page, page_section, table
from bert_jax.reporting.profiled_steps import TIMES
from bert_jax.reporting.report_errors import error_sections
from bert_jax.reporting.report_speed import goodput_card, kernel_times, paces, step_times, untimed_phases
from bert_jax.reporting.summary import as_mapping, is_tuned, opening_sentences, phases_of, report_title
from bert_jax.storage import files, reading

FILE = "report.html"
DETAILS = "details.json"  # errors of a fine-tuned model
_LIKELIEST = "Marked: what the model writes, the likeliest token at each step, without three tokens in a row twice."
_BEGUN = f"The first halves of held-out sentences, spread evenly. {_LIKELIEST}"
_CHOSEN = "Held-out sentences, spread evenly, in each of which one word is masked."


def write_report(workdir: str | os.PathLike[str], state: Mapping[str, Any] | None = None) -> str:
    """Write ``workdir/report.html`` and return its path.

    The report is made from metrics.jsonl and, as far as they exist, run.json, status.json, baselines.json,
    examples.json, details.json and profile.json.

    Args:
      state: the status to show, given by a run that is about to end. If None, status.json is read.

    Raises:
      UserError: there is no record of a run in ``workdir``, or the disk is full.
    """
    folder, records = files.as_path(workdir), run_log.records_of(workdir)
    run = _read(folder / "run.json", {})
    if state is None:
        state = {}
        with contextlib.suppress(UserError):
            state = status.read(workdir)
    baselines, examples = _read(folder / "baselines.json", {}), _read(folder / "examples.json", [])
    details, tuned = _read(folder / DETAILS, {}), is_tuned(run)
    # Without entries of a wrong type: another version or a person may have written the file.
    details["splits"] = {k: of for k, of in as_mapping(details.get("splits")).items() if isinstance(of, Mapping)}
    evaluations = [record for record in records if record["split"] == "eval"]
    best = details.get("best_step") if tuned else _selected(run, evaluations)
    shown, titles = next((r for r in evaluations if r["step"] == best), (evaluations or records)[-1]), titles_in(run)
    baselines = with_shares(baselines, shown)
    leading = {name: shown[name] for name in headline_metrics(shown, tuned, details.get("metric"), titles)}
    rows = "held-out" if shown["split"] == "eval" else "train"
    spread = _errors_of(details) if tuned else None
    tiles = [
        (
            f"{metric_title(n, titles)}, {rows}",
            with_error(n, figure(x), spread),
            *compare_score(n, x, baselines, spread),
        )
        for n, x in leading.items()
    ]
    lead = next(((*one, shown["step"]) for one in leading.items() if rows == "held-out"), None)
    text = opening_sentences(run, records, lead, baselines, spread, titles)
    parts = [
        _header(run, state, records, os.fspath(workdir)),
        f'<p class="lead">{escape(text)}</p>' if text else "",
        _tiles(records, tiles, state, meanings_line(leading, baselines)),
        page_section("Scores", _scores(details, baselines, titles) if tuned else ""),
        page_section("Held-out results", _results(evaluations, details if tuned else {}, baselines, titles)),
        error_sections(details),
        page_section("Curves", _charts(records, run, baselines)),
        page_section("Filling in the blanks", _examples([one for one in examples if _is_filled(one)])),
        page_section("Going on with a text", _continuations([one for one in examples if _is_continued(one)])),
        page_section("How fast it was", step_times(paces(records, run), untimed_phases(records, run))),
        page_section("Where the time of a step on the GPU went", kernel_times(_read(folder / TIMES, {}))),
        page_section("Where the time went", goodput_card(state)),
        page_section("What it was made from", _lineage(run)),
    ]
    body = "\n".join(part for part in parts if part)
    path = folder / FILE
    files.write_text(path, page(f"{report_title(run)} · bert_jax", body))
    return os.fspath(path)


def _read(path: Any, absent: Any) -> Any:
    """Return the content of a JSON file, or ``absent`` if it cannot be read or has another type than ``absent``."""
    try:
        content = json.loads(reading.read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return absent
    return content if isinstance(content, type(absent)) else absent


def _errors_of(details: Mapping[str, Any]) -> dict[str, float]:
    """Return a dict: metric -> its standard error, from the splits of ``details.json``."""
    of_splits = {name: as_mapping(found.get("standard_errors")) for name, found in details["splits"].items()}
    known = {name: {k: x for k, x in of.items() if is_number(x)} for name, of in of_splits.items()}
    return heldout_errors({name: of for name, of in known.items() if of})


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


# ---- The top: name, state, headline figures ----------------------------------------------------------------------


def _header(run: Mapping[str, Any], state: Mapping[str, Any], records: list[Record], workdir: str) -> str:
    word = str(state.get("state") or "")
    colour = {"finished": "good", "failed": "bad", "stopped": "bad"}.get(word, "neutral")
    badge = f'<span class="badge {colour}">{escape(word)}</span>' if word else ""
    times = [record["time"] for record in records]
    facts = [" to ".join(dict.fromkeys((_moment(min(times)), _moment(max(times))))), workdir]
    facts += [f"{len(of)} {word}{'s' * (len(of) > 1)}" for word, of in _starts(run) if of]
    error = f'<p class="soft">{escape(str(state["last_error"]))}</p>' if state.get("last_error") else ""
    alarms = "".join(
        f'<p class="soft">alarm at step {alarm["step"]:,}: {escape(str(alarm["text"]))}</p>'
        for alarm in state.get("alarms", [])
    )
    return (
        f'<header>\n<div class="line"><h1>{escape(report_title(run))}</h1>{badge}</div>\n'
        f'<p class="soft">{escape(" · ".join(facts))}</p>{error}{alarms}\n</header>'
    )


def _selected(run: Mapping[str, Any], evaluations: list[Record]) -> int | None:
    """Return the step whose model a run of pretraining keeps by ``config.selection``; None if it selects none."""
    metric = str(as_mapping(as_mapping(run.get("config")).get("selection")).get("metric") or "")
    known = [r for r in evaluations if r["step"] and is_number(r.get(metric))]
    best = (min if lower_is_better(metric) else max)(reversed(known), key=lambda r: r[metric], default=None)
    return best["step"] if best else None


def _tiles(
    records: list[Record], leading: list[tuple[str, str, str, str]], state: Mapping[str, Any], meant: str
) -> str:
    """Return the headline figures and the figures of the run, each with a name, a value, a note and a colour."""
    step, total = records[-1]["step"], state.get("num_train_steps")
    spent = sum((state.get("goodput") or {}).values()) or records[-1]["time"] - records[0]["time"]
    speeds = sorted(r["tokens_per_second"] for r in records if is_number(r.get("tokens_per_second")))
    speed = f"{count(speeds[len(speeds) // 2])} tokens a second" if speeds else ""
    steps = ("steps", f"{step:,}", f"of {total:,}" if is_number(total) else "", "")
    tiles = [*leading, steps, ("time", duration(spent), speed, "")]
    cells = (
        f'<div class="card"><dt>{escape(name)}</dt>'
        f'<dd class="big">{_small_error(value)}</dd><dd class="note {colour}">{escape(note)}</dd></div>'
        for name, value, note, colour in tiles
    )
    below = f'\n<p class="small soft">{escape(meant)}</p>' if meant else ""
    return '<dl class="tiles" aria-label="Headline figures">\n' + "\n".join(cells) + f"\n</dl>{below}"


def _small_error(value: str) -> str:
    """Return a value as HTML, with its standard error in smaller letters."""
    score, sign, error = value.partition(" ± ")
    return escape(score) + (f" <small>±&nbsp;{escape(error)}</small>" if sign else "")


# ---- Curves ------------------------------------------------------------------------------------------------------


def _charts(records: list[Record], run: Mapping[str, Any], baselines: Mapping[str, Any]) -> str:
    charts = []
    for chart in charts_of(records, baselines, titles_in(run), tuple(_marks(run))).values():
        keys = [(series.name, f"var(--{series.style})") for series in chart.series]
        charts.append(chart_card(chart.title, keys, chart_svg(chart)))
    note = "Against training steps. Thin: as logged; thick: moving average. Point at a curve for its values. "
    note = escape(note + _row_lengths(run))
    drawings = "\n".join(charts)
    return f'<p class="small soft">{note}</p><div class="charts">\n{drawings}\n</div>'


def _marks(run: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    """Yield (name, step) for each restart and extension, and for the start of each phase except the first."""
    yield from ((word, start["step"]) for word, of in _starts(run) for start in of if is_number(start.get("step")))
    yield from ((phase_label(name), first) for name, first, *_ in phases_of(run)[1:])


def _row_lengths(run: Mapping[str, Any]) -> str:
    """Return a warning if train and held-out rows differ in length, so that their losses cannot be compared.

    Return "" if they do not differ.
    """
    phases = phases_of(run)
    lengths = {name: length for name, *_, length in phases}
    if len({*lengths.values()}) < 2:
        return ""
    evaluated = as_mapping(as_mapping(run.get("config")).get("training")).get("eval_phase")
    heldout = lengths.get(str(evaluated), phases[-1][-1])
    train = ", then ".join(f"{length:,} from step {first:,} ({name})" for name, first, _, length in phases)
    return (
        f"Held-out rows have {heldout:,} tokens throughout, train rows {train}: where the lengths differ, the distance "
        "between the two curves is not overfitting, and the train curve leaps where a phase begins."
    )


# ---- Tables ------------------------------------------------------------------------------------------------------


def _scores(details: Mapping[str, Any], baselines: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return a table with the scores of the chosen step on each split, beside baselines that do not read the text."""
    splits = {name: found for name, found in details["splits"].items() if found.get("metrics")}
    if not splits:
        return ""
    main, tables = details.get("metric"), []
    for task in dict.fromkeys(name.rpartition("/")[0] for name in splits):  # "": the only one
        start = f"{task}/" if task else ""
        own = {name.removeprefix(start): found for name, found in splits.items() if name.rpartition("/")[0] == task}
        labels = _scored_labels(own)
        every = (f"{start}{name}" for found in own.values() for name in found["metrics"] if name not in labels)
        names = dict.fromkeys(every)
        order = [main, *(titles if task else ())]
        ordered = sorted(names, key=lambda name: order.index(name) if name in order else len(order))
        rows = [
            [
                metric_title(name, titles),
                *(_scored(found, name.removeprefix(start), name, titles) for found in own.values()),
                to_beat(name, baselines) or MISSING,
            ]
            for name in ordered
        ]
        heads = [f"{name} ({found['num_examples']:,})" for name, found in own.items()]
        tables.append(f'<div class="card">{table([task or "measure", *heads, "to beat"], rows)}</div>')
    step = f"Step {details['best_step']:,}" if is_number(details.get("best_step")) else "The chosen step"
    note = f"{step}, chosen by the held-out {in_words(str(main))}; its predictions are in predictions_*.jsonl."
    return f'<p class="small soft">{escape(note)}</p>{"".join(tables)}'


def _scored(found: Mapping[str, Any], metric: str, name: str, titles: Mapping[str, str]) -> str:
    """Return the value of a split's ``metric``, which an evaluation calls ``name``, with its standard error."""
    text = cell_text(found["metrics"].get(metric), name, titles)
    return with_error(metric, text, as_mapping(found.get("standard_errors")), decimals_of(name, titles))


def _scored_labels(splits: Mapping[str, Any]) -> set[str]:
    """Return the metrics of single labels, which stand in a separate table."""
    return {f"{label}_f1" for found in splits.values() for label in as_mapping(found.get("per_label"))}


def _results(
    evaluations: list[Record], details: Mapping[str, Any], baselines: Mapping[str, Any], titles: Mapping[str, str]
) -> str:
    """Return a table of the first, the last and the best evaluation, without counts and metrics of single labels."""
    rows, splits = [], as_mapping(details.get("splits"))
    scored = any(found.get("metrics") for found in splits.values())
    shows_last = not (scored and evaluations and details.get("best_step") == evaluations[-1]["step"])
    every = dict.fromkeys(k for r in evaluations for k, v in metrics_of(r).items() if is_number(v))
    for metric in in_order(every, titles):
        if titles.get(metric) == "" or metric in _scored_labels(splits):  # a count, or shown with its label
            continue
        known = [record for record in evaluations if is_number(record.get(metric))]
        best = (min if lower_is_better(metric) else max)(known, key=lambda record: record[metric])
        first, last = known[0], known[-1]
        at_best = f"{cell_text(best[metric], metric, titles)} at step {best['step']:,}"
        if best["step"] == 0:
            at_best = "before training"
        elif shows_last and cell_text(best[metric], metric, titles) == cell_text(last[metric], metric, titles):
            at_best = "the last"
        if not has_goal(metric):
            at_best = MISSING
        values = {
            "measure": metric_title(metric, titles),
            "first": cell_text(first[metric], metric, titles),
            **({"last": cell_text(last[metric], metric, titles)} if shows_last else {}),
            "best": at_best,
            **({} if scored else {"to beat": to_beat(metric, baselines) or MISSING}),
        }
        rows.append(values)
    return f'<div class="card">{table([*rows[0]], [[*row.values()] for row in rows])}</div>' if rows else ""


def _is_filled(example: Any) -> bool:
    """Return whether ``example`` has the form of a ``features.fill_mask.Filled``."""
    match example:
        case {"text": str(), "predictions": list(masks)}:
            pairs = [pair for mask in masks for pair in (mask if isinstance(mask, list) else [None])]
            return all(isinstance(p, list) and len(p) == 2 and is_number(p[1]) for p in pairs)
    return False


def _examples(examples: list[Any]) -> str:
    cards = []
    for example in examples:
        text = escape(example["text"]).replace("[MASK]", "<mark>[MASK]</mark>")
        guesses = (
            f'<div class="guess"><b>{escape(str(word))}</b><i style="width:{100 * min(max(float(p), 0), 1):.1f}%"></i>'
            f"<span>{float(p):.1%}</span></div>"
            for candidates in example["predictions"]  # a list for each [MASK]
            for word, p in candidates
        )
        cards.append(f'<div class="card"><p>{text}</p>{_answer(example)}{"".join(guesses)}</div>')
    chosen = any("answer" in example for example in examples)
    note = f'<p class="small soft">{_CHOSEN}</p>' if chosen else ""
    return f'{note}<div class="examples">{"".join(cards)}</div>' if cards else ""


def _is_continued(example: Any) -> bool:
    """Return whether ``example`` has the form of an entry of ``runs.filled_examples.continue_examples``."""
    return all(isinstance(as_mapping(example).get(key), str) for key in ("text", "continuation"))


def _continuations(examples: list[Any]) -> str:
    cards = []
    for example in examples:
        text = f"{escape(example['text'])}<mark>{escape(example['continuation'])}</mark>"
        cards.append(f'<div class="card"><p>{text}</p>{_answer(example)}</div>')
    chosen = any("answer" in example for example in examples)
    note = f'<p class="small soft">{_BEGUN if chosen else _LIKELIEST}</p>'
    return f'{note}<div class="examples">{"".join(cards)}</div>' if cards else ""


def _answer(example: Mapping[str, Any]) -> str:
    known = "answer" in example
    return f'<p class="soft small">in the text: {escape(str(example["answer"]))}</p>' if known else ""


def _lineage(run: Mapping[str, Any]) -> str:
    """Return a table of the run's inputs, and a folded table of the recipe's settings that are not among the inputs.

    Where the two differ, as in the length of rows or in a model that was begun from another, the inputs hold the value
    with which the run trained.
    """
    # The header shows the rest.
    others = ("facts", "identity", "config", "restarts", "titles", "about", "format", "name", "started", "workdir")
    facts = {**{name: value for name, value in run.items() if name not in others}, **as_mapping(run.get("facts"))}
    facts["init"] = as_mapping(run.get("identity")).get("init")
    found = flatten(facts)
    shown = {name: _text(value) for name, value in found.items() if value not in (None, "", [], {})}
    rows = [[*row] for row in shown.items()]
    rows += [[f"{word}s", "; ".join(map(_start, of))] for word, of in _starts(run) if of]
    lineage = f'<div class="card">{table([], rows, keys=True)}</div>' if rows else ""
    every = flatten(run.get("config") or {})
    rest = {name: value for name, value in every.items() if name not in found or found[name] != value}
    config = [[name, _text(value)] for name, value in rest.items() if name not in shown]
    return lineage + (collapsed("Configuration, the rest", table([], config, keys=True)) if config else "")


def _starts(run: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    """Return the ``restarts`` of ``run.json`` in two groups: restarts, and starts with more steps (``--extend``)."""
    entries = run.get("restarts") or []
    extensions = [entry for entry in entries if entry.get("extended")]
    return [("restart", [entry for entry in entries if not entry.get("extended")]), ("extension", extensions)]


def _start(start: Mapping[str, Any]) -> str:
    where = f"at step {start['step']}" if is_number(start.get("step")) else ""
    when = f"on {_moment(start['time'])}" if is_number(start.get("time")) else ""
    return f"{where} {when}".strip() or MISSING


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
