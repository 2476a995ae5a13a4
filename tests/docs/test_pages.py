"""Links of all pages lead somewhere, their commands can be typed, and the keys that they name exist."""

import ast
import importlib
import re

import pytest

from bert_jax.cli import main
from bert_jax.corpora.prepare import find_source
from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.recipes import key_names
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from tests.docs import key_tables, pages

PAGES = pages.markdown()
RECIPES = sorted((pages.ROOT / "configs").glob("*/*.py"))
MACHINE = re.compile(r"(?<![\w.:])/(?:home|root|work|Users|mnt)/\w+")


def named(files):
    return pytest.mark.parametrize("file", files, ids=lambda file: file.relative_to(pages.ROOT).as_posix())


@named(PAGES)
def test_links_lead_somewhere(file):
    assert pages.broken(file) == []


@named(PAGES)
def test_no_page_names_a_place_on_a_machine(file):
    assert MACHINE.findall(file.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Two words\n[here](#two-words) [there](#three) [file](absent.md) [site](https://example.org)\n")
    assert pages.broken(page) == ["#three", "absent.md"]


def check(words, monkeypatch):
    """Read a command as ``bert-jax`` does, and check its recipe, without running it. RECIPE stands for any recipe."""
    words = [re.sub(r"^(--config=[a-z0-9_]+):[A-Z]+$", r"\1", word) for word in words]
    words = [re.sub(r"^--config=(RECIPE|\S+\.(py|json))$", "--config=quickstart", word) for word in words]
    seen = []
    if words[0] in main.verbs():
        module = importlib.import_module(f"bert_jax.cli.{main.verbs()[words[0]]}")
        monkeypatch.setattr(module, "run", seen.append)
    assert main._dispatch(words) == 0
    config = getattr(seen[0], "config", None)
    if config is None:
        return
    config = config.to_dict()
    if key_names.is_finetuning(config):
        FinetuningSettings.of(config)
        return
    settings = PretrainingSettings.of(config)
    if settings.corpus.options.get("paths") != () or settings.corpus.source != "text_files":
        find_source(settings.corpus)


@named([*PAGES, *RECIPES])
def test_commands_can_be_typed(file, monkeypatch, capsys):
    text = file.read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(text)) or "" if file.suffix == ".py" else text
    for words in pages.commands(text):
        if any(re.search(r"=\./\S+\.py$", word) for word in words):  # a part in a file that the page shows
            continue
        try:
            check(words, monkeypatch)
        except UserError as error:
            pytest.fail(f"bert-jax {' '.join(words)}: {error}")


def test_a_wrong_command_is_found(monkeypatch):
    for words in (
        "--config.model.num_layer=2",
        "--workdirs=runs/x",
        "--config.corpus.options.path=x --config.corpus.options.paths=x",
    ):
        with pytest.raises(UserError, match="num_layers|--workdir|paths"):
            check(["pretrain", "--config=bert_base", "--workdir=runs/x", *words.split()], monkeypatch)


def test_the_table_of_commands_has_every_verb():
    page = (pages.ROOT / "bert_jax" / "cli" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`bert-jax ([a-z-]+)", page)) == set(main.verbs())


# Groups whose keys are names of the user's own, or of a part that the user chooses.
USERS = re.compile(
    r"(data\.(splits|columns|strip_prefix|split_values)|training\.evaluations\.NAME\.(data|options)|phases\.NAME\.(masking|objective)"
    r"|corpus\.(parts|columns)\.NAME\.options|tasks\.NAME\.(task|data))\."
)
OWN = (
    "objective.words_weight",
    "objective.teacher",
    "training.evaluations.NAME.pairs",
)  # of the examples of users' own files
KEYS = {row.key for row in key_tables.all_keys()}


@named([page for page in PAGES if page.name != "CHANGELOG.md"])
def test_keys_that_a_page_names_exist(file):
    """``config.a.b``, but for whole programs; what users name (phases, parts, columns) is NAME in the tables."""
    text = pages.without_programs(file.read_text(encoding="utf-8"))
    for key in re.findall(r"(?<![\w./])config\.(?!key\b)([a-z_0-9]+(?:\.[\w]+)*)", text):
        general = re.sub(
            r"^(phases|corpus\.parts|corpus\.columns|training\.evaluations|tasks)\.\w+",
            r"\1.NAME",
            key.removesuffix(".KEY"),
        )
        assert USERS.match(general) or general in KEYS or general in OWN, f"config.{key}"


def test_the_tables_of_keys_are_up_to_date():
    """Where this fails: ``make keys``."""
    assert key_tables.page() == key_tables.PAGE.read_text(encoding="utf-8")


def test_the_first_page_is_short():
    assert len((pages.ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 182


def test_the_map_names_every_package_and_what_is_there():
    """A row of the map begins with a folder; the files and folders that it names are in that folder."""
    page = (pages.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split(" | ") for line in re.findall(r"^\| `.*$", page.partition("## Map")[2], re.MULTILINE)
    ]
    above, folders = ("configs", "launch", "tests", "bert_jax"), {}
    for where, *cells in rows:
        name = where.strip("`/")
        folder = pages.ROOT / name if name in above else pages.ROOT / "bert_jax" / name
        folders[folder] = " ".join(cells)
        for inner in re.findall(r"`([\w.]+(?:\.py|\.sh|\.md|/))`", folders[folder]):
            assert (folder / inner).exists(), f"{where}: {inner}"
    packages = {path.parent for path in (pages.ROOT / "bert_jax").glob("*/__init__.py")}
    assert {*folders} == packages | {pages.ROOT / name for name in above}
    for part in catalogue.KEYS.values():
        package, _, inner = part.package.partition(".")
        row = folders[pages.ROOT / "bert_jax" / package]
        assert f"`{inner}/`" in row or not inner, part.package
        assert all(f"`{name}`" in row for name in part.needs), part
