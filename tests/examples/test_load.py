"""Roles, ids, what is bad, and overlaps of splits."""

import bz2
import gzip
import lzma
import uuid

import pyarrow
import pytest

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.examples import splits
from bert_jax.examples.columns import Roles, choose
from bert_jax.examples.labels import label_names
from bert_jax.examples.load import DataConfig
from bert_jax.examples.reading import DataRecord
from bert_jax.storage import files
from tests.examples.loading import CLASSIFICATION, MULTIPLE_CHOICE, SPAN_QA, TAGGING, loaded, noted, written

TABLE = "text\tlabel\nfirst one\ta\nsecond one\tb\n"


def test_columns_by_name_are_roles(tmp_path):
    found = loaded(written(tmp_path, t__tsv=TABLE), CLASSIFICATION, format="delimited", splits={"train": "t.tsv"})
    assert found == {
        "train": (
            {"id": "train-0", "text": "first one", "label": "a"},
            {"id": "train-1", "text": "second one", "label": "b"},
        )
    }


def test_columns_can_be_nested_joined_and_several(tmp_path):
    folder = written(tmp_path, d__jsonl='{"q": {"c": [{"t": "x"}, {"t": "y"}], "s": "stem"}, "a": "A", "n": 7, "m": 8}')
    columns = {"context": ["q.s", "a"], "choices": "q.c.t", "label": "a", "id": ("n", "m")}
    [example] = loaded(folder, MULTIPLE_CHOICE, format="jsonl", splits={"dev": "d.jsonl"}, columns=columns)["dev"]
    assert example == {"id": "7-8", "context": "stem A", "choices": ["x", "y"], "label": "A"}
    columns |= {"choices": ("a", "q.s")}
    [example] = loaded(folder, MULTIPLE_CHOICE, format="jsonl", splits={"dev": "d.jsonl"}, columns=columns)["dev"]
    assert example["choices"] == ["A", "stem"]


def test_an_optional_role_does_not_take_the_column_of_another(tmp_path):
    folder = written(tmp_path, d__jsonl='{"question": "why", "choices": ["a", "b"], "label": 1}')
    columns = {"context": "question"}
    [example] = loaded(folder, MULTIPLE_CHOICE, format="jsonl", splits={"dev": "d.jsonl"}, columns=columns)["dev"]
    assert "question" not in example
    with pytest.raises(UserError, match="another role has the column 'choices'"):
        loaded(folder, MULTIPLE_CHOICE, format="jsonl", splits={"dev": "d.jsonl"}, columns={"context": "choices"})


def test_another_delimiter_is_named(tmp_path):
    folder = written(tmp_path, a__csv="text;label\nx;a\n", b__csv="text\tlabel\nx\ta\n")
    for file, flag in (("a.csv", "delimiter=';'"), ("b.csv", r"delimiter='\t'")):
        with pytest.raises(UserError) as raised:
            loaded(folder, CLASSIFICATION, format="table", splits={"train": file, "dev": file})
        assert f"separates columns, add --config.data.options.{flag}" in str(raised.value)


def test_a_file_without_a_header_is_told_what_to_set(tmp_path):
    text = {"a.csv": "good,1\nbad,0\nfine,1\n", "b.csv": "a line of five words,x\nb,y\n", "c.csv": ",a\n1,x\n"}
    folder = written(tmp_path, **{name.replace(".", "__"): of for name, of in text.items()})
    said = r"data, not like names \(good, 1\); add --config.data.options.header=False --config.data.columns.text=NUMBER"
    for file, options, message in (
        ("a.csv", {}, said),
        ("b.csv", {}, "data, not like names"),
        ("c.csv", {}, "there are: 0, a"),
        ("a.csv", {"header": False}, "there are: 0, 1"),
    ):
        with pytest.raises(UserError, match=message):
            loaded(folder, CLASSIFICATION, format="table", splits={"train": file}, options=options)


