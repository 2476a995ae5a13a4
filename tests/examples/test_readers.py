"""Each format, on small files: what is read and what is bad."""

import json
import zipfile

import pytest

from bert_jax import catalogue
from bert_jax.errors import UserError
from bert_jax.examples import jsonl
from bert_jax.examples.tags import spans_to_iob2, to_iob2
from tests.examples.loading import CLASSIFICATION, MULTIPLE_CHOICE, SPAN_QA, TAGGING, loaded, noted, written


def records(path, name, **options):
    module = catalogue.find("examples", name, having="Reader")
    return list(module.Reader(module.Options(**options)).read(str(path)))


def test_tables_without_quoting_keep_quotes_and_lose_the_byte_order_mark(tmp_path):
    written(tmp_path, a__tsv='\ufeffone\ttwo\r\n"open\tit\'s "so"\r\n'.encode())
    assert records(tmp_path / "a.tsv", "delimited") == [{"one": '"open', "two": 'it\'s "so"'}]


def test_tables_with_quoting_hold_commas_and_line_breaks(tmp_path):
    long = "x" * 200_000  # more than the csv module takes unasked
    written(tmp_path, a__csv=f',b\n1,"two, with ""quotes""\nand a line"\n2,{long}\n')
    first, second = records(tmp_path / "a.csv", "delimited")
    assert first == {"0": "1", "b": 'two, with "quotes"\nand a line'}
    assert (first.where, second.where) == (f"{tmp_path}/a.csv:3", f"{tmp_path}/a.csv:4")
    assert second["b"] == long


def test_tables_without_a_header_have_numbers_or_given_names(tmp_path):
    written(tmp_path, a__tsv="x\ty\n")
    assert records(tmp_path / "a.tsv", "delimited", header=False) == [{"0": "x", "1": "y"}]
    assert records(tmp_path / "a.tsv", "delimited", header=False, names=("p", "q")) == [{"p": "x", "q": "y"}]
    assert records(tmp_path / "a.tsv", "delimited", names=("p", "q")) == []


def test_ragged_rows_and_open_quotes_are_bad_with_their_line(tmp_path):
    written(tmp_path, a__tsv="a\tb\n1\n1\t2\n\n1\t2\t3\n", b__csv='a,b\n1,"2"x\n3,4\n')
    found = records(tmp_path / "a.tsv", "delimited")
    assert found[0] == (f"{tmp_path}/a.tsv:2", "has 1 fields where 2 are needed")
    assert found[1] == {"a": "1", "b": "2"}
    assert found[2] == (f"{tmp_path}/a.tsv:5", "has 3 fields where 2 are needed")
    bad, good = records(tmp_path / "b.csv", "delimited")
    assert bad.reason.startswith("is not a row of a table with quotes")
    assert good == {"a": "3", "b": "4"}


def test_tables_in_another_encoding(tmp_path):
    written(tmp_path, a__tsv="text\n好\n".encode("gb18030"))
    assert records(tmp_path / "a.tsv", "delimited", encoding="gb18030") == [{"text": "好"}]
    written(tmp_path, b__tsv="text\nx\n".encode("utf-16"), c__tsv="text\nx\n".encode("utf-16")[:-1])
    assert records(tmp_path / "b.tsv", "delimited", encoding="utf-16") == [{"text": "x"}]
    with pytest.raises(UserError, match="c.tsv is not utf-16"):
        records(tmp_path / "c.tsv", "delimited", encoding="utf-16")
    with pytest.raises(UserError, match="first line of .*b.tsv is not UTF-8; convert it or set"):
        records(tmp_path / "b.tsv", "delimited")
    with pytest.raises(UserError, match="'utf9', which Python does not know"):
        records(tmp_path / "a.tsv", "delimited", encoding="utf9")


def test_names_that_stand_twice_and_long_delimiters_are_errors(tmp_path):
    written(tmp_path, a__tsv="x\tx\n")
    with pytest.raises(UserError, match="names 'x' more than once"):
        records(tmp_path / "a.tsv", "delimited")
    with pytest.raises(UserError, match="one character is needed"):
        records(tmp_path / "a.tsv", "delimited", delimiter="||")
    with pytest.raises(UserError, match="options.names has 'y' more than once"):
        records(tmp_path / "a.tsv", "delimited", names=("y", "y"))


