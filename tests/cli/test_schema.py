"""The JSON Schema of recipes, judged by an independent validator: every recipe fits, and slips do not."""

import copy
import json

import jsonschema
import pytest

from bert_jax.cli import main
from bert_jax.cli.schema import schema
from bert_jax.recipes import recipes, trees
from tests.docs import key_tables

VARIANTS = ("modernbert:small", "continue:replay", "squad:own", "summarization:titles")
SLIPS = ("quickstart", "modernbert", "mass", "gpt_bert", "ernie1", "continue:replay", "classification", "mt_dnn")
USERS = ("data.columns", "teacher.layers", "teacher.start")  # names of users, and keys of several types


def tree_of(recipe):
    return json.loads(json.dumps(trees.plain(recipes.load(recipe))))


@pytest.fixture(scope="module")
def validator():
    found = json.loads(json.dumps(schema()))
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


def groups(tree, path=()):
    """Yield the path of each group of keys."""
    yield path
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from groups(value, (*path, key))


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def with_value(tree, path, key, value):
    changed = copy.deepcopy(tree)
    at(changed, path)[key] = value
    return changed


@pytest.mark.parametrize("recipe", [*recipes.names(), *VARIANTS])
def test_every_recipe_fits(recipe, validator):
    assert [error.message for error in validator.iter_errors(tree_of(recipe))] == []


@pytest.mark.parametrize("recipe", SLIPS)
def test_a_wrong_key_or_type_is_found_in_every_group(recipe, validator):
    tree = tree_of(recipe)
    for path in groups(tree):
        if any(".".join(path).endswith(users) for users in USERS):
            continue
        assert not validator.is_valid(with_value(tree, path, "tpyo", 1)), path
        for key, value in at(tree, path).items():
            if isinstance(value, dict) or f"{path[-1] if path else ''}.{key}" in USERS:
                continue
            wrong = 0.5 if isinstance(value, list) else {"a": []}
            assert not validator.is_valid(with_value(tree, path, key, wrong)), (*path, key)


@pytest.mark.parametrize(
    ("recipe", "path", "key", "value", "fits"),
    [
        ("modernbert", ("model",), "size", "large", True),
        ("modernbert", ("model",), "size", "huge", False),
        ("modernbert", ("model",), "global_theta", 1e5, True),
        ("bert_base", ("model",), "global_theta", 1e5, False),  # a key of another encoder
        ("bert_base", ("phases", "phase1"), "model", {"global_theta": 1e5}, True),  # the encoder is not named there
        ("quickstart", ("optimizer",), "name", "adam", False),
        ("quickstart", ("optimizer",), "name", "./mine.py", True),
        ("quickstart", (), "corpus", {"source": "jsonl", "options": {"paths": "a.jsonl"}}, True),
        ("quickstart", ("corpus",), "source", "jsonl", False),  # it needs paths
        ("quickstart", ("corpus", "options"), "paths", ["a.txt"], False),  # of text_files, and the source is docstrings
        ("quickstart", ("training",), "loggers", ["trackio", "wandb"], True),
        ("quickstart", ("training",), "loggers", ["trakio"], False),
        ("quickstart", (), "teacher", None, True),
        ("quickstart", (), "private", "yes", False),
        ("quickstart", (), "packing", "packed", False),  # a key of fine-tuning
        ("classification", ("data",), "format", "tables", False),
    ],
)
def test_a_part_brings_its_keys(recipe, path, key, value, fits, validator):
    assert validator.is_valid(with_value(tree_of(recipe), path, key, value)) == fits


def test_a_part_in_a_file_of_the_users_has_keys_that_nobody_knows(validator):
    tree = with_value(tree_of("quickstart"), (), "objective", {"name": "./mine.py", "letters": 3})
    assert validator.is_valid(tree)
    assert not validator.is_valid(with_value(tree, ("objective",), "name", "mlm"))


def test_a_recipe_without_its_objective_does_not_fit(validator):
    for key in ("objective", "model", "phases"):
        tree = tree_of("quickstart")
        del tree[key]
        assert not validator.is_valid(tree), key


@pytest.mark.parametrize("recipe", ["modernbert:small", "mass", "several", "squad"])
def test_the_schema_of_a_recipe_has_its_values_as_defaults(recipe, capsys):
    assert main.run(["schema", recipe]) == 0
    found, tree = json.loads(capsys.readouterr().out), tree_of(recipe)
    jsonschema.Draft202012Validator(found).validate(tree)

    def defaults(node, values):
        """Collect the default of each key of ``values``, also from the keys of the parts that it names."""
        there = [node, *(rule["then"] for rule in node.get("allOf", ()) if _fits(rule["if"], values))]
        for key, value in values.items():
            [one] = [each["properties"][key] for each in there if key in each.get("properties", {})][-1:]
            if isinstance(value, dict):
                defaults(one, value)
            else:
                assert one["default"] == value, key

    defaults(found, tree)


def _fits(condition, values):
    return jsonschema.Draft202012Validator(condition).is_valid(values)


def test_every_key_of_the_tables_is_in_the_schema():
    text = json.dumps(schema(), ensure_ascii=False)
    for row in key_tables.all_keys():
        name = row.key.rpartition(".")[2]
        if name and name != "NAME":
            assert f'"{name}": {{' in text, row.key


def test_an_unknown_recipe_is_one_line(capsys):
    assert main.run(["schema", "quickstat"]) == 2
    assert "did you mean 'quickstart'" in capsys.readouterr().err