def test_unknown_columns_of_all_splits_are_listed_the_nearest_first(tmp_path):
    folder = written(tmp_path, a__tsv=TABLE, b__tsv="sentence\tlabel\nx\ta\n")
    with pytest.raises(UserError) as raised:
        loaded(folder, CLASSIFICATION, format="delimited", splits={"train": "a.tsv", "dev": "b.tsv"})
    assert str(raised.value) == ("dev: no column 'text' for config.data.columns.text; there are: label, sentence")
    columns = {"text": "sentense", "label": "gold"}
    with pytest.raises(UserError) as raised:
        loaded(folder, CLASSIFICATION, format="delimited", splits={"train": "a.tsv", "dev": "b.tsv"}, columns=columns)
    assert str(raised.value).count("config.data.columns.") == 4
    assert "did you mean 'sentence'?" in str(raised.value)


def test_a_column_that_another_role_reads_is_not_suggested() -> None:
    roles = Roles(("text",), ("target",))
    for columns, hint in (({"text": "text"}, ""), ({"text": "article"}, "did you mean 'text'? ")):
        _, [problem] = choose("train", [DataRecord({"text": "a", "article": "b"}, "a:1")], columns, roles)
        assert problem == f"no column 'target' for config.data.columns.target; {hint}there are: article, text"


def test_a_column_for_what_is_no_role_is_an_error(tmp_path):
    with pytest.raises(UserError, match="config.data.columns.lable is not a role of this task; did you mean 'label'"):
        loaded(tmp_path, CLASSIFICATION, format="delimited", splits={"train": "x"}, columns={"lable": "label"})


def test_columns_may_be_numbers(tmp_path):
    folder = written(tmp_path, a__tsv="x\ta\none two\tb\n")
    config = {"format": "delimited", "options": {"header": False}, "splits": {"test": "a.tsv"}}
    found = loaded(folder, CLASSIFICATION, **config, columns={"text": 0, "label": 1})["test"]
    assert [example["text"] for example in found] == ["x", "one two"]
    assert found == loaded(folder, CLASSIFICATION, **config, columns={"text": "0", "label": "1"})["test"]
    with pytest.raises(UserError, match="config.data.columns.text is None; the name of a column"):
        loaded(folder, CLASSIFICATION, **config, columns={"text": None})


def test_labels_may_lack_in_test_splits_alone(tmp_path):
    folder = written(tmp_path, a__tsv="text\nx\n")
    found = loaded(folder, CLASSIFICATION, format="delimited", splits={"test": "a.tsv"}, columns={"label": "gold"})
    assert found["test"] == ({"id": "test-0", "text": "x"},)
    for split in ("train", "dev_matched"):
        with pytest.raises(UserError, match=f"{split}: no column 'label'"):
            loaded(folder, CLASSIFICATION, format="delimited", splits={split: "a.tsv"})


def test_examples_with_dropped_labels_are_left_out_of_all_splits_and_counted(tmp_path):
    folder = written(
        tmp_path,
        a__csv="text,label\na,-\nb,x\nc,y\nd,-\n",
        b__jsonl='{"text": "e", "label": -1}\n{"text": "f", "label": 1}\n',
    )
    config = {"format": "table", "splits": {"train": "a.csv", "dev": "b.jsonl"}, "drop_labels": ("-", "-1")}
    found, notes = noted(folder, CLASSIFICATION, **config)
    assert {split: [e["id"] for e in of] for split, of in found.items()} == {
        "train": ["train-1", "train-2"],
        "dev": ["dev-1"],
    }
    assert notes == ["examples left out by their label (-, -1): train 2, dev 1 (config.data.drop_labels)"]


