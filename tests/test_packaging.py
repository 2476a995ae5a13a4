"""The wheel holds everything and works where there is no checkout; the lock files are whole and name no machine."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = [ROOT / "requirements.txt", *sorted((ROOT / "requirements").glob("*.txt"))]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that the wheel was unpacked into, as ``pip install`` would."""
    folder = tmp_path_factory.mktemp("wheel")
    # A copy is built, so that the build leaves nothing in the tree.
    copy = folder / "source"
    copy.mkdir()
    for name in ("bert_jax", "configs", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        (copy / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(copy)], check=True, cwd=folder)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_has_every_module_and_recipe(installed):
    modules = {f"bert_jax/{p.relative_to(ROOT / 'bert_jax')}" for p in (ROOT / "bert_jax").rglob("*.py")}
    recipes = {f"bert_jax/configs/{p.relative_to(ROOT / 'configs')}" for p in (ROOT / "configs").rglob("*.py")}
    there = {p.relative_to(installed).as_posix() for p in installed.rglob("*.py")}
    assert there == modules | recipes, "bring `packages` in setup.cfg up to date"


def test_the_wheel_works_elsewhere(installed, tmp_path):
    program = (
        "from bert_jax.runs import recipes; import bert_jax; print(bert_jax.__file__);"
        "print(recipes.load('quickstart').seed, recipes.load('bert_base').model.size, recipes.load('bert_large').seed)"
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
    assert values == "0 base 0"


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
    """What is pinned in two of them is pinned alike, so that they go into one environment."""
    pins: dict[str, str] = {}
    for lock in LOCKS:
        for name, version, marker in re.findall(
            r"^([a-z0-9._-]+)==(\S+)( ; [^\\\n]*)?", lock.read_text(), re.MULTILINE
        ):
            assert pins.setdefault(name + marker.strip(), version) == version, f"{name} in {lock.name}"


def test_the_base_needs_no_other_framework():
    names = re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert not {"torch", "transformers", "tensorflow"} & set(names)
