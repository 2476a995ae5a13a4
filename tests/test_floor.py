"""The floor does not move: the rows, trees and losses that ``tests/fixtures/floor.json`` has (``tests.floor``)."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests import floor

WANTED = json.loads(floor.FILE.read_text())


def test_rows_and_parameter_trees(tmp_path: Path, one_device: None) -> None:
    found = floor.rows_and_trees(tmp_path)
    assert found == {name: value for name, value in WANTED.items() if not name.startswith("curve")}


@pytest.mark.parametrize(("objective", "packing"), floor.CURVES)
def test_losses(tmp_path: Path, one_device: None, objective: str, packing: str) -> None:
    """The tolerance is what compilers of different machines may differ by."""
    wanted = WANTED[f"curve {objective} {packing}"]
    np.testing.assert_allclose(floor.curve(tmp_path, objective, packing), wanted, rtol=1e-5)
