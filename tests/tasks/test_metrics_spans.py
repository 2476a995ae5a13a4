"""Answer texts against the definitions of SQuAD and CMRC 2018, written down straight, on made and on real questions."""

import collections
import json
import lzma
import random
import re
import string

import pytest

from bert_jax.tasks.metrics import spans

CLOSE = {"abs": 1e-9, "rel": 0}
HARD_TEXTS = [
    "",
    " ",
    "the",
    "A.",
    "...",
    "The  an a",
    "U.S. army!",
    "the U.S. Army",
    "don't",
    "café—bar",
    "IV",
    "1,000",
]


def words(text):
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return [w for w in re.sub(r"\b(?:an|a|the)\b", " ", kept).split() if w]


def overlap(true, predicted):
    """F1 of two bags, from counts."""
    shared = sum(min(true.count(w), predicted.count(w)) for w in set(true))
    return 2 * shared / (len(true) + len(predicted)) if shared else 0.0


def squad_v1_by_definition(answers, predictions):
    exact = f1 = 0.0
    for key in answers:
        guess = words(predictions[key])
        exact += any(words(a) == guess for a in answers[key])
        f1 += max(overlap(words(a), guess) for a in answers[key])
    return {"exact_match": 100 * exact / len(answers), "f1": 100 * f1 / len(answers)}


def squad_v2_by_definition(answers, predictions, odds, threshold):
    """Scores a question, with "" above the threshold; then the means of all, of the answerable and of the others."""
    rows = collections.defaultdict(list)
    for key, texts in answers.items():
        guess = words("" if odds[key] > threshold else predictions[key])
        right = [w for w in map(words, texts) if w] or [[]]
        # A withheld answer to a question that has one is wrong, even where the answer normalises to nothing.
        fair = not (texts and odds[key] > threshold)
        exact = float(fair and guess in right)
        f1 = float(fair) * max(float(not guess) if not w else overlap(w, guess) for w in right)
        for group in ("", "HasAns_" if texts else "NoAns_"):
            rows[group].append((exact, f1))
    result = {}
    for group, scores in rows.items():
        for i, name in enumerate(("exact", "f1")):
            result[group + name] = 100 * sum(s[i] for s in scores) / len(scores)
        result[f"{group}total"] = len(scores)
    return result


def best_by_definition(answers, predictions, odds, name):
    """Tries every threshold, and one below all: only questions up to it are answered."""
    thresholds = [min(odds.values()) - 1, *odds.values()]
    return max(squad_v2_by_definition(answers, predictions, odds, threshold)[name] for threshold in thresholds)


def made_questions(seed, *, unanswerable=0.4):
    rng = random.Random(seed)
    vocabulary = [*"abcdefgh", "the", "The", "of", "of.", "U.S.", "x-y", "(1990)"]

    def text():
        return rng.choice(HARD_TEXTS) if rng.random() < 0.2 else " ".join(rng.choices(vocabulary, k=rng.randint(1, 5)))

    answers = {
        f"q{i}": [text() for _ in range(0 if rng.random() < unanswerable else rng.randint(1, 4))] for i in range(60)
    }
    predictions = {k: rng.choice(a) if a and rng.random() < 0.5 else text() for k, a in answers.items()}
    odds = {k: rng.gauss(0 if a else 1, 1) for k, a in answers.items()}
    return answers, predictions, odds


def test_squad_v1_is_its_definition():
    for seed in range(30):
        answers, predictions, _ = made_questions(seed, unanswerable=0)
        expected = squad_v1_by_definition(answers, predictions)
        assert spans.squad_v1_metrics(answers, predictions) == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize(
    ("answers", "prediction", "exact", "f1"),
    [
        (["the cat sat"], "A cat, sat!", 100, 100),
        (["the cat sat", "cat"], "cat", 100, 100),
        (["a b c d"], "b c x", 0, 100 * 4 / 6),  # "a" is an article: b, c of b, c, d
        (["b b c"], "b b b", 0, 100 * 2 / 3),
        (["the"], "a", 100, 0),  # both are empty once normalised: v1.1 knows no F1 of those
        (["cat"], "", 0, 0),
    ],
)
def test_squad_v1_by_hand(answers, prediction, exact, f1):
    found = spans.squad_v1_metrics({"q": answers}, {"q": prediction})
    assert found == pytest.approx({"exact_match": exact, "f1": f1}, **CLOSE)


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 1.0])
def test_squad_v2_is_its_definition(threshold):
    for seed in range(20):
        answers, predictions, odds = made_questions(seed)
        found = spans.squad_v2_metrics(answers, predictions, odds, threshold)
        expected = squad_v2_by_definition(answers, predictions, odds, threshold)
        assert {k: v for k, v in found.items() if not k.startswith("best")} == pytest.approx(expected, **CLOSE)


