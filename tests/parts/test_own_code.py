"""A user's own file beside the recipe is a part like the package's, runs only when asked for, and is identity."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_jax.cli.main import run
from bert_jax.corpora.prepare import CorpusConfig, find_source
from bert_jax.corpora.privacy import private_config
from bert_jax.errors import UserError
from bert_jax.parts import catalogue, own_code
from bert_jax.parts.catalogue import KEYS, OwnCode
from bert_jax.recipes import recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.workdir.run_record import read_run
from tests import toy
from tests.parts.texts import PARTS as TEXTS
from tests.parts.texts import WORDS, WORDS_RECIPE

pytestmark = pytest.mark.usefixtures("fresh")
RECIPE = "from ml_collections import ConfigDict\n\n\ndef get_config():\n    return ConfigDict({})\n"
STRATEGY = """
import dataclasses
from bert_jax.rows.interfaces import Selected

@dataclasses.dataclass(frozen=True)
class Config:
    first: int = 7

def select(candidates, starts, counts, keys, options):
    return Selected(candidates)
"""
SOURCE = """
import dataclasses
from bert_jax.corpora.text_files import Source as TextFiles

class Source(TextFiles):
    pass
"""


def write_folder(folder: Path, **changes: object) -> Path:
    """A folder with the page's objective and a tiny recipe that names it, ``own.py`` and ``own.json``."""
    folder.mkdir(exist_ok=True)
    (folder / "words.py").write_text(WORDS)
    recipe = toy.recipe(
        toy.write_text(folder / "text.txt"),
        objective={"name": "./words.py", "packing": "packed", "words_weight": 0.3},
        phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": 32}},
        schedule={"warmup_steps": 1},
        training={"log_every_steps": 2, "eval_every_steps": 4, "loggers": ()},
        checkpoints={"every_steps": 2},
        examples=(),
        export=False,
        **changes,
    )
    toy.write_recipe(folder / "own.json", recipe)
    (folder / "own.py").write_text(RECIPE.replace("{}", repr(recipe)))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recipe whose run, of four steps, is in ``run``."""
    folder = write_folder(tmp_path_factory.mktemp("own") / "one")
    with toy.one_device():
        assert run(["pretrain", f"--config={folder / 'own.py'}", f"--workdir={folder / 'run'}"]) == 0
    return folder


def words(content: bytes) -> str:
    return OwnCode("words.py", content).name


# ---- The page --------------------------------------------------------------------------------------------------------


def test_the_objective_of_the_page_is_short_and_trains(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "run" / "metrics.jsonl").read_text().splitlines()]
    first, last = (line for line in lines if line["split"] == "eval")
    assert last["words_loss"] < first["words_loss"]
    assert last["mlm_loss"] < first["mlm_loss"]
    recorded = read_run(str(trained / "run"))
    name = words(WORDS.encode())
    assert recorded["identity"]["objective"]["name"] == recorded["facts"]["objective"]["name"] == name
    assert (trained / "run" / catalogue.copy_of(name)).read_text() == WORDS


def test_it_resumes_from_another_folder_and_is_exported(
    trained: Path, tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = write_folder(tmp_path / "two")
    workdir = shutil.copytree(trained / "run", tmp_path / "run")
    longer = ["--extend", "--config.phases.phase1.num_steps=6"]
    options = json.loads((trained / "own.json").read_text())["corpus"]["options"]
    longer.append(f"--config.corpus.options={options}")
    assert run(["pretrain", f"--config={moved / 'own.py'}", f"--workdir={workdir}", *longer]) == 0
    assert "resumed at step 4" in capsys.readouterr().err
    assert run(["export", f"--workdir={workdir}", f"--output={tmp_path / 'model'}"]) == 0  # needs no code of ours
    assert json.loads((tmp_path / "model" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]


def test_the_recipe_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "words_recipe.py").write_text(WORDS_RECIPE)
    names = [recipes.load(f"{tmp_path / 'words_recipe.py'}:{one}").objective.name for one in ("mlm", "words")]
    assert names == ["mlm", words(WORDS.encode())]


# ---- Identity --------------------------------------------------------------------------------------------------------


def test_a_changed_file_does_not_resume(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = write_folder(tmp_path / "changed")
    before = (changed / "words.py").read_bytes()
    (changed / "words.py").write_bytes(before + b"# another\n")
    argv = [f"--config={changed / 'own.py'}", f"--workdir={trained / 'run'}"]
    options = json.loads((trained / "own.json").read_text())["corpus"]["options"]
    assert run(["pretrain", *argv, f"--config.corpus.options={options}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"config.objective.name: '{words(before)}' -> '{words(before + b'# another' + bytes([10]))}'" in line
    assert (advice := f"--config.objective.name={trained / 'run'}/{catalogue.copy_of(words(before))}") in line
    assert recipes.load(str(changed / "own.py"), [advice]).objective.name == words(before)  # it does go on
    assert f"--init={trained / 'run'}" in line
    assert "Traceback" not in line


def test_processes_with_other_files_have_other_configs(tmp_path: Path) -> None:
    configs = []
    for number in range(2):
        folder = write_folder(tmp_path / str(number))
        (folder / "words.py").write_text(WORDS + "\n" * number)
        configs.append(json.loads(recipes.load(str(folder / "own.py")).to_json_best_effort())["objective"]["name"])
    assert configs[0] != configs[1]
    assert all(name.startswith("words.py@") for name in configs)


def test_text_that_another_version_of_a_source_read_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("One sentence.\n")
    prints = []
    for number in range(2):
        code = OwnCode(str(tmp_path / "news.py"), (SOURCE + "\n" * number).encode())
        catalogue.trust(code)
        corpus = CorpusConfig(source=code.name, options={"paths": (str(tmp_path / "text.txt"),)})
        prints.append(find_source(corpus).fingerprint())
        assert find_source(corpus).describe()["code"] == code.name
    assert prints[0] != prints[1]


def test_a_private_run_keeps_nothing_of_its_source(tmp_path: Path) -> None:
    code = OwnCode("secret_mails.py", SOURCE.encode())
    catalogue.trust(code)
    tree = {"corpus": {"source": code.name, "columns": {"words": {"annotator": code.name}}}}
    own_code.keep_copies(str(tmp_path), private_config(tree))
    assert "secret" not in json.dumps(private_config(tree))
    assert not (tmp_path / "code").exists()
    own_code.keep_copies(str(tmp_path), tree)
    assert (tmp_path / catalogue.copy_of(code.name)).read_bytes() == SOURCE.encode()


# ---- What runs, and what does not ------------------------------------------------------------------------------------


def test_a_json_recipe_starts_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None]
) -> None:
    folder = write_folder(tmp_path / "one")
    recipe, name = str(folder / "own.json"), words((folder / "words.py").read_bytes())
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=r"add --config\.objective\.name=words\.py or --trust_code"):
        recipes.load(recipe)
    assert recipes.load(recipe, ["--config.objective.name=words.py"]).objective.name == name
    fresh()
    with pytest.raises(UserError, match="only names"):  # another key is typed, not this one
        recipes.load(recipe, ["--config.objective.words_weight=0.4"])
    assert recipes.load(recipe, trust_code=True).objective.name == name


def test_a_recorded_config_starts_no_code(trained: Path, fresh: Callable[[], None], tmp_path: Path) -> None:
    workdir = shutil.copytree(trained / "run", tmp_path / "run")
    config = json.loads((workdir / "run.json").read_text())["config"]
    with pytest.raises(UserError, match=r"code/\w{16}/words.py in the workdir, then add --trust_code"):
        PretrainingSettings.of(config)
    own_code.trust_copies(f"{workdir}@4")
    assert PretrainingSettings.of(config).objectives[0].config.words_weight == 0.3
    fresh()
    [copy] = workdir.glob("code/*/words.py")
    copy.write_text(copy.read_text() + "# changed\n")
    own_code.trust_copies(str(workdir))
    with pytest.raises(UserError, match="if the copy is gone or changed, name the file itself"):
        PretrainingSettings.of(config)


def test_the_flag_trusts_the_copies_of_a_workdir(
    trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = toy.write_recipe(tmp_path / "again.json", read_run(str(trained / "run"))["config"])
    argv = ["pretrain", f"--config={config}", f"--workdir={trained / 'run'}", "--config.seed=7"]
    assert run(argv) == 2
    assert "add --trust_code" in capsys.readouterr().err
    assert run([*argv, "--trust_code"]) == 2
    assert "config.seed: 0 -> 7" in capsys.readouterr().err  # so far it comes with the code


def test_a_worker_process_gets_the_code_with_its_rows(tmp_path: Path) -> None:
    import cloudpickle

    code = OwnCode(str(tmp_path / "every.py"), STRATEGY.encode())
    catalogue.trust(code)
    module = catalogue.find("rows.strategies", code.name, having="select")
    assert catalogue.own_modules() == [module]
    cloudpickle.register_pickle_by_value(module)
    script = (
        "import sys, pickle; made, f = pickle.load(sys.stdin.buffer); print(made.first, f([1], 0, 0, 0, 0).positions)"
    )
    sent = cloudpickle.dumps((module.Config(), module.select))
    done = subprocess.run([sys.executable, "-c", script], input=sent, capture_output=True, check=True)
    assert done.stdout.split() == [b"7", b"[1]"]


# ---- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("./wrds.py", None, r"name is './wrds.py', and there is no file .*/wrds.py .*did you mean 'words"),
        ("./words.txt", "x = 1", "a component's file ends in .py"),
        ("./broken.py", "import os\n\ndef terms(:\n", r"broken.py:3: SyntaxError: "),
        ("./empty.py", "", "does not define Objective and Config; a file for bert_jax.objectives has Obj"),
        ("./early.py", "class Objective:\n    pass\nConfig = 1\nraise OSError('no')\n", r"early.py:4: OSError: no"),
        ("words", None, r"no objective 'words' in .*a file of your own is named by its path, such as ./toy.py"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, name: str, text: str | None, error: str) -> None:
    folder = write_folder(tmp_path / "one")
    if text is not None:
        (folder / name).write_text(text)
    (folder / "own.py").write_text((folder / "own.py").read_text().replace("./words.py", name))
    with pytest.raises(UserError, match=error) as found:
        PretrainingSettings.of(recipes.load(str(folder / "own.py")).to_dict())
    assert "\n" not in str(found.value)


def test_a_path_that_was_not_asked_for_is_not_run() -> None:
    with pytest.raises(UserError, match="'./toy.py' is a file; name it in a Python recipe"):
        catalogue.find("rows.arrangements", "./toy.py", having="Arrangement")


def test_an_installed_package_offers_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None]
) -> None:
    package, facts = tmp_path / "words_of_mine", tmp_path / "words_of_mine-1.0.dist-info"
    package.mkdir()
    facts.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported too early')\n")
    (package / "masks.py").write_text(STRATEGY)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: words-of-mine\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[bert_jax.rows.strategies]\nmine = words_of_mine.masks\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = write_folder(tmp_path / "one")
    typed = ["--config.objective.name=mlm", "--config.objective.masking.strategy=mine"]
    name = recipes.load(str(folder / "own.py"), typed).objective.masking.strategy  # read, and not imported
    assert name == OwnCode("masks.py", STRATEGY.encode()).name
    (package / "__init__.py").write_text("")
    assert catalogue.find("rows.strategies", name, having="select").__name__ == "words_of_mine.masks"
    assert catalogue.own_modules() == []
    fresh()
    recipe = json.loads((folder / "own.json").read_text()) | {
        "objective": {"name": "mlm", "masking": {"strategy": "mine"}}
    }
    toy.write_recipe(folder / "own.json", recipe)
    with pytest.raises(UserError, match=r"add --config\.objective\.masking\.strategy=mine or --trust_code"):
        recipes.load(str(folder / "own.json"))


# ---- All kinds -------------------------------------------------------------------------------------------------------


def test_every_key_may_hold_a_file(tmp_path: Path) -> None:
    names = {name for component in KEYS.values() for name in component.needs}
    (tmp_path / "all.py").write_text("\n".join(f"{name} = object" for name in sorted(names)))
    config = {
        "objective": {"name": "./all.py", "arrangement": "./all.py", "masking": {"strategy": "./all.py"}},
        "phases": {
            "a": {"masking": {"strategy": "./all.py"}},
            "b": {"objective": {"masking": {"strategy": "./all.py"}}},
        },
        "model": {"encoder": "./all.py"},
        "corpus": {"parts": {"x": {"source": "./all.py"}}, "columns": {"y": {"annotator": "./all.py"}}},
        "training": {
            "loggers": ("tensorboard", "./all.py"),
            "evaluations": {"one": {"name": "./all.py"}, "two": {"task": "./all.py", "data": {"format": "./all.py"}}},
        },
        "optimizer": {"name": "./all.py"},
        "schedule": {"name": "./all.py"},
    }
    found = own_code.recorded_names(config, str(tmp_path))
    assert set(found.values()) == {OwnCode("all.py", (tmp_path / "all.py").read_bytes()).name}
    assert len(found) == json.dumps(config).count("./all.py")
    assert "training.loggers.1" in found
    alone = own_code.recorded_names({"training": {"loggers": "./all.py"}}, str(tmp_path))
    assert list(alone) == ["training.loggers"]


PARTS = {
    "bag.py": TEXTS["models/encoders/bag.py"],
    "masks.py": TEXTS["rows/strategies/every_other.py"],
    "verdict.py": """
        from bert_jax.tasks.classification import Config
        from bert_jax.tasks.classification import Task as Classification

        class Task(Classification):
            pass
    """,
    "table.py": """
        from bert_jax.examples.delimited import Reader as Delimited

        class Reader(Delimited):
            pass
    """,
    "news.py": SOURCE,
}


@pytest.mark.heavy
def test_a_run_of_own_parts_is_gone_on_from_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Encoder, strategy and source of a pretraining run, with workers, then task and reader of a fine-tuning run."""
    folder = write_folder(tmp_path / "one")
    for name, text in PARTS.items():
        (folder / name).write_text(textwrap.dedent(text.strip("\n")))
    monkeypatch.chdir(folder)
    own = ["model={'encoder': 'bag.py', 'hidden_size': 32}", "objective.masking.strategy=masks.py"]
    config = [f"--config.{one}" for one in (*own, "corpus.source=news.py", "objective.packing=none")]
    workers = ["--config.loader.num_workers=1", "--config.corpus.num_workers=2", "--config.corpus.part_bytes=2000"]

    def ends(code: int, *argv: str) -> str:
        fresh()
        assert run(list(argv)) == code, capsys.readouterr().err
        return capsys.readouterr().err

    ends(0, "pretrain", "--config=own.py", "--workdir=run", *config, *workers)
    assert len(list(Path("run/code").glob("*/*.py"))) == 4
    assert json.loads(Path("run/corpus/manifest.json").read_text())["source"]["code"].startswith("news.py@")
    assert "encoder is code" in ends(2, "fill-mask", "--workdir=run", "the [MASK] sees.")
    ends(0, "fill-mask", "--workdir=run", "--trust_code", "the [MASK] sees.")
    assert "can be exported" in ends(2, "export", "--workdir=run", "--output=model", "--trust_code")
    rows = [f"{'good' if i % 2 else 'bad'}\tthe {'cat' if i % 2 else 'dog'} sees {i}" for i in range(24)]
    for name in ("train.tsv", "dev.tsv"):
        Path(name).write_text("\n".join(["label\ttext", *rows]) + "\n")
    recipe = {
        "task": {"name": "./verdict.py"},
        "data": {"format": "./table.py", "splits": {"train": "train.tsv", "dev": "dev.tsv"}, "overlap": "warn"},
        "phases": {"train": {"num_epochs": 1.0, "batch_size": 8, "max_length": 16}},
        "training": {"loggers": ()},
    }
    Path("tune.py").write_text(RECIPE.replace("{}", repr(recipe)))
    tune = ("finetune", "--config=tune.py", "--workdir=tuned", "--init=run")
    assert "encoder is code" in ends(2, *tune)
    ends(0, *tune, "--config.model.encoder=bag.py")
    ends(0, *tune, "--config.model.encoder=bag.py")  # at its end already
    assert "add --trust_code" in ends(2, "predict", "--workdir=tuned", "the cat sees 3")
    ends(0, "predict", "--workdir=tuned", "--trust_code", "the cat sees 3")
    ends(0, "predict", "--workdir=tuned", "--trust_code", "--input=dev.tsv", "--format=table.py")
