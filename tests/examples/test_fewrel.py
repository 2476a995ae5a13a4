"""FewRel's format: sentences of tokens with head and tail, by relation."""

import json

import pytest

from bert_jax.errors import UserError
from bert_jax.examples.columns import Roles
from tests.examples.loading import loaded

ROLES = Roles(("text", "head", "tail"), ("head_entity", "tail_entity", "label"))
SENTENCE = {
    "tokens": ["Wilton", "Bridge", "crosses", "the", "Wye", "."],
    "h": ["wilton bridge", "Q8023421", [[0, 1], [4]]],
    "t": ["wye", "Q19700", [[4]]],
}


def test_mentions_are_characters_of_the_joined_tokens(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"P177": [SENTENCE, SENTENCE], "P1": [SENTENCE]}))
    found = loaded(tmp_path, ROLES, format="fewrel", splits={"train": "a.json"})["train"]
    assert [example["label"] for example in found] == ["P177", "P177", "P1"]
    first = found[0]
    assert [first["text"][slice(*first[role])] for role in ("head", "tail")] == ["Wilton Bridge", "Wye"]
    assert (first["head_entity"], first["tail_entity"]) == ("Q8023421", "Q19700")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"P1": [{**SENTENCE, "t": ["wye", "Q1", [[9]]]}]}, r"a.json, P1\[0\] needs tokens, and h and t as \[name"),
        ({"P1": [{**SENTENCE, "t": ["wye", "Q1", []]}]}, r"a.json, P1\[0\] needs tokens, and h and t as \[name"),
        ({"P1": [{"tokens": ["a"]}]}, "needs tokens, and h and t as"),
        ({"P1": [5]}, "needs tokens, and h and t as"),
        ({"P1": 5}, "a.json is no object of relations with a list of sentences each; set config.data.format"),
        ([SENTENCE], "a.json is no object of relations"),
    ],
)
def test_what_is_not_fewrel(tmp_path, content, said):
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=said):
        loaded(tmp_path, ROLES, format="fewrel", splits={"train": "a.json"})


def test_the_public_file(shared_data):
    folder = shared_data("entity_fewrel")
    found = loaded(folder, ROLES, format="fewrel", splits={"train": "val_wiki.json"})["train"]
    assert len(found) == 11_200
    assert len({example["label"] for example in found}) == 16
