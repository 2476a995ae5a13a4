"""The toy corpus that tests of objectives share."""

import pytest

from tests.objectives.texts import Text, make_text


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return make_text(tmp_path_factory.mktemp("corpus"))
