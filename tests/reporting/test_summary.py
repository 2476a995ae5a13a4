"""The first words of the report, what was too short to time, and what narrow windows show."""

import json
import re

import pytest

from bert_jax.reporting import page
from bert_jax.reporting.report_errors import error_sections
from bert_jax.reporting.summary import report_title, steps_done
from tests.reporting.test_report import text_of

RUN = {
    "name": "folder-name",
    "config": {"objective": {"name": "mlm"}, "corpus": {"source": "text_files", "options": {"paths": "/data/a/*.txt"}}},
    "about": {"family": "ELECTRA", "parameters": 1_503_746, "documents": 3000, "tokens": 2_054_226,
              "steps_per_epoch": {"phase1": 400.0, "phase2": 100.0}},
    "phases": {"phase1": {"num_steps": 100, "batch_size": 8, "max_length": 32},
               "phase2": {"num_steps": 40, "batch_size": 8, "max_length": 128}},
    "titles": {"mlm_loss": "Masked-LM loss, nats"},
}  # fmt: skip


def records(last=140):
    lines = [{"step": 0, "split": "eval", "time": 0.0, "mlm_loss": 9.0}]
    for step in range(20, last + 1, 20):
        phase = "phase1" if step <= 100 else "phase2"
        speed = {"tokens_per_second": 1000.0 if phase == "phase1" else 3000.0, "step_seconds": 0.5}
        lines.append({"step": step, "split": "train", "time": 1.0 * step, "phase": phase, "mlm_loss": 5.0, **speed})
    return [*lines, {"step": last, "split": "eval", "time": 200.0, "mlm_loss": 4.25}]


