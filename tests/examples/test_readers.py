"""Each format, on small files: what is read and what is bad."""

import json
import stat
import zipfile

import pytest

from bert_jax.errors import UserError
from bert_jax.examples import jsonl
from bert_jax.parts import catalogue
from tests.examples.loading import CLASSIFICATION, MULTIPLE_CHOICE, SPAN_QA, TAGGING, loaded, noted, written


def records(path, name, **options):
    module = catalogue.find("examples", name, having="Reader")
    return list(module.Reader(**options).read(str(path)))


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


def test_tables_without_a_header_have_numbers(tmp_path):
    written(tmp_path, a__tsv="x\ty\n")
    assert records(tmp_path / "a.tsv", "delimited", header=False) == [{"0": "x", "1": "y"}]


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
    written(tmp_path, d__tsv="好\nx\n".encode("gb18030"))
    with pytest.raises(UserError, match="first line of .*d.tsv is not UTF-8; convert it, or name its encoding"):
        records(tmp_path / "d.tsv", "delimited")
    with pytest.raises(UserError, match="'utf9', which Python does not know"):
        records(tmp_path / "a.tsv", "delimited", encoding="utf9")


def test_names_that_stand_twice_and_long_delimiters_are_errors(tmp_path):
    written(tmp_path, a__tsv="x\tx\n")
    with pytest.raises(UserError, match="names 'x' more than once"):
        records(tmp_path / "a.tsv", "delimited")
    for delimiter in ("||", '"', "\n"):
        with pytest.raises(UserError, match="one character that is no quote, line end or backslash is needed"):
            records(tmp_path / "a.tsv", "delimited", delimiter=delimiter)


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
    numbered = [{"number": number, **one} for number, one in enumerate(objects)]
    assert records(tmp_path / "inside", "jsonl", field="data.rows") == numbered
    with pytest.raises(UserError, match="no field 'row' at data; did you mean 'rows'"):
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
    assert bad == (f"{tmp_path}/c.conll:2", "has 1 columns where most lines have 2")
    assert good["words"] == ["c"]


@pytest.fixture
def to_iob2(tmp_path):
    """The tags of a sentence as the reader gives them."""

    def read(tags, **options):
        written(tmp_path, tags__conll="".join(f"word {tag}\n" for tag in tags))
        [record] = records(tmp_path / "tags.conll", "conll", **options)
        return record["tags"]

    return read


def test_iob1_becomes_iob2(to_iob2):
    iob1 = ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-ORG", "I-ORG", "B-ORG"]
    assert to_iob2(iob1) == ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-ORG", "I-ORG", "B-ORG"]


def test_other_schemes_become_iob2_and_iob2_stays(to_iob2):
    iob2 = ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-ORG", "I-ORG", "I-ORG"]
    assert to_iob2(iob2) == iob2
    assert to_iob2(["B-PER", "E-PER", "S-PER", "O", "S-LOC", "B-ORG", "I-ORG", "E-ORG"]) == iob2
    assert to_iob2(["B-PER", "L-PER", "U-PER", "O", "U-LOC", "B-ORG", "M-ORG", "L-ORG"]) == iob2
    assert to_iob2(["E-X", "E-X"]) == ["B-X", "B-X"]
    assert to_iob2(["NN", "VB-Z", "O"]) == ["NN", "VB-Z", "O"]
    assert to_iob2(["I-X"], scheme="as_found") == ["I-X"]


def test_spans_of_characters(tmp_path):
    crossed = {"text": "abcdef", "label": {"a": {"ab": [[0, 1]], "f": [[5, 5]]}, "b": {"bcde": [[1, 4]]}}}
    written(tmp_path, crossed__json=json.dumps(crossed))
    [record] = records(tmp_path / "crossed.json", "character_spans")
    assert record["tags"] == ["O", "B-b", "I-b", "I-b", "I-b", "B-a"]
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


