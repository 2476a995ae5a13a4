"""Parts are found by file name."""

import pytest

from bert_jax.errors import UserError
from bert_jax.parts import catalogue

SOURCES = {"docstrings", "hugging_face_dataset", "jsonl", "mediawiki", "parquet", "text_files", "tfds_dataset"}


def test_a_part_is_its_file():
    assert catalogue.find("corpora", "docstrings").Source.__module__ == "bert_jax.corpora.docstrings"


def test_only_files_with_the_named_class_are_parts_of_a_kind():
    assert set(catalogue.parts("corpora", having="Source")) == SOURCES  # not build's Protocol
    with pytest.raises(UserError, match="there is no source 'store' in bert_jax.corpora"):
        catalogue.find("corpora", "store", having="Source")


def test_a_wrong_name_lists_what_is_there():
    with pytest.raises(UserError, match="did you mean 'docstrings'.*text_files"):
        catalogue.find("corpora", "docstring")