def report(folder, run, lines, **files):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, content in {"run": run, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    text, html = text_of(folder)
    return " ".join(text.split()), html


def test_pretraining_begins_with_what_it_is(tmp_path):
    baselines = {"unigram_cross_entropy": 6.0, "trigram_cloze_cross_entropy": 4.0}
    text, html = report(tmp_path, RUN, records(), baselines=baselines)
    # 100 steps of 500 tokens and 40 of 1,500; a quarter of an epoch and 0.4 of one
    sentence = (
        "An ELECTRA model of 1.50M parameters, pretrained on a/*.txt (3,000 documents, 2.05M tokens), for 140 steps,"
        " 110k tokens, 0.65 epochs. Masked-LM loss on held-out text: 4.250 nats; without learning: 3-gram cloze 4.000,"
        " unigram 6.000."
    )
    assert sentence in text
    assert "<h1>ELECTRA, 1.50M parameters, pretrained on a/*.txt</h1>" in html
    assert "folder-name" not in text, "a folder's name is no title, and the path stands below it"
    assert text.index(sentence) < text.index("Held-out results")


def test_a_run_that_goes_on_names_its_model(tmp_path):
    text, _ = report(tmp_path, {**RUN, "identity": {"init": "/models/bert-base/"}}, records())
    assert "An ELECTRA model of 1.50M parameters, begun from bert-base, pretrained on a/*.txt" in text
    run = {**RUN, "config": {**RUN["config"], "private": True}, "identity": {"init": "sha256:12"}}
    text, _ = report(tmp_path, run, records())
    assert "An ELECTRA model of 1.50M parameters, pretrained on private text" in text


def test_the_figures_are_those_of_the_step_that_is_kept(tmp_path):
    lines = [
        *records(),
        *({"step": s, "split": "eval", "time": 300.0, "mlm_loss": x} for s, x in ((60, 4.0), (80, 4.0))),
    ]
    lines.sort(key=lambda line: line["step"])
    run = {**RUN, "config": RUN["config"] | {"selection": {"metric": "mlm_loss"}}}
    text, _ = report(tmp_path, run, lines)
    assert "Masked-LM loss on held-out text at step 80, which was chosen: 4.000 nats." in text
    assert "Masked-LM loss, nats, held-out 4.000" in text
    assert "for 140 steps" in text


def test_what_is_not_known_is_not_said(tmp_path):
    text, html = report(tmp_path, {}, [{"step": 3, "split": "eval", "time": 0.0, "f1": 0.5}])
    assert "<h1>A run</h1>" in html
    assert "model of" not in text
    odd = {"about": [1], "phases": 3, "facts": {"model": {"encoder": "bert"}}, "config": {"corpus": 5}}
    text, _ = report(tmp_path, odd, records(20))
    assert "A bert model, pretrained on text, for 20 steps." in text


@pytest.mark.parametrize(
    ("corpus", "private", "expected"),
    [
        ({"source": "docstrings", "options": {}}, False, "on docstrings"),
        ({"source": "jsonl", "options": {"paths": ["/a/b.gz", "c", "d", "e"]}}, False, "on b.gz, c, d and others"),
        ({"path": "/corpora/legal/", "source": "docstrings"}, False, "on legal"),
        ({"parts": {"own": {}, "general": {}}}, False, "on own, general"),
        ({"source": "text_files", "options": {"paths": "sha256:1"}}, True, "on private text"),
        ({"source": "jsonl", "options": {"paths": 5}}, False, "on 5"),
        ({}, False, ""),
    ],
)  # fmt: skip
def test_the_text_has_a_name(corpus, private, expected):
    run = {**RUN, "config": {"objective": {}, "corpus": corpus, "private": private}}
    assert report_title(run) == f"ELECTRA, 1.50M parameters, pretrained {expected}".rstrip()


def test_fine_tuning_begins_with_what_it_is(tmp_path):
    run = {"config": {"task": {"name": "multiple_choice"}}, "identity": {"init": "/models/small/"},
           "about": {"family": "BERT", "parameters": 4000, "examples": 1, "steps_per_epoch": {"train": 20.0}},
           "phases": {"train": {"num_steps": 60, "batch_size": 8, "max_length": 32}}}  # fmt: skip
    lines = [{"step": step, "split": "eval", "time": 1.0 * step, "accuracy": step / 100} for step in (0, 60)]
    found = {"num_examples": 9, "metrics": {"accuracy": 0.6}, "standard_errors": {"accuracy": 0.25}}
    details = {"metric": "accuracy", "best_step": 60, "splits": {"dev": found}}
    text, html = report(tmp_path, run, lines, details=details, baselines={"chance_rate": 0.5})
    assert "<h1>BERT, 4.00k parameters, fine-tuned for multiple choice</h1>" in html
    assert (
        "A BERT model of 4.00k parameters, begun from small, fine-tuned on 1 example, for 60 steps, 3 epochs."
        " accuracy on held-out examples: 0.600 ± 0.250; without learning: chance 0.500."
    ) in text
    assert "measure first best accuracy 0.000 0.600 at step 60" in text, "the scores have the last, and what to beat"
    text, _ = report(tmp_path, {**run, "identity": {}}, lines)
    assert "begun from random weights" in text


@pytest.mark.parametrize(
    ("every", "expected"),
    [(20, ""), (50, "phase2 (40 steps)"), (200, "phase1 (100 steps), phase2 (40 steps)")],
)
def test_phases_that_are_too_short_to_time_are_named(tmp_path, every, expected):
    lines = [line for line in records() if line["split"] == "eval" or line["step"] % every == 0]
    if every == 50:
        lines = [line for line in records() if line["step"] <= 120]
        lines[-1]["step"] = 120
        lines.append({**records()[0], "step": 140})
    text, _ = report(tmp_path, RUN, lines)
    assert ("Too short to time" in text) == bool(expected)
    assert f"(config.training.log_every_steps): {expected}." in text or not expected
    alone = {**RUN, "phases": {"train": {"num_steps": 100, "batch_size": 8, "max_length": 32}}}
    windows = [{**line, "phase": None} for line in records(100)]
    assert "Too short to time" not in report(tmp_path, alone, windows)[0]
    assert "train (20 steps)" in report(tmp_path, alone, windows[:2])[0]


def test_the_steps_of_each_phase_are_known_within_a_phase():
    assert steps_done(RUN, 120) == {"phase1": 100, "phase2": 20}
    assert steps_done(RUN, 90) == {"phase1": 90, "phase2": 0}


def test_no_setting_is_shown_twice(tmp_path):
    run = RUN | {"facts": {"model": {"num_layers": 2}}, "workdir": "/w", "started": 1000.0, "run_id": "r1"}
    run["config"] = run["config"] | {
        "model": {"num_layers": 2, "size": "tiny"},
        "phases": {"phase1": {"max_length": 64}},
    }
    text, _ = report(tmp_path, run, records())
    assert text.count("model.num_layers") == 1
    assert "model.size" in text
    assert "started" not in text
    assert "phases.phase1.num_steps" in text
    assert text.count("phases.phase1.max_length 32") == text.count("phases.phase1.max_length") == 1, "as it trained"


def test_keys_do_not_break_and_narrow_windows_name_each_cell():
    html = page.table([], [["corpus_fingerprint", "abc"]], keys=True)
    assert '<table class="keys">' in html
    assert re.search(r"\.keys th\[scope=row\] \{ white-space: nowrap; overflow-wrap: normal", page.STYLE)
    html = page.table(["measure", "first", "to beat"], [["loss", "1", "2"]])
    assert '<td class="n" data-of="first">1</td><td class="n" data-of="to beat">2</td>' in html
    assert "content: attr(data-of)" in page.STYLE
    hostile = page.table(["a", '"><script>'], [["b", "c"]])
    assert "<script>" not in hostile


@pytest.mark.parametrize(("number", "style"), [(2, ""), (8, "few"), (30, "many")])
def test_a_table_that_may_not_fit_says_so(number, style):
    labels = [f"label {i}" for i in range(number)]
    found = {"kind": "classes", "confusion": {"labels": labels, "counts": [[1] * number] * number}}
    html = error_sections({"splits": {"dev": found}})
    assert ("scroll sideways" in html) == bool(style)
    assert f'class="small sideways {style}"' in html or not style