def test_json_lines_objects_after_one_another_and_arrays_are_the_same(tmp_path):
    objects = [{"a": 1, "b": "x\ny"}, {"a": None, "c": [1, {"d": "}{"}]}]
    written(
        tmp_path,
        lines="\n".join(map(json.dumps, objects)),
        printed="".join(json.dumps(o, indent=2) + "\n" for o in objects),
        array=json.dumps(objects),
        inside=json.dumps({"data": {"rows": objects}}),
    )
    assert records(tmp_path / "lines", "jsonl") == objects
    printed = records(tmp_path / "printed", "jsonl")
    assert printed == objects
    assert [record.where for record in printed] == [f"{tmp_path}/printed:1", f"{tmp_path}/printed:5"]
    assert records(tmp_path / "array", "jsonl") == objects
    assert records(tmp_path / "inside", "jsonl", field="data.rows") == objects
    with pytest.raises(UserError, match="no field 'data.row'; did you mean 'rows'"):
        records(tmp_path / "inside", "jsonl", field="data.row")


@pytest.mark.parametrize("cut", [1, 20, jsonl.CUT])
def test_what_is_not_json_is_bad_and_the_rest_is_read(tmp_path, monkeypatch, cut):
    monkeypatch.setattr(jsonl, "CUT", cut)
    written(tmp_path, a__jsonl='{"a": 1}\n{"a": 2\n{"a": 3}\n[4]\nnull\n')
    found = records(tmp_path / "a.jsonl", "jsonl")
    assert found[0] == {"a": 1}
    assert found[1].where == f"{tmp_path}/a.jsonl:2"
    assert "is not JSON" in found[1].reason
    assert found[2] == {"a": 3}
    assert [bad.reason for bad in found[3:]] == ["has a JSON array, not an object", "has a JSON null, not an object"]
    assert [item.where.rpartition(":")[2] for item in found] == ["1", "2", "3", "4", "5"]


def test_conll_columns(tmp_path):
    text = "-DOCSTART- -X- O\n\nEU NNP I-ORG\n, , O\n\n\n-DOCSTART- -X- O\n\n\u3000 X I-PER\n"
    written(tmp_path, a__conll=text, b__conll="one\ntwo\n\nthree\n", c__conll="a O\nb\n\nc O\n")
    assert records(tmp_path / "a.conll", "conll") == [
        {"words": ["EU", ","], "tags": ["B-ORG", "O"], "document": 1},
        {"words": ["\u3000"], "tags": ["B-PER"], "document": 2},
    ]
    assert records(tmp_path / "a.conll", "conll", tag_column=1)[0]["tags"] == ["NNP", ","]
    assert records(tmp_path / "b.conll", "conll")[0] == {"words": ["one", "two"], "document": 0}
    bad, good = records(tmp_path / "c.conll", "conll")
    assert bad == (f"{tmp_path}/c.conll:2", "has 1 columns where at least 2 are needed")
    assert good["words"] == ["c"]


@pytest.mark.parametrize("scheme", ["auto", "iob1", "bioes"])
def test_iob1_becomes_iob2(scheme):
    iob1 = ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-ORG", "I-ORG", "B-ORG"]
    assert to_iob2(iob1, scheme) == ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-ORG", "I-ORG", "B-ORG"]


def test_other_schemes_become_iob2_and_iob2_stays():
    iob2 = ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-ORG", "I-ORG", "I-ORG"]
    assert to_iob2(iob2) == iob2
    assert to_iob2(["B-PER", "E-PER", "S-PER", "O", "S-LOC", "B-ORG", "I-ORG", "E-ORG"]) == iob2
    assert to_iob2(["B-PER", "L-PER", "U-PER", "O", "U-LOC", "B-ORG", "M-ORG", "L-ORG"]) == iob2
    assert to_iob2(["E-X", "E-X"]) == ["B-X", "B-X"]
    assert to_iob2(["NN", "VB-Z", "O"]) == ["NN", "VB-Z", "O"]
    assert to_iob2(["I-X"], "iob2") == ["I-X"]


def test_spans_of_characters(tmp_path):
    assert spans_to_iob2(6, [(0, 1, "a"), (1, 4, "b"), (5, 5, "a")]) == ["O", "B-b", "I-b", "I-b", "I-b", "B-a"]
    good = {"text": "在北京的人", "label": {"place": {"北京": [[1, 2]]}}}
    wrong = {"text": "在北京的人", "label": {"place": {"北京": [[2, 3]]}}}
    written(tmp_path, a__json="\n".join(json.dumps(o, indent=1) for o in (good, wrong, {"id": 3, "text": "人"})))
    config = {"format": "character_spans", "splits": {"test": "a.json"}}
    found, [note] = noted(tmp_path, TAGGING, **config, bad_examples="skip")
    assert "'北京' is not at 2 to 3" in note
    assert found["test"] == (
        {"id": "test-0", "words": list("在北京的人"), "tags": ["O", "B-place", "I-place", "O", "O"]},
        {"id": "3", "words": ["人"]},
    )


