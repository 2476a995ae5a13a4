"""A typed key changes what a recipe names; a slip adds no phase, task, member, part or column."""

import re

import pytest

from bert_jax.errors import UserError
from bert_jax.recipes import recipes
from bert_jax.runs.evaluations import base as evaluations

MEMBERS = "{'a': {'name': 'mlm'}, 'b': {'name': 'ltr'}}"
TUPLES = "from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict({'phases': ({'n': 1},)})\n"


def load(recipe, *keys):
    return recipes.load(recipe, [f"--config.{key}" for key in keys])


def refused(recipe, *keys):
    with pytest.raises(UserError) as caught:
        load(recipe, *keys)
    return str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "keys", "group", "name", "nearest"),
    [
        ("quickstart", ["phases.pahse1.num_steps=15"], "phases", "pahse1", "phase1"),
        ("quickstart", ["phases.phase3={'num_steps': 1}"], "phases", "phase3", "phase2"),
        ("continue:replay", ["corpus.parts.genral.options.paths=x"], "corpus.parts", "genral", "general"),
        ("mt_dnn", ["tasks.mnil.weight=2"], "tasks", "mnil", "mnli"),
        ("classification", ["phases.trian.num_epochs=1"], "phases", "trian", "train"),
        ("chinese_wwm", ["corpus.columns.wrods.annotator=segmenter"], "corpus.columns", "wrods", "words"),
    ],
)
def test_a_slip_is_refused_and_the_advice_is_taken(recipe, keys, group, name, nearest):
    said = refused(recipe, *keys)
    assert said.startswith(f"unknown key config.{group}.{name}; did you mean '{nearest}'? valid: ")
    assert said.endswith(f"; new names of {group} come from a recipe file, not from flags")
    advised = re.search(r"did you mean '(.*?)'", said)[1]
    load(recipe, *(key.replace(name, advised, 1) for key in keys))
    with pytest.raises(UserError, match=f"unknown key config.{group}.{name}; "):  # from Python too
        recipes.with_values(recipe, {f"{group}.{name}": {}})


def test_names_may_be_typed_where_a_recipe_has_none_and_a_whole_group_may_be():
    tree = load("several", "tasks.a.data.splits.train=x", "tasks.b.data.splits.train=y")
    assert set(tree.tasks) == {"a", "b"}
    assert set(load("continue", "corpus.parts.mine.options.paths=x").corpus.parts) == {"mine"}
    phases = "phases={'first': {'num_steps': 1}}"
    assert load("quickstart", phases, "phases.first.num_steps=2").phases.to_dict() == {"first": {"num_steps": 2}}
    assert "unknown key config.phases.phase1; valid: first" in refused(
        "quickstart", phases, "phases.phase1.num_steps=2"
    )


def test_members_of_objectives(tmp_path):
    (recipe := tmp_path / "r.py").write_text(
        "from ml_collections import ConfigDict\nfrom bert_jax.recipes import recipes\n\n\n"
        f"def get_config():\n    config = recipes.derive('quickstart')\n    members = {MEMBERS}\n"
        "    config.objective = ConfigDict({'members': members})\n"
        "    config.phases.phase2.objective = ConfigDict({'members': members})\n    return config\n"
    )
    for group in ("objective.members", "phases.phase2.objective.members"):
        said = refused(str(recipe), f"{group}.bb.share=2")
        assert said.startswith(f"unknown key config.{group}.bb; did you mean 'b'? valid: a, b; new names of ")
        load(str(recipe), f"{group}.b.share=2")


def test_a_place_in_a_tuple_is_a_number_in_the_digits_0_to_9(tmp_path):
    (recipe := tmp_path / "r.py").write_text(TUPLES)
    for place in ("²", "٠", "1", "x"):
        assert f"config.phases has 1 entries, numbered from 0; found [{place}]" in refused(
            str(recipe), f"phases[{place}].n=2"
        )
    assert load(str(recipe), "phases[0].n=2").phases[0]["n"] == 2


def test_an_evaluation_without_a_name_is_taken_for_a_slip():
    with pytest.raises(UserError, match=r"missing key .*\.prboe\.name; .*one of the others\? did you mean 'probe'\?"):
        evaluations.check({"prboe": {"every": 2}, "probe": {"name": "probe"}})
