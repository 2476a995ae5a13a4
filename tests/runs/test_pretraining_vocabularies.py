"""One command from text to a model, with a vocabulary of each other kind than WordPiece, and on from there."""

from pathlib import Path

import pytest

from bert_jax.cli.main import run
from bert_jax.text.tokenizer import load
from tests import toy

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    ("kind", "size", "name"),
    [("unigram", 60, "spiece.model"), ("bpe", 60, "spiece.model"), ("byte_bpe", 300, "tokenizer.json")],
)
def test_learned_then_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, size: int, name: str
) -> None:
    recipe = toy.recipe(toy.write_text(tmp_path / "text.txt"), vocab={"kind": kind, "size": size, "min_frequency": 1})
    config = toy.write_recipe(tmp_path / "recipe.json", recipe)
    command = ["pretrain", f"--config={config}"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert run([*command, f"--workdir={first}"]) == 0
    assert {name, "corpus", "hugging_face"} <= {path.name for path in first.iterdir()}
    assert run([*command, f"--workdir={first}"]) == 0  # a restart finds what is there
    assert run([*command, f"--workdir={second}", f"--init={first / 'hugging_face'}"]) == 0
    assert load(second).sha256 == load(first).sha256 == load(first / "hugging_face").sha256
    capsys.readouterr()
    assert run(["fill-mask", f"--workdir={second}", "the [MASK] sees the river."]) == 0
    assert "the [MASK] sees" in capsys.readouterr().out
