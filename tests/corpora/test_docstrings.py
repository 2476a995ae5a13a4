"""The source ``docstrings`` and the prose that it keeps."""

import ast
import gc
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.corpora import docstrings
from bert_jax.corpora.docstrings import Source, paragraphs
from bert_jax.corpora.source import documents
from bert_jax.errors import UserError

NUMPYDOC = """
    Return the thing, with care.

    A second paragraph that
    goes over two lines, see :func:`other` and ``code``.

    Parameters
    ----------
    x, y : array_like, optional
        The numbers to add together.
    out : ndarray
        Where the result of the sum goes,
        if it is given.

    Returns
    -------
    z : ndarray

    See Also
    --------
    other : Another function altogether here.

    Examples
    --------
    The use is simple as this shows:

    >>> thing(1, 2)
    the printed output is no prose
    ... more

    .. math:: x = y + z

    ======  =======
    a name  a value
    ======  =======
    | one  | two words |
    """

GOOGLE = """Do a thing with two numbers.

  Args:
    x (int): the first of the numbers, which
      goes on here.
    y: the second of the numbers.

  Returns:
    The sum of both numbers.

  Example::

    some code(that) is not prose

  - first item of the list here
  - second item of the list
    continued on this line

  ```python
  fenced code is left out
  ```
  """


def test_numpydoc_leaves_prose():
    assert list(paragraphs(NUMPYDOC)) == [
        "Return the thing, with care.",
        "A second paragraph that goes over two lines, see other and code.",
        "The numbers to add together.",
        "Where the result of the sum goes, if it is given.",
        "The use is simple as this shows:",
    ]


def test_google_style_leaves_prose():
    assert list(paragraphs(GOOGLE)) == [
        "Do a thing with two numbers.",
        "the first of the numbers, which goes on here.",
        "the second of the numbers.",
        "The sum of both numbers.",
        "first item of the list here",
        "second item of the list continued on this line",
    ]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A source over files of our own."""

    def write(**modules: str) -> Source:
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        found = [(path.name, path) for path in sorted(tmp_path.glob("*.py"))]
        monkeypatch.setattr(docstrings, "_modules", lambda _: iter(found))
        docstrings._read.cache_clear()
        return Source(packages=("stdlib",))

    yield write
    docstrings._read.cache_clear()


def test_docstrings_come_in_file_order_and_nothing_is_executed(package):
    source = package(
        a='"""The module comes first."""\nraise SystemExit\n'
        'class A:\n    """The class is second."""\n    def f(self):\n        """The method is third."""\n'
        'if True:\n    async def g():\n        """The function is fourth."""\n'
        'x = "No docstring at all here."\n',
        b="def broken(:\n",
        c='"""Another module of its own."""\n',
    )
    assert [(d.id, d.sentences) for d in documents(source)] == [
        (
            "stdlib:a.py",
            ("The module comes first.", "The class is second.", "The method is third.", "The function is fourth."),
        ),
        ("stdlib:c.py", ("Another module of its own.",)),
    ]


def test_copies_are_taken_once(package):
    copy = '"""The same text is in two modules."""\n'
    source = package(a=copy, b=copy + 'def f():\n    """But this is new text."""\n')
    assert [d.sentences for d in documents(source)] == [
        ("The same text is in two modules.",),
        ("But this is new text.",),
    ]


def test_installed_packages_give_the_same_corpus_in_every_process():
    """Modules are not imported: ``absl`` and ``ml_collections`` stay out of ``sys.modules``."""
    code = (
        "import hashlib, sys\nfrom bert_jax.corpora.docstrings import Source\n"
        "source = Source(packages=('ml_collections', 'absl-py'))\n"
        "from bert_jax.corpora.source import documents\n"
        "print(hashlib.sha256(repr(list(documents(source))).encode()).hexdigest(), source.fingerprint())\n"
        "assert 'ml_collections' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    source = Source(packages=("absl-py", "ml_collections"))
    found = list(documents(source))
    assert run.stdout.split() == [hashlib.sha256(repr(found).encode()).hexdigest(), source.fingerprint()]
    assert sum(len(s) for d in found for s in d.sentences) > 100_000
    assert not any(">>>" in s for d in found for s in d.sentences)
    assert not any(d.id.endswith("_test.py") or "/tests/" in d.id for d in found)


def test_files_are_parsed_without_garbage_collection(monkeypatch):
    """Beside the objects of jax it takes longer than the parsing."""
    parse, collected = ast.parse, set()
    monkeypatch.setattr(docstrings.ast, "parse", lambda text: collected.add(gc.isenabled()) or parse(text))
    assert docstrings._docstrings(Path(__file__))
    assert collected == {False}
    assert gc.isenabled()


def test_description_has_versions_and_missing_packages_are_named():
    assert set(Source().describe()["packages"]) == set(docstrings.PACKAGES)
    with pytest.raises(UserError, match="names no-such-package, not installed"):
        list(documents(Source(packages=("numpy", "no-such-package"))))
    assert Source().fingerprint() != Source(packages=("numpy",)).fingerprint()
