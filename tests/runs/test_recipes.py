"""Recipes and overrides: every slip is found before anything runs."""

import dataclasses
import json
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.runs import key_names, recipes

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


def settings(name):
    from bert_jax.runs import settings

    return settings.FinetuningSettings if name.startswith("finetune/") else settings.PretrainingSettings


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_loads_by_both_names_and_has_known_groups(name):
    config, short = recipes.load(name), name.rpartition("/")[2]
    if [one.rpartition("/")[2] for one in recipes.names()].count(short) == 1:
        assert recipes.load(short) == config
    else:
        assert f"recipe {short!r} is ambiguous; choose one of: " in fails(short)
    json.dumps(config.to_dict())  # it travels with every checkpoint
    fields = {field.name for field in dataclasses.fields(settings(name))}
    assert fields == set(key_names.groups(config))
    others = {"tasks", "mixing"} if "task" in config else {"task", "data"}
    assert set(config) <= fields - others


def test_the_recipes_that_readme_names_are_there():
    assert {"pretrain/quickstart", "pretrain/bert_base", "pretrain/bert_large"} <= set(recipes.names())
    wanted = ("glue", "conll2003", "swag", "chnsenticorp", "zh_ner")
    assert {f"finetune/{name}" for name in wanted} <= set(recipes.names())


@pytest.mark.parametrize("tree", ['{"a.b": 1}', '{"seed": 1, "model": {"": {"size.": 1}}}'])
def test_a_key_with_a_dot_is_refused(tree, tmp_path, recipe):
    (path := tmp_path / "recipe.json").write_text(tree)
    assert "recipe.json has the key '" in fails(str(path))
    assert "config.model.options has the key 'a.b'" in fails(recipe, ["--config.model.options={'a.b': 1}"])
    assert "config.unset has the key 5" in fails(recipe, ["--config.unset={5: 1, 'b': 2}"])
    assert "config.new" not in fails(recipe, ["--config.unset={'a': {'b.c': 2}}"])


ARGUMENTS = {
    "glue": ("sst2", "mrpc", "cola", "rte", "stsb", "wnli", "qnli", "mnli", "qqp"),
    "swag": ("swag", "hellaswag", "dream", "csqa"),
    "multiple_choice": ("table", "swag", "c3"),
    "zh_ner": ("peopledaily", "weibo", "cluener"),
    "conll2003": ("finetuned", "features"),
    "finetune/distil": ("squad:v1", "glue:sst2"),
    "squad": ("v1", "v2", "squad_v1_tokenized", "xquad_en", "policyqa", "covidqa", "cmrc2018", "drcd"),
}


@pytest.mark.parametrize("name", [f"{name}:{argument}" for name, found in ARGUMENTS.items() for argument in found])
def test_finetune_recipes_are_sound(name):
    """Every key is one of its component; the reader and the task are there."""
    from bert_jax import configuration
    from bert_jax.examples.columns import check_roles
    from bert_jax.examples.load import make_reader
    from bert_jax.parts import catalogue
    from bert_jax.runs.settings import FinetuningSettings

    config = configuration.build(FinetuningSettings, recipes.load(name).to_dict(), "config")
    task = catalogue.find("tasks", config.task["name"], having="Task")
    configuration.build(task.Config, {k: v for k, v in config.task.items() if k != "name"}, "config.task")
    make_reader(config.data)
    check_roles(config.data.columns, task.Task.roles)


def test_mt_dnn_is_sound():
    """All tasks of GLUE but WNLI, with heads and dropout of the published code; arguments and flags choose others."""
    from bert_jax.examples.columns import check_roles
    from bert_jax.examples.load import make_reader
    from bert_jax.runs.settings import FinetuningSettings

    settings = FinetuningSettings.of(recipes.load("mt_dnn").to_dict())
    assert settings.each.keys() == {*ARGUMENTS["glue"]} - {"wnli"}
    heads = {}
    for name, one in settings.each.items():
        task, config = one.find()
        heads[name] = (one.task["name"], config.dropout_rate)
        make_reader(one.data)
        check_roles(one.data.columns, task.roles)
    san = dict.fromkeys(("rte", "qqp", "qnli", "mrpc"), ("san_classification", 0.1))
    assert heads == san | {
        "mnli": ("san_classification", 0.3),
        "sst2": ("classification", 0.1),
        "cola": ("classification", 0.05),
        "stsb": ("regression", 0.1),
    }
    optimizer = settings.find_part("optimizer")
    assert (optimizer.bias_correction, optimizer.clip_norm, optimizer.eps) == ("none", 1.0, 1e-6)
    ranking = [f"--config.tasks.qnli.task.{key}" for key in ("name=ranking", "positive=entailment")]
    task, config = FinetuningSettings.of(recipes.load("mt_dnn:qnli+rte", ranking).to_dict()).each["qnli"].find()
    assert (task.__module__, config.positive) == ("bert_jax.tasks.ranking", "entailment")
    assert "no task 'wnli'; there are mnli, qqp" in fails("mt_dnn:rte+wnli")


