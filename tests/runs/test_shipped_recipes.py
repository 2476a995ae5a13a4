"""The recipes of this package: each names parts and keys that are there, and fits its data."""

import dataclasses
import json

import pytest

from bert_jax.errors import UserError
from bert_jax.recipes import key_names, recipes
from tests.runs.test_recipes import fails


def settings(name):
    from bert_jax.recipes.finetuning_settings import FinetuningSettings
    from bert_jax.recipes.pretraining_settings import PretrainingSettings

    return FinetuningSettings if name.startswith("finetune/") else PretrainingSettings


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


ARGUMENTS = {
    "glue": ("sst2", "mrpc", "cola", "rte", "stsb", "wnli", "qnli", "mnli", "qqp"),
    "swag": ("swag", "hellaswag", "dream", "csqa"),
    "multiple_choice": ("table", "swag", "c3"),
    "zh_ner": ("peopledaily", "weibo", "cluener"),
    "entity_typing": ("open_entity", "figer"),
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
    from bert_jax.recipes.finetuning_settings import FinetuningSettings

    config = configuration.build(FinetuningSettings, recipes.load(name).to_dict(), "config")
    task = catalogue.find("tasks", config.task["name"], having="Task")
    configuration.build(task.Config, {k: v for k, v in config.task.items() if k != "name"}, "config.task")
    make_reader(config.data)
    check_roles(config.data.columns, task.Task.roles)


def test_mt_dnn_is_sound():
    """All tasks of GLUE but WNLI, with heads and dropout of the published code; arguments and flags choose others."""
    from bert_jax.examples.columns import check_roles
    from bert_jax.examples.load import make_reader
    from bert_jax.recipes.finetuning_settings import FinetuningSettings

    settings = FinetuningSettings.of(recipes.load("mt_dnn").to_dict())
    assert settings.each.keys() == {*ARGUMENTS["glue"]} - {"wnli"}
    heads = {}
    for name, one in settings.each.items():
        task, config = one.built
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
    optimizer = settings.experiment.optimizer
    assert (optimizer.bias_correction, optimizer.clip_norm, optimizer.eps) == ("none", 1.0, 1e-6)
    ranking = [f"--config.tasks.qnli.task.{key}" for key in ("name=ranking", "positive=entailment")]
    task, config = FinetuningSettings.of(recipes.load("mt_dnn:qnli+rte", ranking).to_dict()).each["qnli"].built
    assert (task.__module__, config.positive) == ("bert_jax.tasks.ranking", "entailment")
    assert "no task 'wnli'; there are mnli, qqp" in fails("mt_dnn:rte+wnli")


def test_tasks_are_invented_by_flags():
    """A classification of a table, of which a tenth is dev, unless the flags say otherwise."""
    from bert_jax.recipes.finetuning_settings import FinetuningSettings

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
        with pytest.raises(UserError, match=said):
            FinetuningSettings.of(tree)


PRETRAIN = [name for name in recipes.names() if name.startswith("pretrain/")]


@pytest.mark.parametrize(
    "name", [*PRETRAIN, "clm_mlm:mlm", "spanbert:base", "wwm:base", "albert:xxlarge", "ablation:ltr_no_nsp"]
)
def test_pretrain_recipes_are_sound(name, tmp_path):
    """All that can be found wrong before a text is read: parts, phases, batches, masking, columns.

    Scanned layers are traced once, not 12 or 22 times; an encoder that has none gets two layers.
    """
    import jax
    import numpy as np

    from bert_jax.recipes.pretraining_settings import PretrainingSettings
    from bert_jax.runs.pretraining import Pretraining

    config = recipes.load(name).to_dict()
    model = config["model"] or {"encoder": "modernbert" if "modernbert" in name else "bert"}
    fewer = {"layers": "scanned"}
    if "entities" in config["objective"]:
        config["objective"]["entities"] = str(tmp_path / "entities.npy")
        np.save(tmp_path / "entities.npy", np.zeros((9, 100), np.float16))
        fewer = {"num_layers": 2}
    fewer = {"num_layers": 1} if model.get("encoder") == "bilm" else fewer
    settings = PretrainingSettings.of({**config, "model": {**model, **fewer}, "teacher": None})
    assert Pretraining(settings, devices=jax.devices()).task.tokenizer is None


def test_the_stages_of_ernie_come_in_order_and_mask_their_units():
    from bert_jax import configuration
    from bert_jax.recipes.pretraining_settings import PretrainingSettings

    settings = configuration.build(PretrainingSettings, recipes.load("ernie1").to_dict(), "config")
    phases = settings.experiment.phases.phases
    assert [phase.changes.get("masking", {}).get("unit", "piece") for phase in phases] == [
        "piece",
        "phrases",
        "entities",
    ]
    assert sum(phase.num_steps for phase in phases) == 1_000_000
    assert (settings.model["layer_norm_eps"], settings.experiment.optimizer.eps) == (1e-5, 1e-8)  # as in PaddlePaddle


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
    "fewrel": ("entity_fewrel", (8960, 2240)),
    "zh_ner:weibo": ("zh_ner", (1350, 270, 270)),
    "zh_ner:cluener": ("zh_ner", (10748, 1343, 1345)),
    "chnsenticorp": ("zh_chnsenticorp", (9600, 1200, 1200)),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_finetune_recipes_read_public_data(name, shared_data):
    from bert_jax import configuration
    from bert_jax.examples.load import load
    from bert_jax.parts import catalogue
    from bert_jax.recipes.finetuning_settings import FinetuningSettings

    folder, sizes = PUBLIC[name]
    config = configuration.build(FinetuningSettings, recipes.load(name).to_dict(), "config")
    task = catalogue.find("tasks", config.task["name"], having="Task")
    found = load(config.data, shared_data(folder), task.Task.roles, [].append)
    assert tuple(len(found[name]) for name in ("train", "dev", "test") if name in found) == sizes
    own = configuration.build(task.Config, {k: v for k, v in config.task.items() if k != "name"}, "config.task")
    task.Task.labels(own, found["train"])  # raises for labels that the recipe's metrics do not fit


LARGE = ("bert_base", "bert_large", "spanbert:base", "ernie1")


@pytest.mark.parametrize("name", ["quickstart", *(pytest.param(name, marks=pytest.mark.heavy) for name in LARGE)])
def test_the_step_of_every_phase_compiles_and_fits(name, monkeypatch):
    """As ``bert-jax plan`` compiles it, for eight devices of 95 GiB, without text. It may stand guard over a recipe of
    yours. The layers of the small model are scanned: one is compiled, not four."""
    from bert_jax.planning import topologies
    from bert_jax.runs import recipe_plan

    pages = {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 8 * 95 * 2**18}  # whatever this machine has
    monkeypatch.setattr(topologies.os, "sysconf", pages.__getitem__)
    flags = ["--config.model.layers=scanned"] if name == "quickstart" else []
    planned = recipe_plan.plan(recipes.load(name, flags).to_dict(), recipe_plan.PlanRequest("cpu:8"), print)
    assert planned.fits, "\n".join(planned.as_lines())
