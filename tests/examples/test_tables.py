"""Tables of separated values as programs write them: quotes, escapes, line ends, encodings. The csv module is right."""

import csv
import io
import random
import re
import shlex

import pytest

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.examples.delimited import Reader
from bert_jax.examples.load import DataConfig, load
from bert_jax.examples.reading import BadRecord
from bert_jax.recipes import recipes
from tests.examples.loading import CLASSIFICATION, MULTIPLE_CHOICE, loaded, written

TEXTS = [
    'he said "a poor film"',
    "a fine film",
    'so; "bad", he said',
    "two\nlines",
    "a\ttab | and a bar",
    '"',
    "\\n",
    "",
]
HINT = re.compile(r"--config\.data\.[\w.]+=(?:'[^']*'|[^\s;]+)")


def table(texts=TEXTS, header=("text", "label"), **form):
    """A table as the csv module writes it."""
    end = form.pop("lineterminator", "\n")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=end, **form)
    writer.writerow(header)
    writer.writerows((text, f"l{i % 2}") for i, text in enumerate(texts))
    return file.getvalue()


def values(path, **options):
    """The values of the rows of a table, none of which is bad."""
    rows = list(Reader(**options).read(str(path)))
    assert not [row for row in rows if isinstance(row, BadRecord)]
    return [tuple(row.values()) for row in rows]


ESCAPED = {"doublequote": False, "escapechar": "\\"}
FORMS = [
    (name, {"delimiter": mark, "quoting": quoting, "lineterminator": end, **escapes})
    for name, mark in (("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t"), ("a.txt", "|"))
    for end in ("\n", "\r\n", "\r")
    for quoting, escapes in ((csv.QUOTE_MINIMAL, {}), (csv.QUOTE_ALL, {}), (csv.QUOTE_ALL, ESCAPED))
    if (end, quoting) != ("\r", csv.QUOTE_MINIMAL)  # csv then leaves a line feed of a text without quotes
]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_what_csv_writes_is_read(tmp_path, name, form):
    (tmp_path / name).write_bytes(table(**form).encode())
    assert values(tmp_path / name, delimiter=form["delimiter"]) == [(t, f"l{i % 2}") for i, t in enumerate(TEXTS)]


@pytest.mark.parametrize("seed", range(40))
def test_any_table_of_any_delimiter_and_quoting_is_read(tmp_path, seed):
    chance = random.Random(seed)
    mark, end = chance.choice(",;\t|:~^ ü"), chance.choice(("\n", "\r\n", "\r"))
    texts = ["".join(chance.choices(f"ab é\"\\',{mark}\n", k=chance.randrange(1, 12))) for _ in range(30)]
    quoting, escapes = chance.choice(((csv.QUOTE_MINIMAL, {}), (csv.QUOTE_ALL, {}), (csv.QUOTE_NONNUMERIC, ESCAPED)))
    quoting = csv.QUOTE_ALL if end == "\r" else quoting  # else csv leaves a line feed of a text without quotes
    form = {"delimiter": mark, "quoting": quoting, "lineterminator": end, **escapes}
    encoding = chance.choice(("utf-8", "utf-8-sig", "utf-16", "utf-32"))
    head = f"sep={mark}{end}" if chance.random() < 0.5 else ""
    (tmp_path / "a.csv").write_bytes((head + table(texts, **form)).encode(encoding))
    expected = list(csv.reader(io.StringIO(table(texts, **form), newline=""), **form))[1:]
    assert values(tmp_path / "a.csv", delimiter="" if head else mark) == [tuple(row) for row in expected]


@pytest.mark.parametrize("seed", range(20))
def test_a_table_without_quoting_keeps_its_quotes(tmp_path, seed):
    """GLUE's tables: quotes are letters, and most of them stand alone."""
    chance = random.Random(seed)
    texts = ["".join(chance.choices("ab \"'.,", k=20)) for _ in range(60)]
    texts[3:5] = '"an open quote', '"Yes", he said'
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"{text}\tx\n" for text in texts))
    assert values(tmp_path / "a.tsv") == [(text, "x") for text in texts]


def test_a_bad_row_of_a_quoted_table_does_not_turn_quoting_off(tmp_path):
    text = table(delimiter="\t") + '"a" b\tl0\n' + "one field\n"
    (tmp_path / "a.tsv").write_text(text)
    rows = list(Reader().read(str(tmp_path / "a.tsv")))
    assert rows[0] == {"text": TEXTS[0], "label": "l0"}
    lines = text.count("\n")
    assert [row.where for row in rows[-2:]] == [f"{tmp_path}/a.tsv:{n}" for n in (lines - 1, lines)]
    assert "is not a row of a table with quotes" in rows[-2].reason