def test_bad_examples_are_counted_and_the_first_five_listed(tmp_path):
    text = TABLE + "\ta\n" * 6 + "one field\nx\t\nlast\tb\n"
    folder = written(tmp_path, t__tsv=text)
    config = {"format": "delimited", "splits": {"train": "t.tsv"}}
    with pytest.raises(UserError) as raised:
        loaded(folder, CLASSIFICATION, **config)
    message = str(raised.value)
    assert message.startswith("8 of 11 examples are bad: ")
    assert "t.tsv:4 has an empty text (column 'text')" in message
    assert message.count("has an empty text") == 5
    assert "and 3 more; mend them, or --config.data.bad_examples=skip counts" in message
    found, [note] = noted(folder, CLASSIFICATION, **config, bad_examples="skip")
    assert [example["id"] for example in found["train"]] == ["train-0", "train-1", "train-10"]
    assert note.startswith("train: 8 of 11 examples skipped: ")


def test_what_is_not_utf_8_is_bad_with_its_place(tmp_path):
    folder = written(tmp_path, a__tsv=TABLE.encode() + b"caf\xe9\ta\n", b__jsonl='{"text": "\\ud83d", "label": 1}')
    with pytest.raises(UserError, match="a.tsv:4 has a text that is not UTF-8"):
        loaded(folder, CLASSIFICATION, format="delimited", splits={"train": "a.tsv"})
    with pytest.raises(UserError, match="b.jsonl:1 has a text that is not UTF-8"):
        loaded(folder, CLASSIFICATION, format="jsonl", splits={"train": "b.jsonl"})


def test_what_is_listed_can_be_printed(tmp_path):
    folder = written(tmp_path, a__jsonl='{"te\\ud83d": "x"}')
    with pytest.raises(UserError, match="there are: te\ufffd") as raised:
        loaded(folder, CLASSIFICATION, format="jsonl", splits={"test": "a.jsonl"})
    str(raised.value).encode()


def test_values_of_a_wrong_kind_are_bad(tmp_path):
    folder = written(
        tmp_path, a__jsonl='{"words": ["a", "b"], "tags": ["O"]}', b__jsonl='{"text": {"x": 1}, "label": [1]}'
    )
    with pytest.raises(UserError, match="a.jsonl:1 has 2 words and 1 tags"):
        loaded(folder, TAGGING, format="jsonl", splits={"dev": "a.jsonl"})
    with pytest.raises(UserError, match="a dict where text is needed"):
        loaded(folder, CLASSIFICATION, format="jsonl", splits={"test": "b.jsonl"})


def test_answers_have_one_form(tmp_path):
    lists = '{"question": "q", "context": "c", "answers": {"text": ["c"], "answer_start": [0]}}'
    none = '{"question": "q", "context": "d", "answers": {"text": [], "answer_start": []}, "is_impossible": "1"}'
    folder = written(tmp_path, a__jsonl=f"{lists}\n{none}")
    first, second = loaded(folder, SPAN_QA, format="jsonl", splits={"dev": "a.jsonl"}, bad_examples="skip")["dev"]
    assert first["answers"] == [{"text": "c", "answer_start": 0}]
    assert (second["answers"], second["is_impossible"]) == ([], True)


def test_own_ids_are_kept_and_repeated_ones_are_not(tmp_path):
    folder = written(tmp_path, a__tsv="id\ttext\nx\tone\ny\ttwo\n", b__tsv="id\ttext\nx\tone\nx\ttwo\n")
    found = loaded(folder, CLASSIFICATION, format="delimited", splits={"test": "a.tsv"})
    assert [example["id"] for example in found["test"]] == ["x", "y"]
    found, [note] = noted(folder, CLASSIFICATION, format="delimited", splits={"test": "b.tsv"})
    assert [example["id"] for example in found["test"]] == ["test-0", "test-1"]
    assert "1 ids more than once, such as 'x'" in note
    with pytest.raises(UserError, match="leave it out to number the rows"):
        loaded(folder, CLASSIFICATION, format="delimited", splits={"test": "b.tsv"}, columns={"id": "id"})