def test_lines_of_several_files_side_by_side(tmp_path):
    written(tmp_path, val_words__txt="a b\n\nc\n", val_tags__txt="I-X O\n\nO\n", x_words__txt="a\n")
    found = records(tmp_path / "val_*.txt", "line_columns", files=("words", "tags"))
    assert found == [{"words": "a b", "tags": "I-X O"}, {"words": "c", "tags": "O"}]
    assert found[1].where == f"{tmp_path}/val_*.txt:3"
    with pytest.raises(UserError, match="no file .*x_tags.txt"):
        records(tmp_path / "x_*.txt", "line_columns", files=("words", "tags"))
    written(tmp_path, x_tags__txt="O\nO\n")
    with pytest.raises(UserError, match="different numbers of lines: 1 in .*x_words.txt, 2 in .*x_tags.txt"):
        records(tmp_path / "x_*.txt", "line_columns", files=("words", "tags"))
    with pytest.raises(UserError, match=r"x_tags.txt has no \*, in whose place each of words, tags"):
        records(tmp_path / "x_tags.txt", "line_columns", files=("words", "tags"))


def test_lines_of_one_file_in_groups(tmp_path):
    written(tmp_path, a__txt="Sport: He: runs\n1\na\nb\nno activity\n4\na\nb\ncut\n\n")
    found = records(tmp_path / "a.txt", "line_columns", num_lines=4)
    assert found[0] == {"0": "Sport: He: runs", "1": "1", "2": "a", "3": "b"}
    assert found[2] == (f"{tmp_path}/a.txt:9", "has 1 of the 4 lines of a record")
    columns = {"context": "0", "label": "1", "choices": ("2", "3")}
    config = {"format": "line_columns", "options": {"num_lines": 4}, "columns": columns, "splits": {"dev": "a.txt"}}
    config |= {"strip_prefix": {"context": ".*?: "}, "bad_examples": "skip"}
    assert [e["context"] for e in noted(tmp_path, MULTIPLE_CHOICE, **config)[0]["dev"]] == ["He: runs", "no activity"]
    with pytest.raises(UserError, match="num_lines is 2; at least 1 is needed, and 1 with several files"):
        records(tmp_path / "a.txt", "line_columns", files=("a",), num_lines=2)


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
        {"id": "1", "question": "what", "context": "a b", "answers": answers},
        {"id": "2", "question": "none", "context": "a b", "answers": [], "is_impossible": True},
    )
    with pytest.raises(UserError, match=r"data\[0\].paragraphs\[0\].qas\[0\] has as answers .* an item without"):
        loaded(tmp_path, SPAN_QA, format="squad_json", splits={"dev": "b.json"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"data"', "is not JSON"),
        ("[1]", r"no field 'data' at \[0\]; a JSON number is there"),
        ('{"data": [{}]}', r"no field 'paragraphs' at data\[0\]"),
        ('{"data": [{"paragraphs": [{"qas": 1}]}]}', r"has a JSON number at data\[0\].paragraphs\[0\].qas"),
    ],
)
def test_other_json_is_not_squad(tmp_path, text, message):
    written(tmp_path, a__json=text)
    with pytest.raises(UserError, match=message):
        records(tmp_path / "a.json", "squad_json")


def test_an_answer_as_the_places_of_its_tokens(tmp_path):
    written(tmp_path, v__context="a bb c\na\n", v__question="q\nr\n", v__span="1 2\n1 0\n")
    options = {"files": ("context", "question", "span")}
    config = {"format": "line_columns", "options": options, "splits": {"dev": "v.*"}, "columns": {"answers": "span"}}
    found, [note] = noted(tmp_path, SPAN_QA, **config, bad_examples="skip")
    answers = [{"text": "bb c", "answer_start": 2}]
    assert found["dev"] == ({"id": "dev-0", "question": "q", "context": "a bb c", "answers": answers},)
    assert "v.*:2 has as answers (column 'span') '1 0', which is not two places in 1 tokens" in note


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
    listed = whole.index(b"PK\x05\x06") + 16  # where the list of files begins; files then begin before the zip does
    beyond = whole[:listed] + b"\xff" + whole[listed + 1 :]
    for broken in (b"PK\x03\x04 and no more", whole[:text] + b"\xff" * 9 + whole[text + 9 :], beyond):
        written(tmp_path, a__zip=broken)
        with pytest.raises(UserError, match="a.zip is not a whole zip"):
            records(tmp_path / "a.zip", "text_folders")