def test_tasks_are_invented_by_flags():
    """A classification of a table, of which a tenth is dev, unless the flags say otherwise."""
    from bert_jax.runs.settings import FinetuningSettings

    flags = ["a.data.splits.train=a.csv", "b.data.splits.train=b.csv", "b.data.splits.dev=c.csv", "b.data.format=jsonl"]
    flags += ["b.task.name=regression", "b.data.columns.label=score", "b.weight=2"]
    each = FinetuningSettings.of(recipes.load("several", [f"--config.tasks.{flag}" for flag in flags]).to_dict()).each
    assert [(one.task["name"], one.data.format, one.data.dev_fraction) for one in each.values()] == [
        ("classification", "table", 0.1),
        ("regression", "jsonl", 0.0),
    ]
    assert (each["b"].data.columns, each["b"].weight) == ({"label": "score"}, 2.0)
    for words, said in (
        ([], "no task is given; name tasks and their files: --config.tasks.NAME.data.splits.train=FILE"),
        (["a.data.column.label=x"], r"unknown key config.tasks.a.data.column; did you mean 'columns'"),
        (["a.data=a.csv"], "config.tasks.a.data"),
        (["a.task.name=clasification", "a.data.splits.train=a.csv"], "did you mean 'classification'"),
    ):
        tree = recipes.load("several", [f"--config.tasks.{flag}" for flag in words]).to_dict()
        with pytest.raises(UserError, match=said):  # noqa: PT012
            for one in FinetuningSettings.of(tree).each.values():
                one.find()


PRETRAIN = [name for name in recipes.names() if name.startswith("pretrain/")]


@pytest.mark.parametrize(
    "name", [*PRETRAIN, "clm_mlm:mlm", "spanbert:base", "wwm:base", "albert:xxlarge", "ablation:ltr_no_nsp"]
)
def test_pretrain_recipes_are_sound(name):
    """All that can be found wrong before a text is read: parts, phases, batches, masking, columns."""
    import jax

    from bert_jax.runs.preparation import check_pretraining
    from bert_jax.runs.settings import PretrainingSettings

    config = recipes.load(name).to_dict()
    model = config["model"] or {"encoder": "modernbert" if "modernbert" in name else "bert"}
    settings = PretrainingSettings.of({**config, "model": model, "teacher": None})
    assert check_pretraining(settings, devices=jax.devices()).task.tokenizer is None


def test_the_stages_of_ernie_come_in_order_and_mask_their_units():
    from bert_jax import configuration
    from bert_jax.runs.settings import PretrainingSettings

    settings = configuration.build(PretrainingSettings, recipes.load("ernie1").to_dict(), "config")
    phases = settings.experiment().phases.phases
    assert [phase.changes.get("masking", {}).get("unit", "piece") for phase in phases] == [
        "piece",
        "phrases",
        "entities",
    ]
    assert sum(phase.num_steps for phase in phases) == 1_000_000
    assert (settings.model["layer_norm_eps"], settings.find_part("optimizer").eps) == (1e-5, 1e-8)  # as in PaddlePaddle


def test_a_finetune_recipe_lists_its_arguments():
    assert "no task 'sst-2'; there are sst2, mrpc" in fails("glue:sst-2")