def test_parallel_lines(tmp_path):
    written(tmp_path, val_sentences__txt="a b\nc\n", val_tags__txt="I-X O\nO\n", x_sentences__txt="a\n")
    found = records(tmp_path / "val_sentences.txt", "parallel_lines")
    assert found == [{"words": ["a", "b"], "tags": ["B-X", "O"]}, {"words": ["c"], "tags": ["O"]}]
    with pytest.raises(UserError, match="no file .*x_tags.txt"):
        records(tmp_path / "x_sentences.txt", "parallel_lines")
    written(tmp_path, x_tags__txt="O\nO\n")
    assert records(tmp_path / "x_sentences.txt", "parallel_lines")[1].reason.startswith("is in only one")


def squad(*questions, **paragraph):
    return json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "a b", **paragraph, "qas": questions}]}]})


def test_squad_json(tmp_path):
    answers = [{"text": "b", "answer_start": 2}]
    questions = (
        {"id": 1, "question": "what", "answers": answers},
        {"id": "2", "question": "none", "answers": [], "is_impossible": True, "plausible_answers": answers},
    )
    written(tmp_path, a__json=squad(*questions), b__json=squad({"id": 1, "question": "q", "answers": ["b"]}))
    assert loaded(tmp_path, SPAN_QA, format="squad_json", splits={"dev": "a.json"})["dev"] == (
        {"id": "1", "question": "what", "context": "a b", "answers": answers, "is_impossible": False},
        {"id": "2", "question": "none", "context": "a b", "answers": [], "is_impossible": True},
    )
    with pytest.raises(UserError, match=r"data\[0\].paragraphs\[0\].qas\[0\] has answers that are not a list"):
        loaded(tmp_path, SPAN_QA, format="squad_json", splits={"dev": "b.json"})


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"data"', "is not JSON"), ("[]", "no list 'data'"), ('{"data": [{}]}', r"no list 'paragraphs' at data\[0\]")],
)
def test_other_json_is_not_squad(tmp_path, text, message):
    written(tmp_path, a__json=text)
    with pytest.raises(UserError, match=message):
        records(tmp_path / "a.json", "squad_json")


def test_squad_lines(tmp_path):
    written(tmp_path, v__context="a bb c\na\n", v__question="q\nr\n", v__span="1 2\n1 0\n", v__answer="b\na\n")
    first, bad = records(tmp_path / "v.context", "squad_lines")
    answers = [{"text": "bb c", "answer_start": 2}]
    assert first == {"context": "a bb c", "question": "q", "answers": answers, "answer": "b"}
    assert "'1 0', which is not two places in 1 tokens" in bad.reason
    written(tmp_path, v__question="q\n")
    with pytest.raises(UserError, match="different numbers of lines: 2 in .*v.context, 1 in .*v.question"):
        records(tmp_path / "v.context", "squad_lines")


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_text_folders(tmp_path, form):
    raw = {"good/2.txt": b"\xef\xbb\xbffine", "good/1.txt": "£".encode("cp1252"), "bad/x/1.txt": b"poor", "R.md": b""}
    path = tmp_path / "all"
    for name, text in raw.items():
        (path / "top" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "top" / name).write_bytes(text)
    if form == "zip":
        path = tmp_path / "all.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in raw.items():
                archive.writestr(f"top/{name}", text)
    found = records(path, "text_folders")
    assert found[0] == {"text": "poor", "label": "x", "id": "bad/x/1.txt"}
    assert found[1].where == f"{path}/good/1.txt"
    assert "is not UTF-8" in found[1].reason
    assert found[2] == {"text": "fine", "label": "good", "id": "good/2.txt"}
    assert records(path, "text_folders", bad_text="decode")[1]["text"] == "£"
    with pytest.raises(UserError, match="is named like '.*csv'"):
        records(path, "text_folders", pattern="*.csv")


