"""Span question answering: what the rows hold, and what the scores are decoded to."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows.example_rows import ExampleRows
from bert_jax.runs.prepared import Request
from bert_jax.runs.run import finetune
from bert_jax.tasks.answers import locate
from bert_jax.tasks.base import KIND
from bert_jax.tasks.metrics.spans import normalize
from bert_jax.tasks.span_qa import Task
from tests.tasks.questions import knowing, make_task, question, random_outputs, tokenizer, write_squad

LONG = " ".join(f"{i} {name} was here." for i, name in enumerate(["ann", "bob", "cy", "dora", "ed", "flo", "gus"] * 4))


# ---- Answers in their contexts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [
        ("ann", 2, (2, 5, "right")),
        ("ann", 3, (2, 5, "moved")),
        ("ann", 0, (2, 5, "moved")),
        ("ann", 40, (9, 12, "moved")),
        ("ann", -7, (2, 5, "moved")),
        ("a", 0, (2, 3, "moved")),
        ("ann", 6, (9, 12, "moved")),
        (" ann ", 1, (1, 6, "right")),
        (" ann", 0, (2, 5, "moved")),
        ("zoe", 2, (0, 0, "absent")),
        ("  ", 5, (0, 0, "absent")),
    ],
)
def test_an_answer_is_where_it_stands_nearest(text, start, found):
    assert locate("x ann or ann", text, start) == found


def test_wrong_places_are_counted_and_named_and_used_or_not():
    examples = [question(LONG, "bob"), question(LONG, "cy", start=0), question(LONG, "zoe", start=3)]
    repaired, dropped = (
        make_task({"train": examples, "dev": examples}, max_length=72, max_query_length=4, bad_answers=policy)
        for policy in ("repair", "drop")
    )
    assert "dev: 2 of 3 answers" in repaired.notes[1]
    assert "1 taken" in repaired.notes[1]
    assert "1 not in the context" in repaired.notes[1]
    assert "zoe" in repaired.notes[1]
    assert set(repaired.rows["train"].arrays["example_ids"]) == {0, 1}
    assert set(dropped.rows["train"].arrays["example_ids"]) == {0}
    for task, known in ((repaired, [1, 1, 0]), (dropped, [1, 0, 0])):  # what is evaluated keeps every question
        rows = task.rows["dev"].arrays
        assert [rows["label_weights"][rows["example_ids"] == i].max() for i in range(3)] == known
        assert task.finish("dev", knowing(task, "dev"))["exact_match"] == pytest.approx(100 * sum(known) / 3)
    with pytest.raises(UserError, match="1 taken not used|2 of 3 answers"):
        make_task({"train": examples}, bad_answers="error")


def test_questions_without_an_answer_need_version_2():
    splits = {"train": [question(LONG, "ann")], "dev": [question(LONG, None), question(LONG, "bob")]}
    with pytest.raises(UserError, match=r"dev: 1 .*None.*version_2=True"):
        make_task(splits)
    task = make_task(splits, version_2=True)
    rows = task.rows["dev"].arrays
    unanswered = rows["example_ids"] == 0
    assert (rows["start_positions"][unanswered] == 0).all()
    assert (rows["label_weights"] == 1).all()


def test_settings_that_leave_no_capacity_are_errors():
    with pytest.raises(UserError, match=r"max_length is 64.*max_query_length 64"):
        make_task({"dev": [question(LONG, "ann")]}, max_length=64)
    with pytest.raises(UserError, match=r"doc_stride is 0"):
        make_task({"dev": [question(LONG, "ann")]}, doc_stride=0)
    with pytest.raises(UserError, match=r"language is 'zh'"):
        make_task({"dev": [question(LONG, "ann")]}, version_2=True, language="zh")


def test_a_note_counts_windows_and_answers_that_no_window_holds():
    examples = [question(LONG, name) for name in ("9 cy", "11 ed", LONG[:120])]
    for stride, held in ((4, "lower config.task.doc_stride (4)"), (400, "raise config.phases.train.max_length (64)")):
        task = make_task({"dev": examples}, max_length=64, max_query_length=9, doc_stride=stride)
        with_answer = np.count_nonzero(task.rows["dev"].arrays["start_positions"])
        [line] = [note for note in task.notes if "windows" in note]
        windows = f"{len(task.rows['dev']):,} windows of at most 64 tokens, {with_answer} with an answer"
        assert line.startswith(f"dev: 3 questions, {windows}; for ")
        assert "no window holds the whole answer" in line
        assert held in line
    [line] = [note for note in make_task({"dev": examples}).notes if "windows" in note]
    assert line == "dev: 3 questions, 3 windows of at most 384 tokens, 3 with an answer"


def test_no_answer_is_where_cls_is():
    """With [CLS] after a text, as in XLNet, rows hold the same windows, and the same scores give the same answers."""
    examples = [question(LONG, "bob"), question(LONG, None), question(LONG, "11 ed")]
    usual, moved = (
        make_task({"dev": examples}, using, 64, max_query_length=9, doc_stride=8, version_2=True)
        for using in (tokenizer(), tokenizer().with_added([], cls_last=True))
    )
    sizes, width = usual.rows["dev"].lengths, usual.lengths[KIND]

    def with_first_last(x):
        return np.stack([np.concatenate([x[i, 1:n], x[i, :1], x[i, n:]]) for i, n in enumerate(sizes)])

    before, after = (task.rows["dev"].take(np.arange(len(sizes)), width) for task in (usual, moved))
    np.testing.assert_array_equal(after["input_ids"], with_first_last(before["input_ids"]))
    types = with_first_last(before["token_type_ids"])
    types[np.arange(len(sizes)), sizes - 1] = 2
    np.testing.assert_array_equal(after["token_type_ids"], types)
    for name in ("start_positions", "end_positions"):
        assert 0 < np.count_nonzero(before[name]) < len(sizes)
        np.testing.assert_array_equal(after[name], np.where(before[name] > 0, before[name], sizes) - 1)
    scores = random_outputs(usual, "dev")
    assert usual.decode("dev", scores) == moved.decode("dev", {n: with_first_last(x) for n, x in scores.items()})
    assert moved.finish("dev", knowing(moved, "dev"))["exact"] == 100


# ---- Rows --------------------------------------------------------------------------------------------------------


def test_rows_are_question_and_window_and_the_answer_is_where_the_row_says():
    long_question = question(LONG, "9 cy", question="who was there ? " * 9)
    examples = [long_question, question(LONG, "11 ed was")]
    task = make_task({"dev": examples}, max_length=64, max_query_length=9, doc_stride=8)
    rows, vocab = task.rows["dev"], task.setting.tokenizer.vocab
    batch = rows.take(np.arange(len(rows)), 64)
    with_answer = set()
    for i, ids in enumerate(batch["input_ids"]):
        size = rows.lengths[i]
        pieces = [vocab[n] for n in ids[:size]]
        first = pieces.index("[SEP]")
        asked = 9 if batch["example_ids"][i] == 0 else 4
        assert pieces[0] == "[CLS]"
        assert pieces[-1] == "[SEP]"
        assert first == asked + 1
        assert batch["token_type_ids"][i].tolist() == [0] * (first + 1) + [1] * (size - first - 1) + [0] * (64 - size)
        assert batch["attention_mask"][i].tolist() == [1] * size + [0] * (64 - size)
        start, end = batch["start_positions"][i], batch["end_positions"][i]
        text = "".join(piece.removeprefix("##") for piece in pieces[start : end + 1])
        wanted = ("9cy", "11edwas")[batch["example_ids"][i]]
        passage = "".join(piece.removeprefix("##") for piece in pieces[first + 1 : -1])
        assert (start, end) == (0, 0) if wanted not in passage else text == wanted
        with_answer |= {int(batch["example_ids"][i])} if start else set()
    assert with_answer == {0, 1}
    assert (np.bincount(batch["example_ids"]) > 5).all(), "the test needs many windows"


def test_rows_and_specs_of_a_batch_agree():
    examples = [question(LONG, "ann"), question("bob came .", "bob")]
    task = make_task({"train": examples, "dev": examples}, max_length=72, max_query_length=4)
    source = task.source("train", KIND, 0)
    assert isinstance(source, ExampleRows)
    batch = source.rows(np.zeros(4, np.int64), np.arange(4))
    spec = task.batch_specs[KIND]
    assert {name: (value.shape[1:], str(value.dtype)) for name, value in batch.items()} == {
        name: (tuple(feature.shape), feature.dtype) for name, feature in spec.items()
    }


def test_loss_is_the_mean_of_two_cross_entropies_over_all_positions():
    rng = np.random.default_rng(0)
    start, end = rng.normal(size=(2, 3, 7)).astype(np.float32)
    weights = np.array([1, 0, 1], np.float32)
    batch = {"start_positions": [2, 1, 0], "end_positions": [4, 1, 0], "label_weights": weights}
    task = make_task({"dev": [question(LONG, "ann")]})
    sums = task.score(
        {"start_logits": jnp.array(start), "end_logits": jnp.array(end)}, {k: jnp.array(v) for k, v in batch.items()}
    )

    def nll(logits, targets):
        logits = logits.astype(np.float64)
        return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(3), targets]

    wanted = (nll(start, batch["start_positions"]) + nll(end, batch["end_positions"])) / 2
    assert float(sums["loss"].value) == pytest.approx(float((wanted * weights).sum()), rel=1e-6)
    assert float(sums["loss"].count) == 2


# ---- Decoding ----------------------------------------------------------------------------------------------------


def every_answer(task: Task, split: str, outputs) -> list[list[tuple[float, str]]]:
    """(score, text) of all pairs that may be an answer, tried one by one."""
    rows, vocab = task.rows[split], task.setting.tokenizer.vocab
    found: list[list[tuple[float, str]]] = [[] for _ in task.setting.splits[split]]
    contexts = {e["context"] for e in task.setting.splits[split]}
    offsets = {text: task.setting.tokenizer.encode(text).offsets[1:-1] for text in contexts}
    _, windows = task.layouts[split]
    for i in range(len(rows)):
        number = int(rows.arrays["example_ids"][i])
        same = np.flatnonzero(rows.arrays["example_ids"] == number)
        layouts = {int(j): (int(windows.starts[j]), int(windows.sizes[j])) for j in same}
        context = task.setting.splits[split][number]["context"]
        ids = rows.take(np.array([i]), task.lengths[KIND])["input_ids"][0].tolist()
        prefix = ids.index(vocab.index("[SEP]")) + 1
        start, size = layouts[i]
        for a in range(size):
            token = start + a
            ranks = {
                j: min(token - s, s + n - 1 - token) + 0.01 * n for j, (s, n) in layouts.items() if s <= token < s + n
            }
            if max(ranks, key=lambda j: (ranks[j], -j)) != i:
                continue
            for b in range(a, min(a + task.config.max_answer_length, size)):
                score = float(outputs["start_logits"][i, prefix + a]) + float(outputs["end_logits"][i, prefix + b])
                found[number].append((score, context[offsets[context][token][0] : offsets[context][start + b][1]]))
    return found


@pytest.fixture(scope="module")
def windowed() -> Task:
    examples = [question(LONG, "bob"), question("zoe came .", "zoe"), question(LONG[:150], "dora", id="third")]
    return make_task({"dev": examples}, max_length=56, max_query_length=4, doc_stride=16, max_answer_length=6, n_best=8)


def test_the_best_answers_equal_the_best_of_all_pairs(windowed):
    outputs = random_outputs(windowed, "dev")
    assert len(windowed.rows["dev"]) > 12, "the test needs many windows"
    wanted = every_answer(windowed, "dev", outputs)
    for record, pairs in zip(windowed.predictions("dev", outputs), wanted, strict=True):
        pairs.sort(key=lambda pair: -pair[0])
        texts = list(dict.fromkeys(text for _, text in pairs))  # only texts that differ
        assert record["prediction"] == texts[0]
        assert record["score"] == pytest.approx(pairs[0][0], abs=1e-6)
        # The n best pairs of each window are kept, and pairs with equal texts are merged.
        got = [entry["text"] for entry in record["n_best"]]
        assert got[:5] == texts[:5]
        assert len(set(got)) == len(got) <= 8
        assert sum(entry["probability"] for entry in record["n_best"]) == pytest.approx(1, abs=1e-5)
        context = next(e["context"] for e in windowed.setting.splits["dev"] if e["id"] == record["id"])
        assert all(context[entry["start"] : entry["end"]] == entry["text"] for entry in record["n_best"])


def test_a_model_that_looks_outside_of_the_passage_still_answers(windowed):
    outputs = random_outputs(windowed, "dev")
    for logits in outputs.values():
        logits[:, :6] += 100  # [CLS] and the question
        logits[windowed.rows["dev"].take(np.arange(len(logits)), 56)["attention_mask"] == 0] += 100
    assert all(record["prediction"] for record in windowed.predictions("dev", outputs))


def test_outputs_that_are_no_numbers_give_no_answer():
    short = make_task({"dev": [question("zoe", "zoe"), question(LONG, "bob")]}, max_length=56, max_query_length=4)
    outputs = {name: np.full_like(values, np.nan) for name, values in random_outputs(short, "dev").items()}
    assert [record["prediction"] for record in short.predictions("dev", outputs)] == ["", ""]


def test_a_question_is_decoded_alike_alone_and_among_others(windowed):
    outputs = random_outputs(windowed, "dev")
    numbers, examples = windowed.rows["dev"].arrays["example_ids"], windowed.setting.splits["dev"]
    for number, record in enumerate(windowed.predictions("dev", outputs)):
        setting = dataclasses.replace(windowed.setting, splits={"dev": (examples[number],)})
        alone = {name: values[numbers == number] for name, values in outputs.items()}
        assert Task(windowed.config, setting).predictions("dev", alone) == [record]


# ---- Questions without an answer ---------------------------------------------------------------------------------


@pytest.fixture
def version_2() -> Task:
    examples = [
        question(LONG, "bob"),
        question(LONG, None),
        question(LONG, "dora"),
        question(LONG[:90], None, id="other"),
    ]
    return make_task({"dev": examples}, max_length=64, max_query_length=4, version_2=True)


def test_null_odds_are_the_lowest_null_score_over_the_best_answer(version_2):
    outputs = random_outputs(version_2, "dev")
    ids = version_2.rows["dev"].arrays["example_ids"]
    for number, record in enumerate(version_2.predictions("dev", outputs)):
        null = (outputs["start_logits"][ids == number, 0] + outputs["end_logits"][ids == number, 0]).min()
        best = next(entry for entry in record["n_best"] if entry["text"])
        assert record["null_odds"] == pytest.approx(float(null) - best["score"], abs=1e-5)
        assert record["prediction"] == ("" if record["null_odds"] > 0 else best["text"])
        assert {"text": "", "start": None, "end": None}.items() <= next(
            entry.items() for entry in record["n_best"] if not entry["text"]
        )


def test_the_threshold_is_searched_and_obeyed(version_2):
    """A model that finds every answer, and holds each for likelier by 5 than it should."""
    outputs = knowing(version_2, "dev")
    ids = version_2.rows["dev"].arrays["example_ids"]
    for logits in outputs.values():
        logits[:, 0] = np.where(np.isin(ids, [1, 3]), -2.5, -10)
        logits[np.isin(ids, [1, 3]), 10] = 2
    metrics = version_2.finish("dev", outputs)
    assert metrics["HasAns_f1"] == 100
    assert metrics["NoAns_f1"] == 0
    assert metrics["f1"] == 50
    assert metrics["best_f1"] == 100
    assert metrics["best_f1_thresh"] == pytest.approx(-40)
    config = dataclasses.replace(version_2.config, null_score_diff_threshold=metrics["best_f1_thresh"])
    with_threshold = Task(config, version_2.setting)
    assert with_threshold.finish("dev", outputs)["f1"] == 100
    assert [record["prediction"] for record in with_threshold.predictions("dev", outputs)] == ["bob", "", "dora", ""]


# ---- Through the real run ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_device")
def test_a_tiny_model_learns_a_few_questions_by_heart(tmp_path):
    names = ["ann", "bob", "cy", "dora", "ed", "flo"]
    examples = []
    for i, name in enumerate(names):
        before = " ".join(f"{other} sat." for other in names[i:] + names[:i])
        context = f"{before} {name} won {i}."
        examples.append(question(context, name, start=context.rindex(name), id=f"q{i}", question="who won ?"))
        examples.append(question(context, None, id=f"n{i}", question="why lost ?"))
    write_squad(tmp_path / "dev.json", examples)
    write_squad(tmp_path / "train.json", [e | {"id": f"{k}-{e['id']}"} for k in range(60) for e in examples])
    config = {
        "task": {"name": "span_qa", "version_2": True, "max_query_length": 6, "doc_stride": 8},
        "data": {"format": "squad_json", "splits": {"train": "train.json", "dev": "dev.json"}},
        "model": {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "mlp_dim": 64, "max_length": 24,
                  "dropout_rate": 0.0, "attention_dropout_rate": 0.0, "initializer_range": 0.08},
        "vocab": {"size": 80, "min_frequency": 1},
        "phases": {"train": {"num_epochs": 1.0, "batch_size": 8, "max_length": 24}},
        "schedule": {"peak_learning_rate": 2e-3},
        "packing": "none",
        "training": {"loggers": ()},
        "export": False,
    }  # fmt: skip
    metrics = finetune(config, Request(str(tmp_path / "run"), data=str(tmp_path)))
    assert metrics["HasAns_exact"] > 90
    assert metrics["NoAns_exact"] > 90
    records = [json.loads(line) for line in (tmp_path / "run" / "predictions_dev.jsonl").read_text().splitlines()]
    right = [normalize(r["prediction"]) == normalize((r["answers"] or [""])[0]) for r in records]
    assert metrics["exact"] == pytest.approx(100 * np.mean(right))
