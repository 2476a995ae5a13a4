"""Recipes and overrides: every slip is found before anything runs."""

import dataclasses
import json
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.recipes import recipes

RECIPE = """
from ml_collections import ConfigDict


def get_config(size="small"):
    config = ConfigDict({"seed": 0, "rate": 0.1, "name": "x", "on": True, "unset": None, "sizes": (1, 2)})
    config.paths = ("a",)
    config.model = ConfigDict({"size": size, "options": {}})
    config.phases = ({"steps": 1}, {"steps": 2})
    config.twice_seed = config.get_ref("seed") * 2
    return config
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE)
    return str(path)


def fails(*arguments):
    with pytest.raises(UserError) as caught:
        recipes.load(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("tree", ['{"a.b": 1}', '{"seed": 1, "model": {"": {"size.": 1}}}'])
def test_a_key_with_a_dot_is_refused(tree, tmp_path, recipe):
    (path := tmp_path / "recipe.json").write_text(tree)
    assert "recipe.json has the key '" in fails(str(path))
    assert "config.model.options has the key 'a.b'" in fails(recipe, ["--config.model.options={'a.b': 1}"])
    assert "config.unset has the key 5" in fails(recipe, ["--config.unset={5: 1, 'b': 2}"])
    assert "config.new" not in fails(recipe, ["--config.unset={'a': {'b.c': 2}}"])


def test_a_file_with_an_argument(recipe):
    assert recipes.load(recipe).model.size == "small"
    assert recipes.load(f"{recipe}:large").model.size == "large"


def test_a_json_file_is_data(tmp_path):
    (tmp_path / "config.json").write_text('{"seed": 3, "model": {"size": "tiny"}}')
    config = recipes.load(str(tmp_path / "config.json"), ["--config.seed=4"])
    assert config.to_dict() == {"seed": 4, "model": {"size": "tiny"}}
    (tmp_path / "config.json").write_text("{")
    assert "is not JSON" in fails(str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("seed=5", "seed", 5),
        ("seed=1_000", "seed", 1000),
        ("seed=None", "seed", None),
        ("rate=1", "rate", 1.0),
        ("rate=1e-4", "rate", 1e-4),
        ("name=7", "name", "7"),
        ("name=a=b", "name", "a=b"),
        ("name=", "name", ""),
        ("on=false", "on", False),
        ("unset=3", "unset", 3),
        ("unset=text", "unset", "text"),
        ("sizes=(3,)", "sizes", (3,)),
        ("sizes=3,4", "sizes", (3, 4)),
        ("sizes=3", "sizes", (3,)),
        ("paths=b,c*", "paths", ("b", "c*")),
        ("paths=('b,c',)", "paths", ("b,c",)),
        ("paths=2024", "paths", ("2024",)),
        ("seed=five", "seed", "five"),  # for the component to refuse
        ("rate=nan", "rate", "nan"),
        ("model.size=base", "model.size", "base"),
        ("model.num_layers=4", "model.num_layers", 4),  # for the component to judge
        ("model.options.rate=0.5", "model.options.rate", 0.5),
        ("model={'size': 'x'}", "model.size", "x"),
        ("phases[1].steps=9", "phases", ({"steps": 1}, {"steps": 9})),
        ("seed=4", "twice_seed", 8),  # references follow
    ],
)
def test_overrides(recipe, override, path, value):
    found = recipes.load(recipe, [f"--config.{override}"])
    for key in path.split("."):
        found = found[key]
    assert found == value
    assert type(found) is type(value)


def test_a_group_that_a_recipe_leaves_out_may_be_given(tmp_path):
    (tmp_path / "r.json").write_text('{"objective": {"name": "mlm"}}')
    given = ["--config.export=false", "--config.training.evaluations.probe.task=regression", "--config.private=True"]
    config = recipes.load(str(tmp_path / "r.json"), given)
    assert (config.export, config.training.evaluations.probe.task, config.private) == (False, "regression", True)
    (tmp_path / "r.json").write_text('{"task": {"name": "regression"}}')
    with pytest.raises(UserError, match="unknown key config.private"):
        recipes.load(str(tmp_path / "r.json"), ["--config.private=True"])


def test_the_last_override_wins(recipe):
    assert recipes.load(recipe, ["--config.seed=5", "--config.seed=6"]).seed == 6


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sed=5", "unknown key config.sed; did you mean 'seed'?"),
        ("model=base", "config.model is a group"),
        ("seed.value=1", "config.seed is a value"),
        ("phases[2].steps=1", "config.phases has 2 entries"),
        ("seed", "--config.seed=VALUE"),
    ],
)
def test_bad_overrides(recipe, override, said):
    assert said in fails(recipe, [f"--config.{override}"])


def test_a_loaded_config_is_locked(recipe):
    with pytest.raises(AttributeError):
        recipes.load(recipe).sed = 1


def test_an_unknown_recipe_lists_what_is_there():
    assert "did you mean 'quickstart'?" in fails("quickstrt")
    assert "did you mean 'pretrain/quickstart'?" in fails("pretrain/quickstrt")
    assert "did you mean 'pretrain/quickstart'?" in fails("configs/pretrain/quickstrt.py")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def get_config():\n    return 1 / 0\n", "recipe.py:2: ZeroDivisionError"),
        ("raise SystemExit(3)\n", "recipe.py:1: SystemExit: 3"),
        ("import nowhere_to_be_found\n", "recipe.py:1: ModuleNotFoundError"),
        ("def get_config(:\n", "recipe.py:1: SyntaxError"),
        ("x = 1\n", "no function get_config()"),
        ("def get_config():\n    pass\n", "gives NoneType; a ConfigDict is needed"),
    ],
)
def test_a_recipe_that_fails_is_one_line_with_the_place(tmp_path, source, said):
    (tmp_path / "recipe.py").write_text(source)
    assert said in fails(str(tmp_path / "recipe.py"))


def test_an_argument_that_a_recipe_does_not_take(tmp_path):
    (tmp_path / "recipe.py").write_text("def get_config():\n    return {}\n")
    assert "takes no argument" in fails(f"{tmp_path / 'recipe.py'}:large")


def test_the_page_of_recipes_names_every_key() -> None:
    from bert_jax.checkpoints.saving import CheckpointConfig
    from bert_jax.corpora.prepare import CorpusConfig, PartConfig, VocabularyConfig
    from bert_jax.models.encoders import bert
    from bert_jax.objectives.mlm_nsp import Config
    from bert_jax.recipes.pretraining_settings import PretrainingSettings
    from bert_jax.rows.loader import LoaderConfig
    from bert_jax.rows.masking import MaskingConfig
    from bert_jax.training.experiment import TrainingConfig
    from bert_jax.training.mesh import MeshConfig
    from bert_jax.training.optimizers import adamw
    from bert_jax.training.schedules import warmup_stable_decay

    page = (Path(__file__).parents[2] / "configs" / "README.md").read_text()
    groups = (
        CorpusConfig,
        PartConfig,
        VocabularyConfig,
        bert.Config,
        Config,
        PretrainingSettings,
        LoaderConfig,
        MaskingConfig,
    )
    groups += (CheckpointConfig, TrainingConfig, MeshConfig, adamw.Optimizer, warmup_stable_decay.Schedule)
    keys = {field.name for group in groups for field in dataclasses.fields(group)} - {"attention"}  # set by objectives
    assert {key for key in keys if f"`{key}`" not in page and f'"{key}"' not in page} == set()


def test_a_typed_length_takes_the_place_of_the_recipe_s_own():
    config = recipes.load(
        "quickstart", ["--config.phases.phase1.num_tokens=9", "--config.schedule.warmup_fraction=0.1"]
    )
    assert config.phases.phase1.to_dict() == {"num_tokens": 9, "batch_size": 64, "max_length": 32}
    assert config.phases.phase2.num_steps == 1500
    assert "warmup_steps" not in config.schedule
    back = recipes.load("continue", ["--config.phases.phase1.num_steps=5", "--config.schedule.warmup_fraction=None"])
    assert back.phases.phase1.to_dict() == {"num_steps": 5, "batch_size": 32, "max_length": 128}


def test_a_recipe_of_two_lines_derives_from_another(recipe, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from bert_jax.recipes import recipes\n\n\ndef get_config():\n"
        f"    config = recipes.derive({recipe + ':large'!r})\n    config.model.depth = 3\n    return config\n"
    )
    config = recipes.load(str(own), ["--config.rate=0.5"])
    assert config.model.to_dict() == {"size": "large", "options": {}, "depth": 3}
    assert config.rate == 0.5
    derived = recipes.derive("bert_base")
    assert derived.mesh.to_dict() == {}
    del derived.mesh
    assert derived.to_dict() == recipes.load("bert_base").to_dict()


def test_keys_that_a_recipe_set_for_a_part_go_with_the_part(tmp_path):
    objective = {"name": "mlm_nsp", "next_sentence_weight": 0.5, "packing": "packed"}
    masking = {"strategy": "spans", "unit": "word", "options": {"p": 0.3, "longest": 4}}
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"objective": {**objective, "masking": masking}}))
    found = recipes.load(str(path), ["--config.objective.name=mlm"]).objective
    assert found.to_dict() == {"name": "mlm", "packing": "packed", "masking": masking}
    strategy = ["--config.objective.masking.strategy=ngrams"]
    assert recipes.load(str(path), strategy).objective.masking.options.to_dict() == {"longest": 4}
    typed = [*strategy, "--config.objective.masking.options.p=0.2"]
    assert recipes.load(str(path), typed).objective.masking.options.p == 0.2  # the strategy will refuse it
    same = recipes.load(str(path), ["--config.objective.name=mlm_nsp", "--config.objective.rate=1"]).objective
    assert (same.next_sentence_weight, same.rate) == (0.5, 1)
    (tmp_path / "mine.py").write_text(
        "import dataclasses\n\n@dataclasses.dataclass(frozen=True)\nclass Config:\n    temperature: float = 1.0\n\n"
        "class Task:\n    pass\n"
    )
    task = recipes.with_values("embeddings", {"task.name": str(tmp_path / "mine.py")}).task
    assert (task.temperature, task.keys()) == (0.05, ["name", "temperature"])


def test_parts_of_a_mixture_are_set_apart():
    config = recipes.load("continue:replay", ["--config.corpus.parts.own.options.paths=mine.txt"])
    assert config.corpus.parts.own.options.paths == ("mine.txt",)
    assert config.corpus.parts.general.options.paths == ()


def test_short_keys_stand_for_those_of_the_only_phase(tmp_path):
    short = ["--config.learning_rate=1e-3", "--config.batch_size=8", "--config.max_length=64", "--config.steps=50"]
    found = recipes.load("glue:rte", short)
    assert found.phases.to_dict() == {"train": {"batch_size": 8, "max_length": 64, "num_steps": 50}}
    assert found.schedule.peak_learning_rate == 1e-3
    again = recipes.load("glue:rte", [*short, "--config.epochs=2"])
    assert again.phases.train.to_dict() == {"batch_size": 8, "max_length": 64, "num_epochs": 2}, "the last one counts"
    assert recipes.with_values({"task": {}, "data": {}}, {"epochs": 2}).phases.train.num_epochs == 2
    assert recipes.load("continue", ["--config.steps=7"]).phases.phase1.num_steps == 7
    assert "give --config.phases.phase1.num_steps=VALUE or " in fails("quickstart", ["--config.steps=7"])


def test_a_fine_tuning_keeps_the_defaults_that_it_does_not_replace():
    from bert_jax.recipes.finetuning_settings import FinetuningSettings
    from bert_jax.training.schedules import linear

    def built(**groups):
        data = {"format": "table", "splits": {"train": "train.csv"}}
        return FinetuningSettings.of({"task": {"name": "classification"}, "data": data, **groups})

    plain, changed = built(), built(phases={"train": {"batch_size": 8}}, schedule={"name": "linear"})
    phase = plain.phase
    assert (phase.num_epochs, phase.batch_size, phase.max_length) == (3.0, 32, 128)
    rates = plain.experiment.schedule
    assert (rates.peak_learning_rate, rates.warmup_fraction) == (2e-5, 0.1)
    assert plain.experiment.optimizer.bias_correction == "standard"
    assert (changed.phase.num_epochs, changed.phase.batch_size) == (3.0, 8)
    assert changed.experiment.schedule == linear.Schedule(2e-5, warmup_fraction=0.1)
    in_steps = built(phases={"train": {"num_steps": 9}}, schedule={"warmup_steps": 3}, training={"eval_every_steps": 4})
    assert in_steps.phase.num_epochs is None
    assert in_steps.experiment.schedule.warmup(100) == 3
    assert in_steps.training.evaluations_per_epoch is None
    for groups, message in (
        ({"phases": {"phase1": {"num_steps": 9}}}, "fine-tuning has one phase, config.phases.train"),
        (
            {"phases": {"train": {"masking": {"rate": 0.2}}}},
            "train has masking of pretraining",
        ),
        ({"training": {"eval_rows": 100}}, "config.training.eval_rows is 100; fine-tuning evaluates all rows"),
    ):
        with pytest.raises(UserError, match=message):
            built(**groups)
