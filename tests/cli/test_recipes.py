"""``bert-jax recipes``: what it prints of a recipe is what the recipe has, and can be typed."""

import shlex

import pytest

from bert_jax.cli.main import run
from bert_jax.models.model import encoder_file
from bert_jax.program import quoted
from bert_jax.runs import recipes


def test_every_recipe_has_a_line_and_every_encoder_its_sizes(capsys):
    assert run(["recipes"]) == 0
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines() if line}
    assert set(recipes.names()) <= set(lines)
    assert lines["pretrain/quickstart"].split(maxsplit=1)[1].startswith("Trains a small BERT in minutes")
    for encoder in ("bert", "electra", "modernbert"):
        [block] = [text for text in said.replace("\n    ", " ").splitlines() if text.startswith(f"  {encoder}: ")]
        assert set(encoder_file(encoder).SIZES) == set(block.partition(": ")[2].split(", "))


@pytest.mark.parametrize("name", ["quickstart", "modernbert:tiny", "continue:replay", "glue:sst2", "several"])
def test_keys_of_a_recipe_can_be_typed(name, capsys):
    assert run(["recipes", name]) == 0
    whole, _, rest = capsys.readouterr().out.partition(": ")
    blocks = [block.splitlines() for block in rest.split("\n\n")]
    tree = recipes.load(name)
    assert recipes.load(whole) == tree
    named = [line.split(":")[0].strip() for line in blocks[1][1:] if not line.startswith("    ")]
    assert named == list(tree.phases)
    if "size" in tree.model:
        assert f"the recipe has {tree.model['size']})" in blocks[2][0]
    typed = [f"--config.{word}" for line in blocks[3][1:] for word in shlex.split(line)]
    assert len(typed) >= 10
    assert recipes.load(name, typed) == tree
    assert all(line.startswith(("  ", "  '")) and "=" in line for line in blocks[4][1:])


def test_the_phase_that_a_recipe_leaves_to_its_default(tmp_path, capsys):
    (tmp_path / "r.json").write_text('{"task": {"name": "classification"}, "data": {"format": "table", "splits": {}}}')
    assert run(["recipes", str(tmp_path / "r.json")]) == 0
    said = capsys.readouterr().out
    assert "\n  train: num_epochs=3.0, batch_size=32, max_length=128\n" in said
    assert "\n  phases.train.num_epochs=3.0\n" in said.partition("leaves to their defaults")[2]


def test_both_recipes_of_a_name_are_shown(capsys):
    assert run(["recipes", "distil"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("finetune/distil: Fine-tunes a small model")
    assert "\n\npretrain/distil: DistilBERT (Sanh" in said
    assert run(["recipes", "quikstart"]) == 2
    assert "unknown recipe 'quikstart'; did you mean 'quickstart'?" in capsys.readouterr().err


def test_a_name_of_two_recipes_is_that_of_the_verb(tmp_path, capsys):
    """Each verb comes as far as what its own recipe needs."""
    for verb, needed in (("pretrain", "teacher"), ("finetune", "--data")):
        assert run([verb, "--config=distil", f"--workdir={tmp_path / verb}", f"--config.teacher.init={tmp_path}"]) == 2
        said = capsys.readouterr().err
        assert "ambiguous" not in said
        assert needed in said or str(tmp_path) in said
    assert recipes.in_folder("distil:glue:sst2", "finetune") == "finetune/distil:glue:sst2"
    for same in ("glue:sst2", "pretrain/distil", "recipe.py", 5):
        assert recipes.in_folder(same, "finetune") == same


@pytest.mark.parametrize("text", ["plain", "it's", "('a', 'b')", 'say "it\'s"', "it's $5", "", "back\\'s", "it's `a`!"])
def test_a_quoted_text_is_one_word_of_a_shell(text):
    assert shlex.split(quoted(text)) == [text]
    assert quoted("('a', 'b')") == "\"('a', 'b')\""
