"""Every expression that runs over users' text takes time in proportion to it: a megabyte of its worst case is read.

An expression whose time grows with the square of the length would take hours here; the deadline is far above the time
of a slow machine.
"""

import functools
import importlib
import pathlib
import re
import signal

import pytest

import bert_jax
from bert_jax.text.tokenizer import of_json
from tests.text.byte_level_files import roberta

CHARACTERS = 1_000_000
DEADLINE = 120  # seconds
PACKAGES = ("corpora", "corpora/annotators", "examples", "features", "inspection", "tasks", "tasks/metrics", "text")
SPACES = ("a", " ", "x")
# expression -> how it is used, and its worst cases: what comes before, what is repeated, what comes after
WORST = {
    "corpora.byte_ranges.JSON": ("match", ('"', "a", ""), ('"', '\\"', ""), ('"', "\\", "a")),
    "corpora.byte_ranges.TITLE": ("fullmatch", ("= a", " =", "x"), ("= a", " = a", "x"), ("= a =", "\n", "x")),
    "corpora.byte_ranges.EXTRACTED": ("match", ("", " ", "x"), ("<doc id=", "a", "")),
    "corpora.other_formats.FIELDS": ("search", ("", "a", "x"), ("", "ab ", "x")),
    "corpora.other_formats.HTML": ("match", ("", " ", "x"), ("<!--", "-", ""), ("<!--", "--> ", "x")),
    "corpora.other_formats.NAMES": ("fullmatch", ("", "a", "!"), ("a", ",a", "!"), ("a", ';"a"', "!"), ('"', "a", "")),
    "corpora.other_formats.XML": ("match", ("", " ", "x"), ("<a", " b", ""), ("<a>", "</", ""), ("<", "a:", "")),
    "corpora.docstrings.SKIPPED_FILE": ("match", ("", "a", ""), ("", "_test", ".p")),
    "corpora.hits._C1": ("findall", ("", "\u0080", ""), ("", "é", "")),
    "corpora.hits._MOJIBAKE": ("findall", ("", "Ã", ""), ("", "Ã©", "")),
    "corpora.phrases._BEGINS": ("findall", ("", "a", ""), ("", " ", ""), ("", "中", "")),
    "corpora.phrases.SPACED": ("match", ("", "a", "")),
    "corpora.hugging_face_dataset.COMMIT": ("fullmatch", ("", "a", "x")),
    "corpora.jsonl.ARRAY": ("match", ("", " ", "x"), ("[", " ", "x")),
    "corpora.mediawiki.NAMESPACE": ("findall", ('<namespace key="6"', "a", ""), ("", '<namespace key="6">', "")),
    "corpora.mediawiki.TEMPLATE": ("findall", ("{{", " ", "x"), ("", "{{ ", ""), ("", "{{a", ""), ("{{", "a ", "\n")),
    "corpora.docstrings.BULLET": ("match", ("", " ", "x"), ("-", " ", "")),
    "corpora.docstrings.CODE_DIRECTIVE": ("match", ("", " ", "x"), ("..", " ", "x")),
    "corpora.docstrings.EXAMPLE_OR_TABLE": ("match", ("", "= ", "x"), ("", "=", "x"), ("=", " ", "x")),
    "corpora.docstrings.FENCE": ("match", ("", " ", "x")),
    "corpora.docstrings.INLINE_MARKUP": ("findall", ("", ":", ""), ("", ":a", ""), ("", "*", " "), ("", "_", "a")),
    "corpora.docstrings.MARKUP": ("match", (".. ", "a", ""), ("..", " ", "x"), (".. ", "a-", ":")),
    "corpora.docstrings.NAMED_ENTRY": ("match", (":a", " b", ""), (":a", " b:", ""), ("a (", "b", ""), ("a:", " ", "")),
    "corpora.docstrings.RULER": ("match", ("", "= ", "x"), ("", "=", "x"), ("===", " ", "x")),
    "corpora.docstrings.SECTION": ("match", ("Args", " ", "x"), ("", " ", "x")),
    "corpora.docstrings.TYPED_NAME": ("match", ("a", ", a", "!"), ("a", " ", "!"), ("", "a", "!"), ("", "*`", "!")),
    "corpora.docstrings.UNDERLINE": ("match", ("", "=", "x"), ("===", " ", "x"), ("", " ", "x")),
    "corpora.unpacking.STREAM": ("search", ("", "B", ""), ("", "BZh91AY&S", "")),
    "corpora.mediawiki.BEFORE_MARK": ("findall", SPACES, ("", "  .", "x"), ("", " \xa0", "x")),
    "corpora.mediawiki.EMPTY": ("findall", SPACES, ("", "( ", ""), ("", " (", ""), ("", "(;", "")),
    "corpora.mediawiki.INTERLANGUAGE": ("match", ("aa", "-a", ""), ("aa-", "a", "")),
    "corpora.mediawiki.MAGIC": ("findall", ("", "_", ""), ("__", "A", ""), ("", "__A", "")),
    "corpora.mediawiki.OPENED": ("findall", ("(", " ", "x"), ("", "( ", ""), ("", "(", "")),
    "examples.collection.OBJECT": ("match", ("", " ", "x"), ("[", " ", "x")),
    "examples.conll.NUMBER": ("fullmatch", ("", "1", "x"), ("1-", "1", "x")),
    "examples.delimited.SEPARATOR": ("fullmatch", ("sep=", ";", "")),
    "examples.reading.LINE_END": ("search", ("", "a", "")),
    "examples.jsonl.NEXT_OBJECT": ("search", ("", "\n", "x"), ("\n", " ", "x"), ("", "\n ", "x")),
    "examples.jsonl.SPACE": ("match", ("", " ", "x"), ("", ", ", "x")),
    "features.retrieval.WORD": ("findall", ("", "a", ""), ("", "a ", ""), ("", "一", "")),
    "inspection.fertility._BYTES": ("fullmatch", ("", "<0xAB>", "x"), ("<0x", "A", ">")),
    "inspection.fit.CLOSING": ("search", ("", "<", ""), ("", "</a", ""), ("</", "a", ">")),
    "inspection.pieces._NO_TEXT": ("fullmatch", ("[unused", "1", "x"), ("<", ">", "x")),
    "tasks.metrics.entities.TAG": ("fullmatch", ("B-", "a", "\n")),
    "tasks.metrics.generated._IDEOGRAPH": ("search", ("", "a", ""), ("", "一", "")),
    "tasks.metrics.generated._WORD": ("findall", ("", "a", ""), ("", "a ", ""), ("", "一", "")),
    "tasks.metrics.spans._ARTICLES": ("findall", ("", "a", ""), ("", "a ", ""), ("", "the", "")),
    "tasks.metrics.spans._CMRC_PIECES": ("findall", ("", "a", ""), ("", "一", ""), ("", "a一", "")),
    "text.json_engine.BESIDE_SPACE": ("search", ("", " ", "x"), ("", "é ", "x")),
    "text.json_engine.PUNCTUATION": ("split", ("", "a", ""), ("", "-", "")),
    "text.learn.IDEOGRAPH": ("findall", ("", "a", ""), ("", "一", "")),
    "text.marks.BYTE": ("fullmatch", ("<0x", "A", "x")),
    "text.surrogates.SURROGATE": ("search", ("", "é", "")),
    "text.vocab_txt._COUNTED": ("fullmatch", ("", "a", ""), ("a ", "1", "x")),
    "text.vocab_txt._NUMBERED": ("fullmatch", ("", "\t", ""), ("\t", "1", "x"), ("", "\t1", "x")),
    "text.words.NO_SPACES": ("findall", ("", "a", ""), ("", "一", "")),
    "text.words.SPACES": ("findall", ("", " ", "x"), ("", "一 ", ""), ("", "一 a", "")),
    "text.words.PARTS": (
        "findall",
        ("", "a.一.", "x"),
        ("a", ".一", "x"),
        ("1", ".,", "x"),
        ("", "a-", ""),
        ("", "a.", "b"),
    ),
}


