"""The fixture of these tests."""

import pytest

from tests.launch.stage import Launch, prepare


@pytest.fixture
def launch(tmp_path) -> Launch:
    return prepare(tmp_path)
