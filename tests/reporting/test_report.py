"""The report needs no network, is whole HTML, and shows hostile text as text."""

import json
import re
import time
from html.parser import HTMLParser

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.reporting import measures, progress
from bert_jax.reporting.observer import Observer
from bert_jax.reporting.report import write_report
from bert_jax.reporting.report_speed import paces

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = """<script>alert("x")</script><img src=x onerror=y>'&https://evil.example/"""


class Reader(HTMLParser):
    """Checks that tags nest, and keeps attributes and text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def text_of(folder):
    """Write the report of a run; return its text and its HTML."""
    write_report(folder)
    html = (folder / "report.html").read_text()
    return " ".join(Reader(html).text), html


def write_run(folder, steps=40, hostile=False, **files):
    odd = HOSTILE if hostile else "plain"
    records = [{"step": 0, "split": "eval", "time": 1000.0, "mlm_loss": 9.0, "nsp_accuracy": 0.5}]
    for step in range(1, steps + 1):
        metrics = {"mlm_loss": 9.0 - step / 10, "gradient_norm": 1.0 / step, "learning_rate": 1e-4, "phase": odd}
        records.append({"step": step, "split": "train", "time": 1000.0 + step, **metrics, "tokens_per_second": None})
        if step % 10 == 0:
            evaluation = {"mlm_loss": 9.1 - step / 10, "nsp_accuracy": 0.5 + step / 100}
            records.append({"step": step, "split": "eval", "time": 1000.0 + step, **evaluation})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def all_files(odd):
    return {
        "run": {"run_id": "r1", "name": odd, "command": f"bert-jax pretrain {odd}", "config": {"data": {odd: [odd]}},
                "corpus_fingerprint": "abc123", "versions": {"jax": odd},
                "restarts": [{"step": 20, "time": 1020.0}], "titles": {"mlm_loss": f"Masked-LM loss {odd}"}},
        "status": {"state": "failed", "last_error": odd, "num_train_steps": 50, "goodput": {"train": 30.0, odd: 10.0}},
        "baselines": {"unigram_cross_entropy": 6.0, "trigram_cloze_cross_entropy": 5.5, "nsp_majority_rate": 0.52},
        "examples": [{"text": f"a [MASK] {odd}", "predictions": [[[odd, 0.5], ["b", 0.25]]]}],
    }  # fmt: skip


def test_a_report_of_all_files_shows_what_they_say(tmp_path):
    write_run(tmp_path, **all_files("plain"))
    assert write_report(tmp_path) == str(tmp_path / "report.html")
    text, html = text_of(tmp_path)
    compared = ("0.400 better than 3-gram cloze 5.500", "0.380 better than majority rate 0.520")
    names = ("3-gram cloze 5.500", "restart at step 20", "Masked-LM loss", "Gradient norm")
    for expected in (*compared, *names, "5.100", "abc123", "50.0%", "of 50", "train 30 s (75.0%)"):
        assert expected in text
    assert html.count("<svg") == 4


def test_step_times_are_those_of_steady_windows(tmp_path):
    """The first window after a start and of a phase is ten times as slow, and counts nowhere."""
    write_run(
        tmp_path,
        run={"restarts": [{"step": 300}], "started": 1000.0},
        status={"state": "finished", "goodput": {"train": 80.0, "lost": 5.0, "compile": 15.0}, "heartbeat": 1160.0},
    )
    records = []
    for step in range(10, 1010, 10):
        phase = "phase1" if step <= 500 else "phase2"
        slow = 10.0 if step in (10, 310, 510) else 1.0
        seconds = (0.1 if phase == "phase1" else 4.0) * (1 + step % 500 / 5000) * slow
        speed = {"step_seconds": seconds, "mfu": 0.5 / slow, "tokens_per_second": 1000.0}
        records.append({"step": step, "split": "train", "time": 1000.0 + step, "phase": phase, "loss": 1.0, **speed})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    windows = paces(records, {"restarts": [{"step": 300}]})
    assert [(w.phase, len(w.records), w.steps) for w in windows] == [("phase1", 48, 10), ("phase2", 49, 10)]
    times = np.array([record["step_seconds"] for record in records[:50]])[[*range(1, 30), *range(31, 50)]]
    assert windows[0].percentile(90) == pytest.approx(float(np.percentile(times, 90)), rel=1e-9)
    text, _ = text_of(tmp_path)
    for expected in ("phase1 48 of 10 steps 105 ms", "phase2 49 of 10 steps 4.2 s", "1.00k 50.0%", "step time p99"):
        assert expected in text
    assert "Goodput 80.0%" in text
    assert "lost 5 s (5.0%)" in text


def test_a_report_needs_only_the_metrics(tmp_path):
    write_run(tmp_path)
    text, _ = text_of(tmp_path)
    assert "5.100" in text
    assert "Where the time went" not in text
    assert "How fast it was" not in text


def test_nothing_is_fetched_and_hostile_text_stays_text(tmp_path):
    write_run(tmp_path, hostile=True, **all_files(HOSTILE))
    write_report(tmp_path)
    html = (tmp_path / "report.html").read_text()
    reader = Reader(html)
    assert not {"script", "img", "link", "iframe", "object", "a"} & set(reader.tags)
    assert not {"src", "href", "srcset", "onerror"} & {name for name, _ in reader.attributes}
    assert not re.search(r"url\(|@import|xmlns", html)
    assert "default-src 'none'" in html
    assert HOSTILE in "".join(reader.text)
    write_run(tmp_path, **all_files("plain"))
    assert "://" not in text_of(tmp_path)[1]


def test_a_task_with_other_metrics_is_drawn_too(tmp_path):
    lines = [{"step": s, "split": "eval", "time": 1.0 * s, "f1": s / 10, "exact_match": s / 20} for s in range(5)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, html = text_of(tmp_path)
    assert html.count("<svg") == 2
    assert "exact match, held-out" in html


def test_a_long_run_stays_a_small_file(tmp_path):
    write_run(tmp_path, steps=20_000)
    write_report(tmp_path)
    html = (tmp_path / "report.html").read_text()
    assert len(html) < 1_000_000
    assert max(len(re.findall("[ML]", d)) for d in re.findall(r'<path[^>]* d="([^"]*)"', html)) <= 1000


@pytest.mark.parametrize("content", ["{", "[1, 2]", '"text"'])
def test_spoilt_side_files_are_left_out(tmp_path, content):
    write_run(tmp_path)
    for name in ("run", "status", "baselines", "examples"):
        (tmp_path / f"{name}.json").write_text(content)
    text, _ = text_of(tmp_path)
    assert "5.100" in text
    assert "Where the time went" not in text


def test_without_a_record_it_is_an_error_that_says_so(tmp_path):
    with pytest.raises(UserError, match="nothing was trained there"):
        write_report(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="no record yet"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_run_of_one_record_is_drawn(tmp_path):
    record = {"step": 5, "split": "train", "time": 1.0, "mlm_loss": 8.0, "gradient_norm": 3.77, "learning_rate": 0.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    assert text_of(tmp_path)[1].count("<svg") == 3


PHASES = {"phase1": {"num_steps": 25, "max_length": 32}, "phase2": {"num_steps": 15, "max_length": 128}}


@pytest.mark.parametrize(("eval_phase", "heldout"), [(None, 128), ("phase1", 32)])
def test_phases_are_marked_where_they_begin_and_their_row_lengths_given(tmp_path, eval_phase, heldout):
    write_run(tmp_path, run={"phases": PHASES, "config": {"training": {"eval_phase": eval_phase}}})
    text, _ = text_of(tmp_path)
    assert "phase2 at step 25" in text
    assert "phase phase2" not in text
    assert f"Held-out rows have {heldout} tokens throughout" in text
    assert "32 from step 0 (phase1), then 128 from step 25 (phase2)" in text


def test_rows_of_one_length_need_no_word(tmp_path):
    write_run(tmp_path, run={"phases": {"phase1": PHASES["phase1"]}})
    assert "Held-out rows have" not in text_of(tmp_path)[0]


def test_an_extension_is_no_restart(tmp_path):
    entries = [{"step": 20}, {"step": 30, "extended": ["config.phases.phase1.num_steps: 30 -> 40"]}, {"step": 35}]
    status = {"state": "finished", "goodput": {"train": 9.0, "lost": 1.0}}
    write_run(tmp_path, run={"restarts": entries, "started": 1000.0}, status=status)
    text, _ = text_of(tmp_path)
    for expected in ("2 restarts", "1 extension", "extension at step 30", "restart at step 35"):
        assert expected in text, expected
    assert "3 restarts" not in text


def test_a_run_was_made_from_its_facts_and_its_settings(tmp_path):
    run = {
        "command": "bert-jax pretrain --config.corpus.path=poems",
        "config": {"corpus": {"path": "poems"}, "seed": 1},
        "identity": {"corpus": {"path": "poems"}, "init": "a_model", "seed": 1},
        "facts": {"model": {"num_layers": 2}},
    }
    write_run(tmp_path, run=run)
    text, html = text_of(tmp_path)
    made, _, settings = text.partition("What it was made from")[2].partition("Configuration")
    for expected in ("init a_model", "model.num_layers 2"):
        assert expected in made
    for expected in ("corpus.path poems", "seed 1"):
        assert expected in settings
        assert expected not in made
    assert '<span class="flag">--config</span>.corpus.path' in html


def test_a_restart_whose_step_was_not_kept_is_shown_without_it(tmp_path):
    write_run(tmp_path, run={"restarts": [{"time": 0.0}, {"time": 60.0, "step": 20}, {}]})
    text, _ = text_of(tmp_path)
    assert "on 1970-01-01 00:00 UTC; at step 20 on 1970-01-01 00:01 UTC; –" in text
    assert "step None" not in text


def test_a_value_is_held_against_its_strongest_baseline():
    known = {"unigram_cross_entropy": 6.0, "trigram_cloze_cross_entropy": 4.0, "majority_rate": 0.4, "chance_rate": 0.5}
    known |= {"unigram_cross_entropy/legal": 3.0}
    assert measures.comparison_lines({"mlm_loss": 4.5, "nsp_loss": 0.3}, known, "more")[0].endswith(
        "0.500 worse than 3-gram cloze 4.000"
    )
    assert measures.comparison_lines({"mlm_loss": 4.5}, known, "more")[-1] == "more"
    assert measures.comparison_lines({"mlm_loss/legal": 2.5}, known, "more", {"mlm_loss/legal": 2.75})[0].startswith(
        "held-out mlm loss/legal 2.500 (2.750 at step 0): "
    )
    assert measures.comparison_lines({"mlm_loss/legal": 2.5}, known, "more") == [
        "held-out mlm loss/legal 2.500: 0.500 better than unigram 3.000"
    ]
    of_parts = {f"unigram_cross_entropy/{part}": 3.0 for part in ("_", "old_text")}
    lines = measures.comparison_lines({"mlm_loss/_": 2.5, "mlm_loss/old_text": 2.5}, of_parts, "more")
    assert [line.partition(" 2.500")[0] for line in lines] == ["held-out mlm loss/_", "held-out mlm loss/old_text"]
    assert measures.compare_score("mlm_loss", 4.5, known) == ("0.500 worse than 3-gram cloze 4.000", "bad")
    assert measures.compare_score("mlm_loss/legal", 2.5, known) == ("0.500 better than unigram 3.000", "good")
    assert measures.compare_score("mlm_loss/other", 2.5, known) == ("", "")
    assert measures.compare_score("words_accuracy", 0.5, {"words_majority_rate": 0.3})[0].endswith(
        "majority rate 0.300"
    )
    assert measures.compare_score("accuracy", 0.45, known) == ("0.050 worse than chance 0.500", "bad")
    assert measures.compare_score("accuracy", 0.5, known) == ("no better than chance 0.500", "bad")
    assert measures.compare_score("matthews_correlation/dev", 0.0, {}) == (
        "no better than a constant answer 0.000",
        "bad",
    )
    of_tasks = {"reviews/majority_rate": 0.5, "topics/majority_rate": 0.9, "scores/mean_label_loss": 2.0}
    assert measures.compare_score("reviews/accuracy", 0.6, of_tasks) == (
        "0.100 better than majority rate 0.500",
        "good",
    )
    assert measures.compare_score("scores/loss", 1.0, of_tasks) == (
        "1.000 better than loss of the mean label 2.000",
        "good",
    )
    assert measures.compare_score("scores/pearson", 0.1, of_tasks) == (
        "0.100 better than a constant answer 0.000",
        "good",
    )
    assert measures.compare_score("mean", 0.6, of_tasks) == ("", "")
    assert measures.compare_score("spearmanr", 0.12, {}) == ("0.120 better than a constant answer 0.000", "good")


def test_the_page_says_what_a_baseline_is(tmp_path):
    named = {name for named in (*measures.BASELINES.values(), measures.OF_TEXTS) for _, name in named}
    assert measures.MEANINGS.keys() == named | {measures.CONSTANT}
    write_run(tmp_path, baselines={"unigram_cross_entropy": 6.0, "trigram_cloze_cross_entropy": 5.5})
    text, _ = text_of(tmp_path)
    assert "unigram (guesses words by their frequency alone)." in text
    assert "3-gram cloze (counts which word stands between two neighbours; a small model needs many steps" in text
    assert "majority rate (" not in text, "this run has none"


def test_what_takes_long_says_for_how_long(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    observer = Observer(str(tmp_path), {"run_id": "1", "name": "first", "config": {}}, 10, ())
    said = ""
    with observer.during("compiling"):
        while not said:
            time.sleep(0.01)
            said = capsys.readouterr().err
    assert said.startswith("still compiling: 0 s so far\n")
    capsys.readouterr()
    with observer.during("evaluating"):  # it counts its rows
        time.sleep(0.05)
    observer.log.close()
    observer.status.end("finished")
    assert capsys.readouterr().err == ""


def test_the_report_is_there_from_the_first_evaluation_on(tmp_path, capsys):
    observer = Observer(str(tmp_path), {"run_id": "1", "name": "first", "config": {}}, 10, ())
    observer.begin(0, False, float)
    assert not (tmp_path / "report.html").exists()
    observer.evaluation(0, {"mlm_loss": 7.25})
    assert "7.250" in (tmp_path / "report.html").read_text()
    (tmp_path / "report.html").unlink()
    (tmp_path / "report.html").mkdir()  # cannot be written: the run goes on
    observer.evaluation(5, {"mlm_loss": 6.5})
    observer.log.close()
    observer.status.end("finished")
    capsys.readouterr()
