"""The floor does not move: the rows, trees, losses and ids that ``tests/fixtures/floor.json`` has (``tests.floor``)."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests import floor

WANTED = json.loads(floor.FILE.read_text())


def assert_kept(found: Mapping[str, str]) -> None:
    assert found == {name: WANTED.get(name) for name in found}


def test_every_entry_is_compared() -> None:
    """Entries of removed parts would otherwise stay unseen."""
    names = [f"curve {objective} {packing}" for objective, packing in floor.CURVES]
    names += [f"rows {o} {p} {split}" for o in floor.OBJECTIVES for p in floor.PACKINGS for split in floor.SPLITS]
    names += [f"rows {name} {split}" for name in (*floor.VARIANTS, *floor.TASKS) for split in floor.SPLITS]
    names += [f"tree {name}" for name in (*floor.OBJECTIVES, *floor.VARIANTS, *floor.TASKS)]
    names += [f"export {encoder} {ending}" for encoder, ending in floor.exported.CLASSES]
    assert {name for name in WANTED if not name.startswith("ids ")} == {*names, "curve finetune"}


def test_rows_and_parameter_trees(tmp_path: Path, one_device: None) -> None:
    assert_kept(floor.rows_and_trees(tmp_path))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpora")


@pytest.mark.parametrize("name", floor.VARIANTS)
def test_rows_of_other_settings(corpora: Path, one_device: None, name: str) -> None:
    assert_kept(floor.pretraining_rows(corpora, name))


def test_rows_of_tasks(one_device: None) -> None:
    assert_kept(floor.task_rows())


def test_token_ids(tmp_path: Path) -> None:
    found = floor.token_ids(tmp_path)
    assert_kept(found)
    assert found.keys() == {name for name in WANTED if name.startswith("ids ")}


@pytest.mark.parametrize(("objective", "packing"), floor.CURVES)
def test_losses(tmp_path: Path, one_device: None, objective: str, packing: str) -> None:
    """The tolerance is what compilers of different machines may differ by."""
    wanted = WANTED[f"curve {objective} {packing}"]
    np.testing.assert_allclose(floor.curve(tmp_path, objective, packing), wanted, rtol=1e-5)


def test_losses_of_a_fine_tuning(tmp_path: Path, one_device: None) -> None:
    np.testing.assert_allclose(floor.finetuning_curve(tmp_path), WANTED["curve finetune"], rtol=1e-5)