def test_a_zip_with_links_is_an_error(tmp_path):
    """A link is kept as the path that it leads to, which would be read as a text."""
    link = zipfile.ZipInfo("good/2.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("good/1.txt", "fine")
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(UserError, match="a.zip holds links, such as good/2.txt; pack the files themselves"):
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


def test_ids_in_a_file_make_the_dev_split(tmp_path):
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    written(
        tmp_path,
        train__txt=f'{head}1\t10\t11\t"a\tb\n0\t12\t13\tc\td\n',
        test__txt=f"{head}1\t14\t15\te\tf\n",
        dev_ids__tsv="12\t13\n",
        other__tsv="12\t14\n",
    )
    columns = {"text": "#1 String", "pair": "#2 String", "label": "Quality", "id": ("#1 ID", "#2 ID")}
    config = {"format": "delimited", "splits": {"train": "train.txt", "test": "test.txt"}, "columns": columns}
    found = loaded(tmp_path, CLASSIFICATION, **config, dev_ids="dev_ids.tsv")
    assert found["train"] == ({"id": "10-11", "text": '"a', "pair": "b", "label": "1"},)
    assert [example["id"] for example in found["dev"] + found["test"]] == ["12-13", "14-15"]
    with pytest.raises(UserError, match="1 of 1 ids of .*other.tsv are of no row, such as '12-14' .a row is '10-11'"):
        loaded(tmp_path, CLASSIFICATION, **config, dev_ids="other.tsv")
    with pytest.raises(UserError, match="no file .*absent.tsv"):
        loaded(tmp_path, CLASSIFICATION, **config, dev_ids="absent.tsv")
    with pytest.raises(UserError, match="dev_ids makes the dev split, and config.data.splits names one"):
        loaded(tmp_path, CLASSIFICATION, **config | {"splits": {"train": "a", "dev": "b"}}, dev_ids="dev_ids.tsv")


def test_records_of_lists_inside_arrays(tmp_path):
    question = {"question": "q", "choice": ["x", "y"], "answer": "y"}
    dialogues = [[["A: 1", "B: 2"], [question, question | {"answer": "z"}], "7"], ["no dialogue"]]
    written(tmp_path, a__json=json.dumps(dialogues[:1]), b__json=json.dumps(dialogues))
    first, second = records(tmp_path / "a.json", "jsonl", field="1")
    assert first == {"0": ["A: 1", "B: 2"], "2": "7", "number": 0, **question}
    assert second.where == f"{tmp_path}/a.json, [0].1[1]"
    columns = {"id": ("2", "number"), "context": "0", "choices": "choice", "label": "answer"}
    config = {"format": "jsonl", "options": {"field": "1"}, "columns": columns}
    found = loaded(tmp_path, MULTIPLE_CHOICE, **config, splits={"dev": "a.json"})["dev"][0]
    assert found == {
        "id": "7-0", "context": "A: 1\nB: 2", "choices": ["x", "y"], "question": "q", "label": "y",
    }  # fmt: skip
    with pytest.raises(UserError, match=r"b.json has no field '1' at \[1\]; valid: 0"):
        records(tmp_path / "b.json", "jsonl", field="1")


def test_multiple_choice_from_a_table(tmp_path):
    written(tmp_path, a__csv="sent1,sent2,e0,e1,label\nOne.,He,runs,sits,1\n")
    columns = {"context": "sent1", "question": "sent2", "choices": ["e0", "e1"]}
    found = loaded(tmp_path, MULTIPLE_CHOICE, format="delimited", splits={"train": "a.csv"}, columns=columns)
    assert found["train"] == (
        {"id": "train-0", "context": "One.", "choices": ["runs", "sits"], "question": "He", "label": "1"},
    )


@pytest.mark.parametrize("form", ["conll", "jsonl", "line_columns"])
def test_utf_16_and_cr_are_read_by_every_reader_of_lines(tmp_path, form):
    text = '{"0": "é O"}\n{"0": "b O"}\n' if form == "jsonl" else "é O\nb O\n"
    written(tmp_path, plain=text, wide=text.encode("utf-16"), returns=text.replace("\n", "\r"))
    plain, wide, returns = ([*records(tmp_path / name, form)] for name in ("plain", "wide", "returns"))
    assert plain == wide == returns