@pytest.mark.parametrize("path", ["./all", "all/", "."])
def test_text_folders_of_the_current_folder(path, tmp_path, monkeypatch):
    below = "all" if path != "." else ""
    (tmp_path / below / "good").mkdir(parents=True)
    (tmp_path / below / "good" / "1.txt").write_text("fine")
    monkeypatch.chdir(tmp_path)
    assert records(path, "text_folders") == [{"text": "fine", "label": "good", "id": "good/1.txt"}]


def zipped(path, text):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good/1.txt", text)
    return path.read_bytes()


def test_a_damaged_zip_is_an_error(tmp_path):
    whole = zipped(tmp_path / "whole.zip", "a text of some length")
    text = whole.index(b"1.txt") + 5
    for broken in (b"PK\x03\x04 and no more", whole[:text] + b"\xff" * 9 + whole[text + 9 :]):
        written(tmp_path, a__zip=broken)
        with pytest.raises(UserError, match="a.zip is not a whole zip"):
            records(tmp_path / "a.zip", "text_folders")


def test_a_zip_bomb_is_an_error_before_it_is_unpacked(tmp_path):
    bomb = zipped(tmp_path / "a.zip", bytes((1 << 26) + 1))
    with pytest.raises(
        UserError, match=r"a.zip would unpack to 67,108,865 bytes, 1,02\d times its own size .at most 200"
    ):
        records(tmp_path / "a.zip", "text_folders")
    size = ((1 << 26) + 1).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(bomb.replace(size, (9).to_bytes(4, "little")))  # it says that it is small
    with pytest.raises(UserError, match=r"a.zip is not a whole zip.*Bad CRC"):
        records(tmp_path / "a.zip", "text_folders")


def test_mrpc_is_split_by_ids(tmp_path):
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    written(
        tmp_path,
        msr_paraphrase_train__txt=f'{head}1\t10\t11\t"a\tb\n0\t12\t13\tc\td\n',
        msr_paraphrase_test__txt=f"{head}1\t14\t15\te\tf\n",
        dev_ids__tsv="12\t13\n",
    )
    columns = {"text": "#1 String", "pair": "#2 String", "label": "Quality", "id": ("#1 ID", "#2 ID")}
    names = {"train": "train", "dev": "dev", "test": "test"}
    found = loaded(tmp_path, CLASSIFICATION, format="mrpc", splits=names, columns=columns)
    assert found["train"] == ({"id": "10-11", "text": '"a', "pair": "b", "label": "1"},)
    assert [example["id"] for example in found["dev"] + found["test"]] == ["12-13", "14-15"]
    with pytest.raises(UserError, match="'valid'; the format mrpc has train, dev, test"):
        loaded(tmp_path, CLASSIFICATION, format="mrpc", splits={"dev": "valid"}, columns=columns)


def test_dream(tmp_path):
    question = {"question": "q", "choice": ["x", "y"], "answer": "y"}
    dialogues = [[["A: 1", "B: 2"], [question, question | {"answer": "z"}], "7"], ["no dialogue"]]
    written(tmp_path, a__json=json.dumps(dialogues))
    first, wrong, broken = records(tmp_path / "a.json", "dream")
    assert first == {"id": "7-0", "context": "A: 1\nB: 2", "question": "q", "choices": ["x", "y"], "label": 1}
    assert wrong.reason == "has an answer that is not one of its choices"
    assert broken.where.endswith("a.json, [1]")


def test_hellaswag_text(tmp_path):
    written(tmp_path, a__txt="Sport: He: runs\n1\na\nb\nc\nd\nno activity\n4\na\nb\nc\nd\ncut\n")
    first, wrong, cut = records(tmp_path / "a.txt", "hellaswag_text")
    assert first == {"activity": "Sport", "context": "He: runs", "choices": ["a", "b", "c", "d"], "label": 1}
    assert wrong == (f"{tmp_path}/a.txt:7", "has '4' where the number of an ending, 0 to 3, is needed")
    assert "ends in the middle of an item" in cut.reason


def test_multiple_choice_from_a_table(tmp_path):
    written(tmp_path, a__csv="sent1,sent2,e0,e1,label\nOne.,He,runs,sits,1\n")
    columns = {"context": "sent1", "question": "sent2", "choices": ["e0", "e1"]}
    found = loaded(tmp_path, MULTIPLE_CHOICE, format="delimited", splits={"train": "a.csv"}, columns=columns)
    assert found["train"] == (
        {"id": "train-0", "context": "One.", "choices": ["runs", "sits"], "question": "He", "label": "1"},
    )