def test_the_best_threshold_is_the_best_of_all():
    for seed in range(20):
        answers, predictions, odds = made_questions(seed)
        # The search takes it that a prediction to be answered is not empty, nor is an answer.
        answers = {k: [a if words(a) else "b c" for a in texts] for k, texts in answers.items()}
        predictions = {k: text if words(text) else "b x" for k, text in predictions.items()}
        found = spans.squad_v2_metrics(answers, predictions, odds, 1.0)
        for name in ("exact", "f1"):
            best = best_by_definition(answers, predictions, odds, name)
            assert found[f"best_{name}"] == pytest.approx(best, **CLOSE)
            at_it = spans.squad_v2_metrics(answers, predictions, odds, found[f"best_{name}_thresh"])[name]
            assert at_it == pytest.approx(best, **CLOSE)


def test_the_search_takes_equal_scores_one_by_one():
    """As the official script does: its best can lie between two questions that no threshold parts."""
    answers = {"right": ["b"], "wrong": []}
    predictions = {"right": "b", "wrong": "x"}

    def best(answers, predictions, odds):
        found = spans.squad_v2_metrics(answers, predictions, odds, 0.0)
        assert (found["best_exact"], found["best_exact_thresh"]) == (found["best_f1"], found["best_f1_thresh"])
        return found["best_exact"], found["best_exact_thresh"]

    assert best(answers, predictions, {"right": 0.5, "wrong": 0.5}) == (100.0, 0.5)
    assert best(answers, predictions, {"wrong": 0.5, "right": 0.5}) == (50.0, 0.0)
    assert best({"wrong": []}, {"wrong": "x"}, {"wrong": -3.0}) == (100.0, 0.0), "nothing is gained"


def longest_run(a, b):
    def runs(segments, n):
        return {tuple(segments[i : i + n]) for i in range(len(segments) - n + 1)}

    return max((n for n in range(1, min(len(a), len(b)) + 1) if runs(a, n) & runs(b, n)), default=0)


def cmrc_segments(text):
    """Return the segments of a text whose Latin words have spaces between them, with no punctuation but CMRC's."""
    found = [""]
    for c in text.lower().strip():
        if c in "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』":
            continue
        if "\u4e00" <= c <= "\u9fa5":
            found += [c, ""]
        elif c.isspace():
            found.append("")
        else:
            found[-1] += c
    return [segment for segment in found if segment]


def test_cmrc_is_its_definition():
    rng = random.Random(0)
    alphabet = [*"甲乙丙，。《》·、", "ab", "C", " ", "-", "é", "12"]
    for _ in range(300):
        answers, prediction = ["".join(rng.choices(alphabet, k=rng.randint(1, 12))) for _ in range(3)], ""
        if rng.random() < 0.95:
            at = rng.randint(0, len(answers[0]) - 1)
            prediction = answers[0][:at] + "".join(rng.choices(alphabet, k=rng.randint(0, 4))) + answers[0][at + 1 :]
        guess = cmrc_segments(prediction)
        f1 = max(2 * longest_run(cmrc_segments(a), guess) / max(len(cmrc_segments(a)) + len(guess), 1) for a in answers)
        bare = [re.sub(r"[-，。《》·、]", "", t.lower().strip()) for t in (prediction, *answers)]
        expected = {"exact_match": 100.0 * (bare[0] in bare[1:]), "f1": 100 * f1}
        expected["average"] = sum(expected.values()) / 2
        found = spans.cmrc_metrics({"q": answers}, {"q": prediction})
        assert found == pytest.approx(expected, **CLOSE), (answers, prediction)


