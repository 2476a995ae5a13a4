"""CoNLL's format as it is found: tabs and spaces, comments, numbers of words."""

import re
import shlex

import pytest

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.examples.load import DataConfig, load
from bert_jax.recipes import recipes
from tests.examples.loading import TAGGING, written
from tests.examples.test_readers import records


@pytest.mark.parametrize(
    ("text", "options", "sentences"),
    [
        ("New York\tB-LOC\n+47 22 00\tO\n\nKari\tB-PER\n", {}, [["New York", "+47 22 00"], ["Kari"]]),
        ("New York\tNNP\tB-LOC\t\nis \t VBZ\t O\n", {}, [["New York", "is"]]),
        ("a\tX O\nb Y\tO\n", {"delimiter": r"\t"}, [["a", "b Y"]]),
        ("# id 1-2\tdomain=en\na _ _ O\n# _ _ O\n\n# id 3 domain=en\n# _ _ B-X\n", {}, [["a", "#"], ["#"]]),
        ("# id 1 domain=en\n\na _ _ O\n\n# O\n", {}, [["a"]]),
        ("#\thttp://x\t[2009]\n1\ta b\tO\tO\n2\t#\tO\tO\n", {"word_column": 1, "tag_column": 2}, [["a b", "#"]]),
        ("#\n# x\n#x NN O\n# # O\n\n#\nb NN O\n", {}, [["#x", "#"], ["b"]]),
        ("#begin document (x); part 0\na 0 B-X\n\n#end document\n", {}, [["a"]]),
        ("one\n# two\n\n# three\n#\nfour\n", {}, [["#", "four"]]),
    ],
)
def test_conll_with_tabs_and_comments(tmp_path, text, options, sentences):
    written(tmp_path, a__conll=text)
    found = records(tmp_path / "a.conll", "conll", **options)
    assert [record["words"] for record in found if isinstance(record, dict)] == sentences


CONLL_U = "".join(
    f"{column.replace(' ', chr(9))}\n"
    for column in (
        *("# sent_id = 1", "1-2 zum _ _ _ _ _ _ _ _", "1 zu zu ADP APPR _ 3 case _ _"),
        *("2 dem der DET ART _ 3 det _ _", "2.1 ja _ X _ _ _ _ _ _", "3 Haus Haus NOUN NN _ 0 root _ SpaceAfter=No"),
        *("", "#text=#", "1 # # SYM $ _ 0 root _ _"),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tags"),
    [(CONLL_U, [["ADP", "DET", "NOUN"], ["SYM"]]), ("1\ta\tB-X\n2\tb\tO\n\n1\tc\tO\n", [["B-X", "O"], ["O"]])],
)
def test_numbers_of_words_are_no_words(tmp_path, text, tags):
    written(tmp_path, a__conllu=text.replace("#\tsent_id\t=\t1", "# sent_id = 1"))
    with pytest.raises(UserError, match="numbers of words in its first column") as raised:
        records(tmp_path / "a.conllu", "conll")
    typed = re.findall(r"--config\.data\.options\.(\w+)=(\d)", str(raised.value))
    found = records(tmp_path / "a.conllu", "conll", **{name: int(value) for name, value in typed})
    assert [record["tags"] for record in found] == tags


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a O\nb O\n\nNew York B-LOC\n", 4, "has 3 columns where most lines have 2"),
        ("New York\tO\nb\tO\nc O\n", 1, "has 3 columns where most lines have 2"),
        ("a\tX\tO\nb\tX\n\nc\tX\tO\n", 2, "has 2 columns where most lines have 3"),
        ("a\tO\n\tO\n\nb\tO\n", 2, "has no word"),
        (
            "er\nNew York\nstor\n",
            2,
            r"most lines have 1 (--config.data.options.delimiter='\t' reads words with spaces)",
        ),
    ],
)
def test_conll_lines_of_unlike_width_are_named(tmp_path, text, line, said):
    written(tmp_path, a__conll=text)
    [bad] = [one for one in records(tmp_path / "a.conll", "conll") if not isinstance(one, dict)]
    assert bad.where == f"{tmp_path}/a.conll:{line}"
    assert said in bad.reason
    if "delimiter" in said:
        [record] = records(tmp_path / "a.conll", "conll", delimiter=r"\t")
        assert record["words"] == ["er", "New York", "stor"]


def test_a_docstart_after_a_word_ends_its_sentence_and_its_document(tmp_path):
    written(tmp_path, a__conll="-DOCSTART- O\na O\n-DOCSTART- O\nb O\n\n-DOCSTART- O\n\nc O\n")
    found = records(tmp_path / "a.conll", "conll")
    assert [(record["words"], record["document"]) for record in found] == [(["a"], 1), (["b"], 2), (["c"], 3)]


def test_conll_u_whose_sentences_have_one_word_is_recognised(tmp_path):
    written(tmp_path, a__conllu="1\ta\ta\tDET\t_\t_\t0\tr\t_\t_\n\n1\tb\tb\tX\t_\t_\t0\tr\t_\t_\n")
    with pytest.raises(UserError, match="numbers of words in its first column"):
        records(tmp_path / "a.conllu", "conll")


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("a.jsonl", '{"words": ["a", "b"], "tags": ["O", "B-X"]}\n' * 2, "--config.data.format=jsonl"),
        ("a.conll", "a,O\nb,B-X\n\na,O\nb,B-X\n", "--config.data.options.delimiter=','"),
        ("a.conll", "a;O\r\r\nb;B-X\r\r\n\r\r\na;O\r\r\nb;B-X\r\r\n", "--config.data.options.delimiter=';'"),
    ],
)
def test_the_hint_for_a_file_of_another_form_reads_it(tmp_path, name, text, hint):
    (tmp_path / name).write_bytes(text.encode())

    def read(*hints):
        typed = [f"--config.data.splits={{'train': {name!r}}}", *hints]
        data = recipes.load("tagging", typed).to_dict()["data"]
        return load(build(DataConfig, data, "config.data"), tmp_path, TAGGING, lambda line: None)

    with pytest.raises(UserError, match=re.escape(hint)):
        read()
    found = [one for of in read(*shlex.split(hint)).values() for one in of]
    assert [(one["words"], one["tags"]) for one in found] == [(["a", "b"], ["O", "B-X"])] * 2