def test_a_quote_that_never_ends_is_named_where_it_begins(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"good, or",a\n"open,b\nc,d\ne,f\n')
    good, bad = Reader().read(str(tmp_path / "a.csv"))
    assert good == {"text": "good, or", "label": "a"}
    assert bad.where == f"{tmp_path}/a.csv:3"
    assert "lines 3 to 5" in bad.reason


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('text, label\n"a, b", neg\n', ("a, b", "neg")),
        (' text ;label \n"a; b";neg\n', ("a; b", "neg")),
        ("SEP=;\ntext;label\na;neg\n", ("a", "neg")),
        ('text,label\r"a\nb",neg\r', ("a\nb", "neg")),
        ('text,label\n"C:\\dir \\"x\\" \\n",neg\n', ('C:\\dir "x" \\n', "neg")),
        ('text,label\na\rb,neg\n"c",d\n', None),
    ],
)
def test_forms_of_headers_escapes_and_line_ends(tmp_path, text, row):
    (tmp_path / "a.csv").write_bytes(text.encode())
    options = {"delimiter": ";"} if text.startswith(" ") else {}
    rows = list(Reader(**options).read(str(tmp_path / "a.csv")))
    if row is None:
        assert isinstance(rows[0], BadRecord)
        return
    assert [dict(one) for one in rows] == [dict(zip(("text", "label"), row, strict=True))]


@pytest.mark.parametrize("typed", [r"\t", "\t"])
def test_a_tab_may_be_typed(tmp_path, typed):
    (tmp_path / "a.csv").write_text("text\tlabel\na, b\tc\n")
    assert values(tmp_path / "a.csv", delimiter=typed) == [("a, b", "c")]


R = [("a, b", "x"), ('say "no"', "y")]  # the rows of R's files


@pytest.mark.parametrize(
    ("name", "text"),
    [  # as R 4's write.table(quote=TRUE) and Excel write them; pandas.read_csv gives these values with index_col=None
        ("a.tsv", '"text"\t"label"\n"1"\t"a, b"\t"x"\n"17"\t"say \\"no\\""\t"y"\n'),
        ("a.csv", '"text","label"\n"1","a, b","x"\n"17","say ""no""","y"\n'),
        ("a.csv", 'text,label\n"a, b",x,\n"say ""no""",y,\n'),
        ("a.csv", 'text,label\r\r\n"a, b",x\r\r\n"say ""no""",y\r\r\n'),
        ("a.csv", '\ufeff\ufefftext,label\n"a, b",x\n"say ""no""",y\n'),
        ("a.csv", 'sep=;;\ntext;label\na, b;x\n"say ""no""";y\n'),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_row_numbers_last_delimiters_and_encodings_without_a_mark(tmp_path, name, text, encoding):
    (tmp_path / name).write_bytes(text.encode(encoding))
    rows = list(Reader().read(str(tmp_path / name)))
    assert [(row["text"], row["label"]) for row in rows] == R


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "text,label\n" + "a, b,x\nc, d,y\n",
            "has 2 fields in its first line and 3 in every other; the first line has",
        ),
        ("Export of 2024\ntext,label\na,x\n", "has 1 fields in its first line and 2 in every other"),
        ("\x1f\x8b\x08\0", "a.csv is compressed by gzip, not plain text; let its name end in .gz"),
        ("PK\x03\x04", "a.csv is a zip archive, as .xlsx, .docx and .odt files are, not plain text; save it as plain"),
        ("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "is a file of an Office program, such as .xls or .doc, not plain text"),
        ("%PDF-1.4", "is a PDF file"),
        ("PAR1\x15\x04", "is a Parquet file"),
    ],
)
def test_what_is_no_table_with_names_is_named(tmp_path, text, said):
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=re.escape(said)):
        list(Reader().read(str(tmp_path / "a.csv")))


def test_text_that_is_not_utf8_comes_with_what_converts_it(tmp_path):
    (tmp_path / "a.csv").write_bytes("text,label\ncafé,a\nno,b\n".encode("cp1252"))
    data = build(DataConfig, {"format": "table", "splits": {"train": "a.csv"}}, "config.data")
    with pytest.raises(UserError, match="has a text that is not UTF-8.*iconv -f WINDOWS-1252 -t UTF-8"):
        load(data, tmp_path, CLASSIFICATION, lambda line: None)