@pytest.mark.parametrize(
    ("answer", "prediction", "exact", "f1"),
    [
        ("《史记》", "史记", 100, 100),
        ("北京大学", "北京", 0, 100 * 4 / 6),
        ("北京大学", "北方大学", 0, 50),  # the longest run is 大学
        ("1990年", "1990 年", 0, 100),  # a space is no punctuation
        ("甲…", "甲", 0, 100 * 2 / 3),  # nor is one ellipsis, as the list holds two in one
        ("don't乙", "do乙", 0, 100 * 2 / 5),  # do, n't, 乙: Treebank words
        ("乙", "", 0, 0),
        ("甲乙" * 150, "丙" + "甲乙" * 150, 0, 100 * 600 / 601),  # long ones too
    ],
)
def test_cmrc_by_hand(answer, prediction, exact, f1):
    found = spans.cmrc_metrics({"q": [answer]}, {"q": prediction})
    assert found == pytest.approx({"exact_match": exact, "f1": f1, "average": (exact + f1) / 2}, **CLOSE)


def questions_of(file):
    data = json.loads(lzma.decompress(file.read_bytes()))["data"]
    rows = [(p["context"], q) for article in data for p in article["paragraphs"] for q in p["qas"]]
    return {q["id"]: (context, [a["text"] for a in q["answers"]]) for context, q in rows}


def near(rng, context, answers):
    """A span of the context: often a right one, often one that is a little off."""
    if not answers or rng.random() < 0.2:
        start = rng.randrange(len(context))
        return context[start : start + rng.randint(1, 40)]
    text = rng.choice(answers)
    if rng.random() < 0.3:
        return text
    start = max(context.find(text) + rng.randint(-6, 6), 0)
    return context[start : max(start + len(text) + rng.randint(-6, 6), start)]


def test_real_questions_of_squad_v2(shared_data):
    questions = questions_of(shared_data("squad_format_en") / "squad_v2_dev_subset_5articles.json.xz")
    rng = random.Random(0)
    answers = {k: a for k, (_, a) in questions.items()}
    predictions = {k: near(rng, *question) for k, question in questions.items()}
    odds = {k: round(rng.gauss(0 if a else 1, 1), 1) for k, a in answers.items()}  # many equal ones
    found = spans.squad_v2_metrics(answers, predictions, odds, 0.5)
    expected = squad_v2_by_definition(answers, predictions, odds, 0.5)
    assert {k: v for k, v in found.items() if not k.startswith("best")} == pytest.approx(expected, **CLOSE)
    assert (found["HasAns_total"], found["NoAns_total"]) == (705, 702)
    assert found["best_f1"] > max(found["f1"], 100 * 702 / 1407)
    right = {k: a[0] if a else "" for k, a in answers.items()}
    assert spans.squad_v2_metrics(answers, right, dict.fromkeys(odds, 0.0), 0.0)["exact"] == 100


@pytest.mark.parametrize("file", ["zh_squad_format/cmrc2018_trial.json.xz", "squad_format_en/xquad.zh.json.xz"])
def test_real_questions_in_chinese(shared_data, file):
    folder, name = file.split("/")
    questions = questions_of(shared_data(folder) / name)
    rng = random.Random(0)
    answers = {k: a for k, (_, a) in questions.items()}
    predictions = {k: near(rng, *question) for k, question in questions.items()}
    found = spans.cmrc_metrics(answers, predictions)
    assert 20 < found["exact_match"] < found["f1"] < 90
    right = spans.cmrc_metrics(answers, {k: a[0] for k, a in answers.items()})
    assert right == pytest.approx(dict.fromkeys(("exact_match", "f1", "average"), 100), **CLOSE)
    plain = {  # where the segmentation needs no rules of English, the definition is the oracle
        k: a for k, a in answers.items() if not re.search(r"[!-/:-~\u2010-\u2027]", "".join([*a, predictions[k]]))
    }
    assert len(plain) > 500
    expected = sum(
        max(
            2 * longest_run(cmrc_segments(a), guess) / max(len(cmrc_segments(a)) + len(guess), 1)
            for guess in [cmrc_segments(predictions[k])]
            for a in texts
        )
        for k, texts in plain.items()
    )
    assert spans.cmrc_metrics(plain, predictions)["f1"] == pytest.approx(100 * expected / len(plain), **CLOSE)


def test_no_question_is_0():
    assert spans.squad_v1_metrics({}, {}) == {"exact_match": 0.0, "f1": 0.0}
    assert set(spans.squad_v2_metrics({}, {}, {}, 0.0).values()) == {0.0}
