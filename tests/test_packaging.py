"""Sdist and wheel hold everything and work where there is no checkout; lock files are whole and name no machine."""

import configparser
import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import bert_jax

ROOT = Path(__file__).resolve().parent.parent
LOCKS = [ROOT / "requirements.txt", *sorted((ROOT / "requirements").glob("*.txt"))]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The sdist, built from a copy, so that the build leaves nothing in the tree."""
    copy = tmp_path_factory.mktemp("sdist")
    for path in ROOT.iterdir():
        if not path.name.startswith((".venv", ".git", ".mypy", ".ruff", ".pytest", "build", "dist", "runs")):
            (copy / path.name).symlink_to(path)
    program = "from setuptools import build_meta; build_meta.build_sdist('made')"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=copy, capture_output=True)
    [archive] = (copy / "made").iterdir()
    return archive


@pytest.fixture(scope="module")
def installed(sdist, tmp_path_factory):
    """A folder into which the wheel was unpacked, as ``pip install`` would. The wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(sdist)], check=True, cwd=folder)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_sdist_is_the_tree(sdist):
    """Also what only tests, containers and ``make`` read. It is named after the version, and has no compiled files."""
    assert sdist.name == f"bert_jax-{bert_jax.__version__}.tar.gz"
    with tarfile.open(sdist) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("bert_jax", "configs", "launch", "requirements", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.suffix != ".pyc"]
    files += [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")]
    assert not {path.relative_to(ROOT).as_posix() for path in files if path.is_file()} - there
    assert not {name for name in there if name.endswith(".pyc")}


def test_the_metadata(installed):
    """The version comes from one place; what ``setup.cfg`` says arrives."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    [info] = installed.glob("*.dist-info")
    metadata = email.message_from_string((info / "METADATA").read_text(encoding="utf-8"))
    assert (metadata["Name"], metadata["Version"]) == ("bert-jax", bert_jax.__version__)
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", bert_jax.__version__)
    assert "Apache-2.0" in (metadata["License-Expression"], metadata["License"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# bert_jax")
    assert metadata["Requires-Python"].replace(" ", "") in (">=3.11,<3.14", "<3.14,>=3.11")
    assert set(metadata.get_all("Provides-Extra")) == set(setup["options.extras_require"])
    needed = {requirement for requirement in metadata.get_all("Requires-Dist") if "extra ==" not in requirement}
    assert needed == set(setup["options"]["install_requires"].split())
    assert "://" not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_the_wheel_has_every_module_and_recipe(installed):
    modules = {f"bert_jax/{p.relative_to(ROOT / 'bert_jax')}" for p in (ROOT / "bert_jax").rglob("*.py")}
    recipes = {f"bert_jax/configs/{p.relative_to(ROOT / 'configs')}" for p in (ROOT / "configs").rglob("*.py")}
    there = {p.relative_to(installed).as_posix() for p in installed.rglob("*.py")}
    assert there == modules | recipes, "bring `packages` in setup.cfg up to date"
    lists = {f"bert_jax/{p.relative_to(ROOT / 'bert_jax')}" for p in (ROOT / "bert_jax").rglob("*.txt")}
    assert lists == {p.relative_to(installed).as_posix() for p in (installed / "bert_jax").rglob("*.txt")}
    assert lists >= {f"bert_jax/corpora/annotators/connectives_{language}.txt" for language in ("en", "zh")}


def test_the_wheel_works_elsewhere(installed, tmp_path):
    program = (
        "from bert_jax.recipes import recipes; import bert_jax; print(bert_jax.__file__);"
        "print(recipes.load('bert_base').model.size, recipes.load('bert_large').model.size)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(installed)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    where, values = done.stdout.splitlines()
    assert where.startswith(str(installed))
    assert values == "base large"


def test_the_wheel_has_the_command_and_the_licence(installed):
    [info] = installed.glob("*.dist-info")
    assert "bert-jax = bert_jax.__main__:main" in (info / "entry_points.txt").read_text()
    assert list(info.rglob("LICENSE"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locks_pin_and_hash_everything_and_name_no_place(lock):
    text = lock.read_text().replace("\\\n", " ")
    requirements = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert requirements
    for line in requirements:
        assert re.match(r"[a-z0-9._-]+(\[[a-z0-9,_-]+\])?==\S+ .*--hash=sha256:[0-9a-f]{64}", line), line
    assert "://" not in text
    assert "--" not in re.sub(r"--hash=sha256:[0-9a-f]{64}", "", text)


def test_the_locks_agree():
    """What is pinned in two of them is pinned alike, so that they go into one environment; but for transformers 4."""
    pins: dict[str, str] = {}
    older = {"transformers", "tokenizers", "huggingface-hub"}
    for lock in LOCKS:
        for name, version, marker in re.findall(
            r"^([a-z0-9._-]+)==(\S+)( ; [^\\\n]*)?", lock.read_text(), re.MULTILINE
        ):
            place = f"{name} in {lock.name}"
            key = place if lock.name == "parity4.txt" and name in older else name + marker.strip()
            assert pins.setdefault(key, version) == version, place


def test_the_base_needs_no_other_framework():
    names = re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert not {"torch", "transformers", "tensorflow"} & set(names)
