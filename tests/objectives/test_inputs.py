"""An objective whose ``inputs`` adds features: what it reads is in the batch, and whole batches stay whole."""

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import configuration
from bert_jax.cli.main import run
from bert_jax.objectives import base
from bert_jax.runs import recipes
from bert_jax.runs.model_choice import choose_model
from bert_jax.runs.pretraining import PretrainingSettings, checked
from tests import toy

RECIPE = "from ml_collections import ConfigDict\n\n\ndef get_config():\n    return ConfigDict({})\n"
PAGE = Path(base.__file__).with_name("README.md").read_text(encoding="utf-8")
[WEIGHTED] = re.findall(
    r"^```python\n(\"\"\"Masked language modelling in which a word.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)


def test_what_inputs_reads_is_in_the_batch_and_whole_batches_are_not_cut(
    tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rare.py").write_text(WEIGHTED)
    recipe = toy.recipe(toy.write_text(tmp_path / "text.txt"), objective={"name": "./rare.py"})
    (tmp_path / "own.py").write_text(RECIPE.replace("{}", repr(recipe)))
    settings = configuration.build(PretrainingSettings, recipes.load(str(tmp_path / "own.py")).to_dict(), "config")
    task: Any = checked(settings, settings.experiment())(None, None, choose_model(settings.model, 64, None), 0)
    assert all("masked_weights" in spec for spec in task.batch_specs.values())
    labels, weights = jnp.array([[5, 7], [5, 0]]), jnp.array([[1.0, 1.0], [1.0, 0.0]])
    rare = task.inputs({"masked_labels": labels, "masked_weights": weights})["rare_weights"]
    assert rare == pytest.approx(np.array([[2**-0.5, 1.0], [2**-0.5, 0.0]]))
    start = ["pretrain", f"--config={tmp_path / 'own.py'}", f"--workdir={tmp_path / 'run'}"]
    capsys.readouterr()
    assert run([*start, "--config.training.micro_batches=2"]) == 2
    assert "micro_batches is 2, and objective 'rare.py@" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1
    (tmp_path / "rare.py").write_text(WEIGHTED.replace('batch["masked_weights"]', 'batch["weights"]'))
    assert run(start) == 2
    assert "needs weights, which the arrangement 'sentences' does not have" in capsys.readouterr().err