def test_all_missing_files_are_named_and_packed_ones_found(tmp_path):
    with pytest.raises(UserError, match=r"no file for train: .*/a.tsv; dev: .*/b.tsv, nor a compressed one"):
        loaded(tmp_path, CLASSIFICATION, format="delimited", splits={"train": "a.tsv", "dev": "b.tsv"})
    raw = TABLE.encode()
    packed = {"gz": gzip.compress(raw), "xz": lzma.compress(raw), "bz2": bz2.compress(raw)}
    packed["zst"] = pyarrow.compress(raw, codec="zstd", asbytes=True)
    for ending, content in packed.items():
        (tmp_path / f"{ending}.tsv.{ending}").write_bytes(content)
        found = loaded(tmp_path, CLASSIFICATION, format="delimited", splits={"train": f"{ending}.tsv"})
        assert len(found["train"]) == 2
    (tmp_path / "cut.tsv.gz").write_bytes(packed["gz"][:-9])
    with pytest.raises(UserError, match="cut.tsv.gz is damaged after") as raised:
        loaded(tmp_path, CLASSIFICATION, format="delimited", splits={"train": "cut.tsv.gz"})
    assert "config.corpus" not in str(raised.value)


def test_an_object_store_is_read_as_a_disk_is():
    folder = f"memory://bucket-{uuid.uuid4().hex}"
    files.write_bytes(f"{folder}/t.tsv.gz", gzip.compress(TABLE.encode()))
    files.write_bytes(f"{folder}/classes/good/1.txt", b"fine")
    files.write_bytes(f"{folder}/classes/bad/1.txt", b"poor")
    assert len(loaded(folder, CLASSIFICATION, format="delimited", splits={"train": "t.tsv"})["train"]) == 2
    found = loaded(folder, CLASSIFICATION, format="text_folders", splits={"train": "classes"})["train"]
    assert [(e["id"], e["text"], e["label"]) for e in found] == [
        ("bad/1.txt", "poor", "bad"),
        ("good/1.txt", "fine", "good"),
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"splits": {"valid": "x"}}, "'valid'; names that begin with train, dev or test"),
        ({"splits": {}}, "has none"),
        ({"splits": {"train": ("a", "b")}}, "config.data.splits.train is .*; a path is needed"),
        ({"dev_fraction": 1.0}, "config.data.dev_fraction is 1.0"),
        ({"train_fraction": 0.0}, "config.data.train_fraction is 0.0"),
        (
            {"split_column": "set", "splits": {"train": "a", "dev": "b"}},
            "one file is needed, which has the rows of all",
        ),
        ({"split_values": {"train": "0"}}, "without config.data.split_column"),
        ({"max_dev_rows": 0}, "config.data.max_dev_rows is 0; at least 1"),
        ({"dev_fraction": 0.1, "splits": {"test": "a"}}, "need a split called train"),
        ({"strip_prefix": {"text": "(en"}}, "strip_prefix.text is '.en', which is no regular expression"),
        ({"overlap": "ignore"}, "'warn', 'error', 'drop'"),
        ({"bad_exmples": "skip"}, "did you mean 'bad_examples'"),
    ],
)
def test_a_wrong_config_is_named(wrong, message):
    with pytest.raises(UserError, match=message):
        build(DataConfig, {"format": "delimited", "splits": {"train": "x"}, **wrong}, "config.data")


def test_unknown_formats_and_options_list_what_there_is(tmp_path):
    with pytest.raises(UserError, match="no reader 'squad' in bert_jax.examples; did you mean 'squad_json'"):
        loaded(tmp_path, SPAN_QA, format="squad", splits={"dev": "x"})
    with pytest.raises(UserError, match="unknown key config.data.options.headers; did you mean 'header'"):
        loaded(tmp_path, CLASSIFICATION, format="delimited", splits={"dev": "x"}, options={"headers": True})


