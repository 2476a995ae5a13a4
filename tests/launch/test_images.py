"""The containers, as far as they can be checked without building an image."""

import re
import shlex

import pytest

from tests.launch.stage import ROOT

FILES = sorted((ROOT / "launch").glob("Dockerfile.*"))


def instructions(path) -> list[tuple[str, str]]:
    text = "".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("#"))
    lines = text.replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line]


def copied(path) -> list[str]:
    """Return the files and folders that a Dockerfile copies from the checkout."""
    sources = []
    for name, rest in instructions(path):
        if name == "COPY" and not rest.startswith("--from="):
            sources += shlex.split(rest)[:-1]
    return sources


def test_there_is_one_for_each_device():
    assert [path.suffix for path in FILES] == [".cpu", ".gpu", ".tpu"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_image_is_small_and_safe(path):
    steps = instructions(path)
    last = max(i for i, (name, _) in enumerate(steps) if name == "FROM")
    assert "ARG RUN_IMAGE=python:3.11-slim-bookworm" in path.read_text()
    assert [rest for name, rest in steps[last:] if name == "USER"] == ["bert"]
    assert ("ENTRYPOINT", '["bert-jax"]') in steps
    assert "COPY" not in {name for name, rest in steps[last:] if not rest.startswith("--from=build ")}
    pips = [rest for name, rest in steps if name == "RUN" and "pip install" in rest]
    assert len(pips) == 2
    assert all("--no-deps" in rest and "--no-build-isolation" in rest for rest in pips)
    assert "--require-hashes" in pips[0]
    assert not {"ADD", "curl", "wget"} & set(path.read_text().split())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_locks_are_there(path):
    """Each lock that the loop installs is in the image, once the files of COPY are placed as it says."""
    [extras] = re.findall(r'^ARG EXTRAS="(.*)"$', path.read_text(), re.MULTILINE)
    [names] = re.findall(r"for lock in (.*) \$EXTRAS; do", path.read_text())
    there = {"base", *(lock.stem for lock in (ROOT / "requirements").glob("*.txt"))}
    assert "COPY requirements.txt requirements/base.txt\nCOPY requirements/ requirements/\n" in path.read_text()
    assert {*names.split(), *extras.split()} <= there
    assert names == f"build {path.suffix[1:]}".replace("cpu", "base")
    assert '"requirements/$lock.txt"' in path.read_text()


def test_the_image_of_a_slice_reads_buckets():
    """The launchers of slices take no other working directory."""
    assert 'ARG EXTRAS="gcs"' in (ROOT / "launch" / "Dockerfile.tpu").read_text()
    assert "gcsfs==" in (ROOT / "requirements" / "gcs.txt").read_text()


def test_the_images_differ_in_their_locks_and_environment_only():
    def common(path):
        text = re.sub(r"(?m)^ENV (JAX_PLATFORMS|NVIDIA_\w+)=.*\n(    NVIDIA_.*\n)?", "", path.read_text())
        text = re.sub(r'ARG EXTRAS=".*"', "", text).replace("build base", "build cpu").replace(path.suffix[1:], "")
        return text.split("\n", 1)[1]

    assert len({common(path) for path in FILES}) == 1


def test_the_build_context_has_what_is_copied_and_little_more():
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert ignored[0] == "*"
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    for path in FILES:
        assert {source.rstrip("/") for source in copied(path)} == kept
    assert all((ROOT / name).exists() for name in kept)
    # tests/test_packaging.py builds the package from these.
    assert {"bert_jax", "configs", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"} <= kept
