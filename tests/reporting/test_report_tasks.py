"""The page of a fine-tuned run: what its files say is on it, for every kind of task, and hostile text stays text."""

import json

import pytest

from bert_jax.reporting.measures import BASELINES
from bert_jax.reporting.status import describe
from bert_jax.tasks import classification, multiple_choice, regression, sentence_embeddings, span_qa, tagging
from bert_jax.tasks.findings import findings
from tests.reporting.test_report import HOSTILE, Reader, text_of

CONFIG = {"task": {"name": "any"}, "phases": {"train": {"num_epochs": 2.0}}}


def classes(odd):
    records = [
        {"id": odd, "prediction": "news", "label": "sport", "probabilities": {"news": 0.9, "sport": 0.1}},
        {"id": "1", "prediction": "sport", "label": "sport", "probabilities": {"news": 0.3, "sport": 0.7}},
    ]
    return ["news", "sport"], [{"text": f"first {odd}", "pair": odd}, {"text": "t"}], records, None


def tags(odd):
    words = ["anna", "smith", "in", odd]
    record = {"id": "0", "words": words, "prediction": ["B-PER", "I-PER", "O", "O"], "probabilities": [0.9] * 4}
    truth = ["B-PER", "I-PER", "O", "B-LOC"]
    entities = {"mode": "conll", "scheme": None}
    return ["O", "B-LOC", "B-PER", "I-PER"], [{"words": words}], [{**record, "label": truth}], entities


def numbers(odd):
    records = [{"id": str(i), "prediction": 0.3 * i, "label": 0.25 * i} for i in range(9)]
    return [], [{"text": odd, "pair": "p"}] * 9, records, None


def choices(odd):
    record = {"id": "0", "prediction": 1, "text": odd, "label": 0, "probabilities": [0.25, 0.75]}
    return [], [{"context": odd, "question": "and?", "choices": ["one", odd]}], [record], None


def answers(odd):
    context = f"{'a ' * 200}It stood in Rome then, {odd} not in Paris. {'b ' * 200}"
    start = context.index("Paris")
    entries = [{"text": "Paris", "score": 2.0, "probability": 0.8, "start": start, "end": start + 5}]
    record = {
        "id": "0",
        "prediction": "Paris",
        "start": start,
        "end": start + 5,
        "answers": ["Rome"],
        "n_best": entries,
    }
    given = [{"text": "Rome", "answer_start": context.index("Rome")}]
    return [], [{"question": f"Where {odd}?", "context": context, "answers": given}], [record], None


def pairs(odd):
    return [], [{"text": odd, "positive": "p"}], [{"id": "0", "prediction": 0.125}], None


KINDS = {"classes": classes, "tags": tags, "numbers": numbers, "choices": choices, "answers": answers, "pairs": pairs}
TASKS = (classification, tagging, regression, multiple_choice, span_qa, sentence_embeddings)
JUDGES = {module.Task.judge.form: module.Task.judge for module in TASKS}


def write_tuned(folder, kind="classes", odd="plain", config=CONFIG):
    """Write the files of a run of 2 epochs with 10 steps each, of which the first was chosen."""
    lines = [{"step": 0, "split": "eval", "time": 0.0, "loss": 0.75, "accuracy": 0.25, "PER_f1": 0.1}]
    for step in (4, 8, 10, 20):
        lines.append({"step": step, "split": "train", "time": 1.0 * step, "loss": 1 / step, "accuracy": step / 40})
        if step % 10 == 0:
            held = {"loss": 0.5 + step / 100, "accuracy": 0.9 - step / 100, "PER_f1": 0.5}
            lines.append({"step": step, "split": "eval", "time": 1.0 * step, **held})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    labels, examples, records, entities = KINDS[kind](odd)
    metrics = {"loss": 0.6, "accuracy": 0.8}
    found = findings(JUDGES[kind], labels, examples, records, entities)
    found = {"num_examples": len(examples), "metrics": metrics, **found}
    details = {"task": "any", "metric": "accuracy", "best_step": 10, "labels": labels, "splits": {"dev": found}}
    contents = {
        "run": {"run_id": "r", "name": odd, "config": config, "identity": config, "titles": {"accuracy": "Accuracy"}},
        "status": {"state": "finished", "num_train_steps": 20},
        "baselines": {"majority_rate": 0.6, "mean_label_loss": 0.9},
        "details": details,
        "results": {"best_step": 10, "metric": "accuracy", "metrics": {"dev": metrics}},
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_whole_html_and_hostile_text_stays_text(tmp_path, kind):
    text, html = text_of(write_tuned(tmp_path, kind, HOSTILE))
    reader = Reader(html)
    assert not {"script", "img", "a", "link"} & set(reader.tags)
    assert not {"src", "href", "onerror"} & {name for name, _ in reader.attributes}
    assert HOSTILE in text


def test_classes_with_confusions_scores_and_the_wrong_example(tmp_path):
    text, html = text_of(write_tuned(tmp_path))
    sections = ("Which labels are mixed up", "Label by label", "1 of 2 is wrong")
    for expected in (*sections, "first plain", "90.0%", "10.0%"):
        assert expected in text
    assert 'title="sport, predicted news: 1 of 2"' in html


def test_figures_of_the_chosen_step_lead_beside_the_baseline(tmp_path):
    text, _ = text_of(write_tuned(tmp_path))
    assert "Accuracy, held-out 0.800 0.200 above majority rate 0.600" in " ".join(text.split())
    assert "chosen by the held-out accuracy" in text
    assert BASELINES["accuracy"][0] == ("majority_rate", "majority rate")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("tags", ["<u>plain</u>", "<small>LOC</small>", "anna smith<small>PER</small>"]),
        ("numbers", ["The largest errors"]),
        ("choices", ['<li class="chosen">', '<li class="right">', "75.0%"]),
        ("answers", ['<mark class="predicted">Paris</mark>', '<mark class="right">Rome</mark>', "80.0%"]),
        ("pairs", ["cosine 0.125"]),
    ],
)
def test_each_kind_shows_its_errors(tmp_path, kind, expected):
    _, html = text_of(write_tuned(tmp_path, kind))
    for part in expected:
        assert part in html


def test_a_run_without_details_yet_has_its_results(tmp_path):
    write_tuned(tmp_path)
    (tmp_path / "details.json").unlink()
    text, _ = text_of(tmp_path)
    assert "Held-out results" in text
    assert "Scores" not in text


@pytest.mark.parametrize("content", ["{", "[1]", '{"splits": 3}', '{"splits": {"dev": {"kind": "new"}}}'])
def test_spoilt_details_spoil_no_page(tmp_path, content):
    write_tuned(tmp_path)
    (tmp_path / "details.json").write_text(content)
    text, _ = text_of(tmp_path)
    assert "Held-out results" in text


def test_a_pretraining_run_is_not_taken_for_one(tmp_path):
    text, _ = text_of(write_tuned(tmp_path, config={"objective": {"name": "mlm"}}))
    assert "Scores" not in text


def test_the_status_tells_what_was_chosen(tmp_path):
    lines = describe(write_tuned(tmp_path)).splitlines()
    assert lines[-2:] == ["chosen   step 10", "dev      accuracy 0.800, loss 0.600"]