def test_a_split_without_examples_is_an_error(tmp_path):
    folder = written(tmp_path, a__tsv="text\tlabel\n", b__tsv="")
    with pytest.raises(UserError, match=r"no example is left in train \(a.tsv\), dev \(b.tsv\); give a file that"):
        loaded(folder, CLASSIFICATION, format="delimited", splits={"train": "a.tsv", "dev": "b.tsv"})


def test_overlap_is_counted_and_dropped(tmp_path):
    folder = written(
        tmp_path,
        a__tsv="text\tlabel\nSame  text\ta\nother\tb\nthird\ta\n",
        b__tsv="text\tlabel\nsame text\tb\nfourth\ta\n",
        c__tsv="text\tlabel\nThird\ta\nfourth\ta\n",
    )
    config = {"format": "delimited", "splits": {"train": "a.tsv", "dev": "b.tsv", "test": "c.tsv"}}
    found, [note] = noted(folder, CLASSIFICATION, **config)
    assert note == (
        "1 of 2 examples of dev are in train too (dev-0 is train-0); 1 of 2 examples of test are in train too"
        " (test-0 is train-2); 1 of 2 examples of test are in dev too (test-1 is dev-1);"
        " --config.data.overlap=drop drops them from train"
    )
    assert len(found["train"]) == 3
    found, notes = noted(folder, CLASSIFICATION, **config, overlap="drop")
    assert [example["id"] for example in found["train"]] == ["train-1"]
    assert len(found["dev"]) == len(found["test"]) == 2
    assert notes[1] == "2 examples dropped from train"
    with pytest.raises(UserError, match="--config.data.overlap=drop drops them"):
        noted(folder, CLASSIFICATION, **config, overlap="error")


def test_overlap_looks_at_every_input_and_at_no_target():
    roles = Roles(("text",), ("pair", "label"))
    example = {"id": "1", "text": "a", "pair": "b", "label": "x"}
    assert splits.key(example, roles.inputs) == splits.key(example | {"label": "y", "id": "2"}, roles.inputs)
    assert splits.key(example, roles.inputs) != splits.key(example | {"pair": "c"}, roles.inputs)
    assert SPAN_QA.inputs == ("question", "context")
    assert splits.key({"words": ["ab", "c"]}, ("words",)) != splits.key({"words": ["a", "bc"]}, ("words",))


def test_label_names():
    assert label_names([{"label": 10}, {"label": 9}, {}], "label") == ("9", "10")
    assert label_names([{"label": "b"}, {"label": "10"}, {"label": "9"}], "label") == ("10", "9", "b")
    assert label_names([{"tags": ["O", "B-X"]}, {"tags": ["O"]}], "tags") == ("B-X", "O")
    with pytest.raises(UserError, match="no example has a label"):
        label_names([{}], "label")
    with pytest.raises(UserError, match="each of 20 examples has a label of its own, such as .* is this a regression"):
        label_names([{"label": f"{i}.5"} for i in range(20)], "label")
    with pytest.raises(UserError, match="1,001 different values of label found, at most 1,000"):
        label_names([{"label": i % 1001} for i in range(5000)], "label")


def test_a_prefix_is_stripped_from_each_word(tmp_path):
    folder = written(tmp_path, w__txt="en:Rome\tB-LOC\nis\tO\nen:en:x\tO\n", l__csv="text,label\nx,__label__2\n")
    config = {"format": "conll", "splits": {"train": "w.txt"}, "strip_prefix": {"words": "en:"}}
    [example] = loaded(folder, TAGGING, **config)["train"]
    assert example["words"] == ["Rome", "is", "en:x"]
    with pytest.raises(
        UserError, match="config.data.strip_prefix.word is not a role of this task; did you mean 'words'"
    ):
        loaded(folder, TAGGING, **config | {"strip_prefix": {"word": "en:"}})
    table = {"format": "table", "splits": {"train": "l.csv"}, "strip_prefix": {"label": "__label__"}}
    assert loaded(folder, CLASSIFICATION, **table)["train"][0]["label"] == "2"
