from pathlib import Path

import pytest

from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.trained_model import TrainedModel
from tests.interchange.small_model import CONFIG, PARAMS, TOKENIZER


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory of the small model, which no test may change."""
    folder = tmp_path_factory.mktemp("export") / "model"
    export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER), folder, "the card")
    return folder