ROWS = "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(8))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", b"text;label\n" + ROWS.replace(",", ";").encode()),
        ("a.csv", b"text\tlabel\n" + ROWS.replace(",", "\t").encode()),
        ("a.tsv", b"text,label\n" + ROWS.encode()),
        ("a.csv", b"text;label\nyes, it is;a\n" + ROWS.replace(",", ";").encode()),
        ("a.csv", b"text|label\nyes, it is|a\nno, not at all|b\n"),
        ("a.txt", b'"text" "label"\n' + re.sub(r"text (.),(.)", r'"\1" "text \1" "\2"', ROWS).encode()),
        ("a.csv", b'text,label\n"Yes" he said,a\n"No" he said,b\n'),
        ("a.csv", b"text,label\n,a\n" + ROWS.encode()),
        ("a.csv", b"text,label\nno label\n" + ROWS.encode()),
        ("a.csv", f"text é,label\n{ROWS}".encode("cp1252")),
    ],
)
def test_the_hint_of_a_message_reads_the_table(tmp_path, name, text):
    """Hints are followed until no message is left: a table of one column may need a second one."""
    (tmp_path / name).write_bytes(text)
    typed = [
        f"--config.data.splits={{'train': {name!r}}}",
        "--config.data.columns.text=text é"[: -2 if b"\xe9" not in text else None],
    ]
    data = recipes.load("classification", typed).to_dict()["data"]
    with pytest.raises(UserError) as raised:
        load(build(DataConfig, data, "config.data"), tmp_path, CLASSIFICATION, lambda line: None)
    hints = shlex.split(" ".join(dict.fromkeys(HINT.findall(str(raised.value)))))
    assert hints
    data = recipes.load("classification", [*typed, *hints]).to_dict()["data"]
    found = load(build(DataConfig, data, "config.data"), tmp_path, CLASSIFICATION, lambda line: None)
    assert {example["label"] for of in found.values() for example in of} == {"a", "b"}


def test_one_column_in_place_of_several_is_read_as_it_is(tmp_path):
    """Such as a list of choices, for a recipe that has a column for each of them."""
    written(tmp_path, a__jsonl='{"context": "c", "endings": ["a", "b"]}\n')
    columns = {"choices": ("endings",)}
    found = loaded(tmp_path, MULTIPLE_CHOICE, format="jsonl", columns=columns, splits={"test": "a.jsonl"})
    assert found["test"][0]["choices"] == ["a", "b"]


@pytest.mark.parametrize("typed", ["('title', 'body')", "['title','body']"])
def test_several_columns_may_be_typed(tmp_path, typed):
    written(tmp_path, a__csv="title,body,label\nOne,two.,x\n")
    data = recipes.load("classification", [f"--config.data.columns.text={typed}"]).to_dict()["data"]
    data = data | {"splits": {"test": "a.csv"}, "dev_fraction": 0.0}
    found = load(build(DataConfig, data, "config.data"), tmp_path, CLASSIFICATION, print)
    assert found["test"][0]["text"] == "One two."


def test_a_table_is_read_by_the_end_of_its_name(tmp_path):
    table = "text\tlabel\nfirst one\ta\nsecond one\tb\n"
    json_lines = '{"text": "first one", "label": "a"}\n{"text": "second one", "label": "b"}\n'
    folder = written(tmp_path, a__tsv=table, b__csv=table.replace("\t", ","), c__jsonl=json_lines)
    found = [loaded(folder, CLASSIFICATION, format="table", splits={"train": name}) for name in ("a.tsv", "b.csv")]
    assert found[0] == found[1] == loaded(folder, CLASSIFICATION, format="table", splits={"train": "c.jsonl"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text\tlabel\nA word.\tgood\n", "a.tsv has 1 example, and 2 are needed: to train on and to evaluate on"),
        (
            b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8,
            r"a.tsv is a binary file, not text; save it as text, CSV",
        ),
    ],
)
def test_a_table_that_cannot_serve_is_one_line(tmp_path, content, message):
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(UserError, match=message):
        loaded(tmp_path, CLASSIFICATION, format="table", splits={"train": "a.tsv"}, dev_fraction=0.1)
