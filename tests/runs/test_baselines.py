"""Labels of which nearly all are the same come with the flag that fits."""

import pytest

from bert_jax.rows.phases import Phase
from bert_jax.runs.baselines import _unbalanced


@pytest.mark.parametrize(
    ("rate", "flag"),
    [
        (0.8, "--config.phases.one.max_length=128"),
        (0.99, "--config.objective.name=mlm --config.objective.arrangement=sentences"),
    ],
)
def test_unbalanced_labels_come_with_what_mends_them(rate: float, flag: str) -> None:
    line = _unbalanced(Phase(1, 1, 64, "one"), "nsp_majority_rate", rate, "bert-jax inspect --corpus=c")
    assert f"NSP accuracy begins at {rate:.2f}" in line
    assert f" {flag} (bert-jax inspect" in line
    other = _unbalanced(Phase(1, 1, 64, "one"), "letter_majority_rate", rate, "")
    assert other.endswith(f"so LETTER accuracy begins at {rate:.2f} there and teaches little")