# Recipe -> folder of public data, examples of each split.
PUBLIC = {
    "glue:mrpc": ("glue", (3668, 408)),
    "glue:cola": ("glue", (8551, 1043)),
    "glue:rte": ("glue", (2490, 277)),
    "glue:stsb": ("glue", (5749, 1500)),
    "glue:wnli": ("glue", (635, 71)),
    "conll2003": ("conll2003_ner", (14041, 3250, 3453)),
    "swag:hellaswag": ("multiple_choice_en", (8033, 2009)),
    "swag:dream": ("multiple_choice_en", (6116, 2040, 2041)),
    "swag:csqa": ("multiple_choice_en", (976, 245)),
    "zh_ner:weibo": ("zh_ner", (1350, 270, 270)),
    "zh_ner:cluener": ("zh_ner", (10748, 1343, 1345)),
    "chnsenticorp": ("zh_chnsenticorp", (9600, 1200, 1200)),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_finetune_recipes_read_public_data(name, shared_data):
    from bert_jax import configuration
    from bert_jax.examples.load import load
    from bert_jax.parts import catalogue
    from bert_jax.runs.settings import FinetuningSettings

    folder, sizes = PUBLIC[name]
    config = configuration.build(FinetuningSettings, recipes.load(name).to_dict(), "config")
    task = catalogue.find("tasks", config.task["name"], having="Task")
    found = load(config.data, shared_data(folder), task.Task.roles, [].append)
    assert tuple(len(found[name]) for name in ("train", "dev", "test") if name in found) == sizes
    own = configuration.build(task.Config, {k: v for k, v in config.task.items() if k != "name"}, "config.task")
    task.Task.labels(own, found["train"])  # raises for labels that the recipe's metrics do not fit


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
    from bert_jax.rows.loader import LoaderConfig
    from bert_jax.rows.masking import MaskingConfig
    from bert_jax.runs.settings import PretrainingSettings
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


LARGE = ("bert_base", "bert_large", "spanbert:base", "ernie1")


@pytest.mark.parametrize("name", ["quickstart", *(pytest.param(name, marks=pytest.mark.heavy) for name in LARGE)])
def test_the_step_of_every_phase_compiles_and_fits(name, monkeypatch):
    """As ``bert-jax plan`` compiles it, for eight devices of 95 GiB, without text. It may stand guard over a recipe of
    yours."""
    from bert_jax.planning import topologies
    from bert_jax.runs import recipe_plan

    pages = {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 8 * 95 * 2**18}  # whatever this machine has
    monkeypatch.setattr(topologies.os, "sysconf", pages.__getitem__)
    planned = recipe_plan.plan(recipes.load(name).to_dict(), recipe_plan.PlanRequest("cpu:8"), print)
    assert planned.fits, "\n".join(planned.as_lines())


def test_a_typed_length_takes_the_place_of_the_recipe_s_own():
    config = recipes.load(
        "quickstart", ["--config.phases.phase1.num_tokens=9", "--config.schedule.warmup_fraction=0.1"]
    )
    assert config.phases.phase1.to_dict() == {"num_tokens": 9, "batch_size": 64, "max_length": 32}
    assert config.phases.phase2.num_steps == 1800
    assert "warmup_steps" not in config.schedule
    back = recipes.load("continue", ["--config.phases.phase1.num_steps=5", "--config.schedule.warmup_fraction=None"])
    assert back.phases.phase1.to_dict() == {"num_steps": 5, "batch_size": 32, "max_length": 128}


def test_a_recipe_of_two_lines_derives_from_another(recipe, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from bert_jax.runs import recipes\n\n\ndef get_config():\n"
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
    from bert_jax import configuration
    from bert_jax.runs.settings import FinetuningSettings
    from bert_jax.training.schedules import linear

    def built(**groups):
        data = {"format": "table", "splits": {"train": "train.csv"}}
        return configuration.build(FinetuningSettings, {"task": {}, "data": data, **groups}, "config")

    plain, changed = built(), built(phases={"train": {"batch_size": 8}}, schedule={"name": "linear"})
    phase = plain.phase
    assert (phase.num_epochs, phase.batch_size, phase.max_length) == (3.0, 32, 128)
    rates = plain.find_part("schedule")
    assert (rates.peak_learning_rate, rates.warmup_fraction) == (2e-5, 0.1)
    assert plain.find_part("optimizer").bias_correction == "standard"
    assert (changed.phase.num_epochs, changed.phase.batch_size) == (3.0, 8)
    assert changed.find_part("schedule") == linear.Schedule(2e-5, warmup_fraction=0.1)
    in_steps = built(phases={"train": {"num_steps": 9}}, schedule={"warmup_steps": 3}, training={"eval_every_steps": 4})
    assert in_steps.phase.num_epochs is None
    assert in_steps.find_part("schedule").warmup(100) == 3
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
