"""Public data as it is found: the counts that its folders state, and the traps that they name."""

from collections import Counter

import pytest

from bert_jax.errors import UserError
from bert_jax.examples.labels import label_names
from tests.examples.loading import CLASSIFICATION, MULTIPLE_CHOICE, SPAN_QA, TAGGING, loaded, noted

TABLES = {"train": "train.tsv", "dev": "dev.tsv"}
PAIR = {"text": "sentence1", "pair": "sentence2"}
SQUAD = [
    ("zh_squad_format", "cmrc2018_dev", 3219, 9657, 200, 0),
    ("zh_squad_format", "DRCD_dev", 3524, 7048, 0, 0),
    ("zh_squad_format", "DRCD_test", 3493, 6986, 0, 0),
    ("squad_format_en", "xquad.en", 1190, 1190, 0, 0),
    ("squad_format_en", "xquad.zh", 1190, 1190, 0, 0),
    ("squad_format_en", "policyqa_dev", 3809, 6044, 0, 0),
    ("squad_format_en", "covidqa_200423", 1380, 1380, 234, 0),
    ("squad_format_en", "squad_v2_dev_subset_5articles", 1407, 2106, 0, 702),
]


def sizes(found):
    return tuple(map(len, found.values()))


@pytest.mark.parametrize(
    ("name", "columns", "expected", "labels"),
    [
        ("CoLA", {"text": "3", "label": "1"}, (8551, 1043), {"1": 6023, "0": 2528}),
        ("SST-2", {"text": "sentence"}, (67349, 872), {"0": 29780, "1": 37569}),
        ("RTE", PAIR, (2490, 277), {"not_entailment": 1241, "entailment": 1249}),
        ("WNLI", PAIR, (635, 71), {"1": 312, "0": 323}),
    ],
)
def test_glue(shared_data, name, columns, expected, labels):
    options = {"header": name != "CoLA"}
    config = {"format": "delimited", "options": options, "splits": TABLES, "columns": columns}
    found, _ = noted(shared_data("glue") / name, CLASSIFICATION, **config)
    assert sizes(found) == expected
    assert Counter(example["label"] for example in found["train"]) == labels
    assert label_names(found["train"], "label") == tuple(sorted(labels))


def test_stsb_is_no_classification(shared_data):
    columns = PAIR | {"label": "score", "id": "index"}
    found, _ = noted(shared_data("glue") / "STS-B", CLASSIFICATION, format="delimited", splits=TABLES, columns=columns)
    assert sizes(found) == (5749, 1500)
    scores = [float(example["label"]) for example in found["train"]]
    assert (min(scores), max(scores)) == (0, 5)


