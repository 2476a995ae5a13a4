"""The annotator ``entities``: ids of a lexicon on the first piece of each mention."""

import numpy as np
import pytest

from bert_jax.corpora import columns
from bert_jax.corpora.annotators import entities, lexicon
from bert_jax.corpora.columns import BEGINS, Column
from bert_jax.corpora.shard_job import tokenize
from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS, Document
from bert_jax.text.tokenizer import wordpiece

PIECES = wordpiece((*SPECIAL_TOKENS, *"北京大学在", "new", "york", "##er", "##s", "is", "in", ".", "paris", "##ian"))
LARGE = 5_041_175  # ids are above what uint16 holds


def values_of(annotator, sentence: str, column: str = "entity_ids") -> list[tuple[str, int]]:
    [found] = tokenize([Document("", (sentence,))], PIECES, [Column(column, "x", annotator)])
    assert found.columns[column].dtype == annotator.dtype
    return [(PIECES.vocab[i], value) for i, value in zip(found.tokens, found.columns[column].tolist(), strict=True)]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "names.tsv").write_text(f"New  York\t{LARGE}\nParis\t7\r\nin\t 2 \n\n北京大学\t3\n北京\t4\nParis\t7\n")
    return str(tmp_path / "names.tsv")


def test_the_id_is_on_the_first_piece_of_a_mention(path):
    found = entities.Annotator(path)
    assert values_of(found, "Paris is in New York.") == [
        *[("paris", 7), ("is", 0), ("in", 2), ("new", LARGE), ("york", 0), (".", 0)]
    ]
    assert values_of(found, "北京北京大学在") == [*zip("北京北京大学在", (4, 0, 3, 0, 0, 0, 0), strict=True)]
    assert [value for _, value in values_of(found, "Parisian New Yorkers paris")] == [0] * 7  # words and case
    assert [value for _, value in values_of(entities.Annotator(path, True), "new YORK")] == [LARGE, 0]


def test_mentions_are_the_units_of_the_annotator_lexicon(path):
    rng = np.random.default_rng(3)
    words = ["New", "York", "Paris", "in", "北京", "大学", "new", ".", "İ"]
    for _ in range(50):
        text = " ".join(rng.choice(words, 12))
        ids, units = (values_of(one.Annotator(path), text) for one in (entities, lexicon))
        assert [value > 0 for _, value in ids] == [value == BEGINS for _, value in units]


def test_a_lexicon_is_its_phrases_and_ids_wherever_it_lies(path, tmp_path):
    (tmp_path / "same").write_text(f"北京\t4\n北京大学\t3\nin\t2\nParis\t7\nNew York\t{LARGE}")
    (tmp_path / "other").write_text(f"北京\t5\n北京大学\t3\nin\t2\nParis\t7\nNew York\t{LARGE}")
    one = entities.Annotator(path)
    assert one.identity()["largest_id"] == LARGE
    assert sorted(one.ids()) == [2, 3, 4, 7, LARGE]
    assert one.identity() == entities.Annotator(str(tmp_path / "same")).identity()
    assert one.identity() != entities.Annotator(str(tmp_path / "other")).identity()
    assert one.identity() != entities.Annotator(path, ignore_case=True).identity()


BAD = {
    "names without ids": (
        "Paris\nBerlin\n",
        "line 1 of the lexicon .*, 'Paris', has no id; each line is a phrase, a tab",
    ),
    "one without an id": ("Paris\t1\nBerlin\t \n", "line 2 of the lexicon .*, 'Berlin', has no id"),
    "two ids": (
        "Paris\t1\nin\t2\nParis\t3",
        "line 3 .*, 'Paris', has the id 3, and an earlier line .* the id 1; keep one",
    ),
    "no entity": ("Paris\t0", "has the id '0'; a whole number from 1 to 2,147,483,647 is needed"),
    "negative": ("Paris\t-1", "has the id '-1'; a whole number"),
    "no number": ("Paris\tQ90", "has the id 'Q90'; a whole number"),
    "too large": ("Paris\t2147483648", "has the id '2147483648'; a whole number"),
    "endless": ("Paris\t" + "9" * 9999, "has the id '9999"),
    "empty": ("\n", "has no phrases"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_lexicon_is_one_line_before_a_text_is_read(bad, tmp_path):
    content, message = BAD[bad]
    (tmp_path / "names").write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        columns.find({"entity_ids": {"annotator": "entities", "path": str(tmp_path / "names")}})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_two_ids_that_differ_in_case_alone(tmp_path):
    (tmp_path / "names").write_text("May\t1\nmay\t2\n")
    entities.Annotator(str(tmp_path / "names")).identity()
    with pytest.raises(UserError, match="'may', has the id 2, .* or set ignore_case to False"):
        entities.Annotator(str(tmp_path / "names"), ignore_case=True).identity()


def test_without_a_path():
    with pytest.raises(UserError, match="'entities' of config.corpus.columns has no path; name a file"):
        columns.find({"entity_ids": {"annotator": "entities"}})
