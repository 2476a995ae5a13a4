"""Parts of a mixture: their shares, and their text as one source."""

import pytest

from bert_jax.corpora.mixture import JoinedSource, check_weights, shares
from bert_jax.corpora.prepare import CorpusConfig
from bert_jax.corpora.source import documents
from bert_jax.corpora.text_files import Source
from bert_jax.errors import UserError


def test_shares_by_weight_and_by_temperature():
    assert shares({"a": 3, "b": 1}, {"a": 5, "b": 5}, 1.0) == {"a": 0.75, "b": 0.25}
    assert shares({"a": None, "b": None}, {"a": 300, "b": 100}, 1.0) == {"a": 0.75, "b": 0.25}
    raised = shares({"a": None, "b": None}, {"a": 10_000, "b": 100}, 2.0)
    assert raised["b"] == pytest.approx(1 / 11)
    assert shares({"a": 2, "b": 0}, {"a": 5, "b": 5}, 1.0) == {"a": 1.0, "b": 0.0}


@pytest.mark.parametrize(
    ("weights", "temperature", "message"),
    [
        ({"a": 1, "b": None}, 1, "gives a weight to a and none to b"),
        ({"a": 1, "b": -1}, 1, "must be positive numbers, or 0 .*; found {'b': -1}"),
        ({"a": 0, "b": 0}, 1, "0 for a part that is only evaluated; found only 0"),
        ({"a": None}, 0, "temperature is 0"),
    ],
)
def test_bad_weights_are_explained(weights, temperature, message):
    with pytest.raises(UserError, match=message):
        check_weights(weights, temperature)


def test_joined_sources_are_read_one_after_another(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"This is {name}. It is short.\n")
    sources = {name: Source((f"{tmp_path}/{name}.txt",)) for name in ("one", "two")}
    joined = JoinedSource(tuple(sources.items()))
    assert [d.sentences for d in documents(joined)] == [
        ("This is one.", "It is short."),
        ("This is two.", "It is short."),
    ]
    assert joined.fingerprint() != JoinedSource((("one", sources["one"]),)).fingerprint()
    assert set(joined.describe()["parts"]) == {"one", "two"}


def test_a_path_that_is_typed_wins_over_a_text_that_the_recipe_leaves_open():
    open_text = {"paths": (), "document_boundary": "file"}
    part = CorpusConfig(parts={"own": {"path": "store", "options": open_text}}).part("own")
    assert part.path == "store"
    with pytest.raises(UserError, match="has the path store of .*, and the options of a corpus to be built"):
        CorpusConfig(parts={"own": {"path": "store", "options": {"paths": ("a.txt",)}}}).part("own")
