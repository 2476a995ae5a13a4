"""Space on the disk for saved steps."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.checkpoints.saving import CheckpointConfig, Checkpoints
from bert_jax.errors import UserError


def test_too_little_space_is_said_at_the_start(tmp_path: Path) -> None:
    """Not at the first save, which may come hours later."""
    large = np.broadcast_to(np.float32(0), (1 << 55,))  # takes no memory
    with pytest.raises(UserError, match="cannot save into .*No space left on device: a step .*free some space"):
        Checkpoints(str(tmp_path), CheckpointConfig(), first=large)