def test_mrpc_lacks_a_row_and_is_rebuilt(shared_data):
    columns = {"text": "#1 String", "pair": "#2 String", "label": "Quality", "id": ("#1 ID", "#2 ID")}
    folder, config = shared_data("glue") / "MRPC", {"format": "delimited", "columns": columns}
    table = loaded(folder, CLASSIFICATION, splits=TABLES, **config)
    names = {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"}
    found = loaded(folder, CLASSIFICATION, splits=names, dev_ids="dev_ids.tsv", **config)
    rebuilt = {split: found[split] for split in ("train", "dev", "test")}
    assert sizes(table) == (3667, 408)
    assert sizes(rebuilt) == (3668, 408, 1725)
    assert {e["id"] for e in rebuilt["train"]} - {e["id"] for e in table["train"]} == {"2750203-2750153"}
    assert {e["id"] for e in rebuilt["dev"]} == {e["id"] for e in table["dev"]}


def test_conll_in_either_scheme(shared_data):
    folder = shared_data("conll2003_ner")
    splits = {"train": "train.txt", "dev": "valid.txt", "test": "test.txt"}
    found, _ = noted(folder, TAGGING, format="conll", splits=splits, options={"scheme": "as_found"})
    assert sizes(found) == (14041, 3250, 3453)
    assert sum(len(example["words"]) for example in found["train"]) == 203621
    old = {"dev": "eng.testa.iob1", "test": "eng.testb.iob1"}
    converted, _ = noted(folder, TAGGING, format="conll", splits=old)
    assert converted["dev"] == found["dev"]
    assert converted["test"] == found["test"]
    kept, _ = noted(folder, TAGGING, format="conll", splits=old, options={"scheme": "as_found"})
    assert kept["dev"] != found["dev"]


def test_bbc_news_with_its_one_file_of_another_encoding(shared_data):
    config = {"format": "text_folders", "splits": {"train": "bbc-fulltext.zip"}}
    folder = shared_data("en_bbc_news")
    with pytest.raises(UserError, match=r"1 of 2,225 examples are bad: .*sport/199.txt is not UTF-8"):
        loaded(folder, CLASSIFICATION, **config)
    found, notes = noted(folder, CLASSIFICATION, **config, options={"bad_text": "decode"}, dev_fraction=0.2)
    assert sizes(found) == (1780, 445)
    counts = {"business": 510, "entertainment": 386, "politics": 417, "sport": 511, "tech": 401}
    assert Counter(e["label"] for split in found.values() for e in split) == counts
    dealt = Counter(e["label"] for e in found["dev"])
    assert all(abs(dealt[label] - 0.2 * count) < 1 for label, count in counts.items())
    assert "32 of 445 examples of dev are in train too" in notes[0]  # articles that were published twice


def test_bbc_news_as_a_table(shared_data):
    columns = {"text": "Text", "label": "Category"}
    splits = {"train": "bbc_news_train_1490.csv"}
    found = loaded(shared_data("en_bbc_news"), CLASSIFICATION, format="delimited", splits=splits, columns=columns)
    assert sizes(found) == (1490,)


def test_chnsenticorp(shared_data):
    folder = shared_data("zh_chnsenticorp")
    config = {"format": "delimited", "columns": {"text": "text_a"}}
    found, [note] = noted(folder, CLASSIFICATION, **config, splits=TABLES | {"test": "test.tsv"})
    assert sizes(found) == (9600, 1200, 1200)
    assert Counter(example["label"] for example in found["train"]) == {"1": 4799, "0": 4801}
    assert "338 of 1,200 examples of dev are in train too" in note
    config = {"format": "delimited", "columns": {"text": "review"}, "splits": {"train": "ChnSentiCorp_htl_all.csv"}}
    with pytest.raises(UserError, match="1 of 7,766 examples are bad: .*:6376 has an empty text"):
        loaded(folder, CLASSIFICATION, **config)


@pytest.mark.parametrize(("folder", "name", "questions", "answers", "off", "impossible"), SQUAD)
def test_squad_format(shared_data, folder, name, questions, answers, off, impossible):
    found = loaded(shared_data(folder), SPAN_QA, format="squad_json", splits={"dev": f"{name}.json"})["dev"]
    spans = [(example["context"], answer) for example in found for answer in example["answers"]]
    assert (len(found), len(spans)) == (questions, answers)
    assert sum(not text.startswith(a["text"], a["answer_start"]) for text, a in spans) == off
    assert sum(example.get("is_impossible", False) for example in found) == impossible


def test_two_questions_of_cmrc_are_empty(shared_data):
    config = {"format": "squad_json", "splits": {"dev": "cmrc2018_trial.json"}}
    with pytest.raises(UserError, match="2 of 1,002 examples are bad: .* has an empty question"):
        loaded(shared_data("zh_squad_format"), SPAN_QA, **config)


def test_squad_as_lines(shared_data):
    splits = {"train": "squad_v1_tokenized/val.*"}
    roles = SPAN_QA.__class__(SPAN_QA.required, (*SPAN_QA.optional, "answer"))
    config = {
        "format": "line_columns",
        "options": {"files": ("context", "question", "span", "answer")},
        "splits": splits,
    }
    config |= {"columns": {"answers": "span"}, "bad_examples": "skip"}
    found, [note] = noted(shared_data("squad_format_en"), roles, **config)
    assert "1 of 4,285 examples skipped" in note
    assert "'31 30'" in note  # a span that ends before it begins
    assert sum(example["answers"][0]["text"] == example["answer"] for example in found["train"]) == 4253
    for example in found["train"]:
        [answer] = example["answers"]
        assert example["context"].startswith(answer["text"], answer["answer_start"])


@pytest.mark.heavy
def test_leaks_of_chinese_entities_are_found(shared_data):
    splits = {"train": "msra/dh_msra.txt", "dev": "peopledaily/dev.txt", "test": "msra/msra_test_bio.txt"}
    found, [note] = noted(shared_data("zh_ner"), TAGGING, format="conll", splits=splits)
    assert sizes(found) == (55289, 4631, 3442)
    assert "4,610 of 4,631 examples of dev are in train too" in note
    assert "2,377 of 3,442 examples of test are in train too" in note


def test_splits_of_one_text_by_two_people_leak(shared_data):
    splits = {"dev": "peopledaily/dev.txt", "test": "msra/msra_test_bio.txt"}
    _, [note] = noted(shared_data("zh_ner"), TAGGING, format="conll", splits=splits)
    assert note.startswith("2,384 of 3,442 examples of test are in dev too")


def test_other_chinese_entities(shared_data):
    folder = shared_data("zh_ner")
    splits = {split: f"weibo/weiboNER_2nd_conll.{split}" for split in ("train", "dev", "test")}
    found, _ = noted(folder, TAGGING, format="conll", splits=splits, options={"segmentation_digit": True})
    assert sizes(found) == (1350, 270, 270)
    assert found["train"][0]["words"][:3] == ["科", "技", "全"]
    assert len(label_names(found["train"], "tags")) == 17
    config = {"format": "line_columns", "options": {"files": ("sentences", "tags")}, "columns": {"words": "sentences"}}
    found, _ = noted(folder, TAGGING, **config, splits={"dev": "msra/val_*.txt", "test": "msra/test_*.txt"})
    assert sizes(found) == (3000, 3442)
    splits = {"train": "cluener/train.json", "dev": "cluener/dev.json", "test": "cluener/test.json"}
    found, _ = noted(folder, TAGGING, format="character_spans", splits=splits)
    assert sizes(found) == (10748, 1343, 1345)
    kinds = Counter(tag[2:] for example in found["dev"] for tag in example["tags"] if tag[0] == "B")
    assert kinds == {
        "address": 373, "name": 465, "organization": 367, "game": 295, "scene": 209,
        "book": 154, "company": 378, "position": 433, "government": 247, "movie": 151,
    }  # fmt: skip


def test_multiple_choice(shared_data):
    folder = shared_data("multiple_choice_en")
    splits = {"train": "dream_train.json", "dev": "dream_dev.json", "test": "dream_test.json"}
    columns = {"id": ("2", "number"), "context": "0", "choices": "choice", "label": "answer"}
    found, _ = noted(folder, MULTIPLE_CHOICE, format="jsonl", options={"field": "1"}, splits=splits, columns=columns)
    assert sizes(found) == (6116, 2040, 2041)
    assert {len(example["choices"]) for example in found["train"]} == {3}
    assert all(example["label"] in example["choices"] for split in found.values() for example in split)
    columns = {"context": "0", "label": "1", "choices": ["2", "3", "4", "5"]}
    config = {
        "format": "line_columns",
        "options": {"num_lines": 6},
        "columns": columns,
        "strip_prefix": {"context": ".*?: "},
    }
    [swag] = loaded(folder, MULTIPLE_CHOICE, **config, splits={"dev": "hellaswag_val_full.txt"}).values()
    assert Counter(example["label"] for example in swag) == {"3": 2458, "2": 2584, "1": 2485, "0": 2515}
    columns = {"context": "question", "choices": "choices.text", "label": "answerKey"}
    splits = {"dev": "commonsenseqa_dev_rand_split.jsonl"}
    [found] = loaded(folder, MULTIPLE_CHOICE, format="jsonl", splits=splits, columns=columns).values()
    assert Counter(example["label"] for example in found) == {"A": 239, "B": 255, "C": 241, "D": 251, "E": 235}
    columns = {"context": "sent1", "question": "sent2", "choices": [f"ending{i}" for i in range(4)]}
    [found] = loaded(
        folder, MULTIPLE_CHOICE, format="delimited", splits={"train": "swag_fixture.csv"}, columns=columns
    ).values()
    assert len(found) == 11
