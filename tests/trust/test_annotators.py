"""Columns of a corpus on ten thousand random strings of Unicode."""

import pytest

from tests.corpora.test_annotators import check_rejoined
from tests.trust import damage


@pytest.mark.trust
def test_pieces_and_units_of_random_unicode_join_again() -> None:
    check_rejoined(damage.scaled(10_000), damage.generator("columns"))