@pytest.fixture(autouse=True)
def _deadline():
    """Interrupt a case that takes more than the deadline; ``re`` looks for signals while it searches."""

    def stop(*_):
        raise TimeoutError(f"not read in {DEADLINE} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(DEADLINE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@functools.cache
def expressions():
    """Return name -> the compiled expressions, of every module that reads text."""
    found = {}
    root = pathlib.Path(bert_jax.__file__).parent
    for path in (path for package in PACKAGES for path in (root / package).glob("*.py")):
        if names := re.findall(r"^(\w+) = re\.compile\(", path.read_text(), re.MULTILINE):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            values = importlib.import_module(f"bert_jax.{module}")
            found |= {f"{module}.{name}": [getattr(values, name)] for name in names}
    return found


def test_every_expression_has_its_worst_cases():
    assert expressions().keys() == WORST.keys()


def long(before, unit, after):
    return before + unit * (CHARACTERS // len(unit)) + after


@pytest.mark.parametrize("name", WORST)
def test_a_megabyte_of_an_expressions_worst_case_is_read(name):
    how, *cases = WORST[name]
    for pattern in expressions()[name]:
        for case in cases:
            text = long(*case)
            getattr(pattern, how)(text.encode() if isinstance(pattern.pattern, bytes) else text)


def test_expressions_that_are_made_for_a_vocabulary():
    encoded = of_json(roberta()).encode(long("", " ", "x"), special_tokens_in_text=True)
    assert encoded.pieces[-2:] == ("x", "</s>")
