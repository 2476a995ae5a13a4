import shutil
from pathlib import Path
from typing import Any

import pytest

from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.trained_model import TrainedModel
from tests.interchange import heads
from tests.interchange.small_model import CONFIG, PARAMS, TOKENIZER


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory of the small model, which no test may change."""
    folder = tmp_path_factory.mktemp("export") / "model"
    export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER), folder, "the card")
    return folder


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export of every head, which no test may change."""
    root = tmp_path_factory.mktemp("heads")
    for name, head in heads.HEADS.items():
        export_model(
            TrainedModel("", heads.params_of(head, heads.CONFIG), heads.CONFIG, heads.TOKENIZER, head),
            root / name,
            "card",
        )
    return root


@pytest.fixture
def copy_of(exports: Path, tmp_path: Path) -> Any:
    """Copies of exports that a test may spoil; without their sha256, as others write models."""
    ours = shutil.ignore_patterns("SHA256SUMS", "README.md")
    return lambda name: Path(shutil.copytree(exports / name, tmp_path / name, ignore=ours))
