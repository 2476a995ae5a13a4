"""The workflows, as far as they can be checked without a runner: rights of jobs, their order, scripts and files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import bert_jax

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
HOST = re.compile(r"\b[a-z0-9-]+\.(?:io|org|com|dev|net)\b")


def jobs(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())["jobs"]


def scripts(workflow):
    """Yield the shell scripts of a workflow, with X in place of expressions."""
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        yield from (re.sub(r"\$\{\{.*?\}\}", "X", step["run"]) for step in job["steps"] if "run" in step)


def run(script, folder, **variables):
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_scripts_can_be_read_and_no_registry_is_named(workflow):
    assert HOST.findall(workflow.read_text()) == []
    assert "://" not in workflow.read_text()
    for script in scripts(workflow):
        assert run(f"set -n\n{script}", ROOT).stderr == ""
        for name in re.findall(r"\.ci/\w+", script):
            assert os.access(ROOT / name, os.X_OK), name


def test_each_job_of_a_release_may_do_only_what_it_does():
    release = jobs("release")
    assert {name: job.get("permissions") for name, job in release.items()} == {
        "build": None,
        "images": {"contents": "read", "packages": "write"},
        "publish": {"id-token": "write"},
        "release": {"contents": "write"},
    }
    assert [release[name].get("needs") for name in release] == [None, "build", "images", "publish"]
    assert [name for name in release if "environment" in release[name]] == ["publish"]
    assert not any("secrets." in workflow.read_text() for workflow in WORKFLOWS)
    assert all("timeout-minutes" in job for job in release.values())


def test_the_images_of_a_release_are_built_from_the_files_that_are_there():
    for image in jobs("release")["images"]["strategy"]["matrix"]["include"]:
        assert image["file"] == f"launch/Dockerfile.{image['device']}"
        assert (ROOT / image["file"]).is_file()


def test_an_image_is_pushed_under_the_tag_of_the_release(tmp_path):
    [push] = [step for step in jobs("release")["images"]["steps"] if "docker push" in step.get("run", "")]
    (tmp_path / "docker").write_text('#!/bin/sh\necho "$*" >> calls\n[ "$1" != login ] || cat >> calls\n')
    (tmp_path / "docker").chmod(0o755)
    values = {"REGISTRY": "registry.test", "TOKEN": "secret", "DEVICE": "gpu", "GITHUB_REPOSITORY": "Some/Name"}
    values |= {"GITHUB_REF_NAME": "v1.2.3", "GITHUB_ACTOR": "me", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert set(push["env"]) == {"REGISTRY", "TOKEN", "DEVICE"}
    assert run(push["run"], tmp_path, **values).returncode == 0
    assert (tmp_path / "calls").read_text().splitlines() == [
        "login registry.test --username me --password-stdin",
        "secret",
        "tag bert-jax:gpu registry.test/some/name:v1.2.3-gpu",
        "push registry.test/some/name:v1.2.3-gpu",
    ]


@pytest.mark.parametrize(
    ("tag", "changes", "code"),
    [("v{}", "## {} (2026-11-27)\n\n- New.\n", 0), ("v9", "## {}\n- New.\n", 1), ("v{}", "## Unreleased\n- New.\n", 1)],
)
def test_a_release_has_the_version_of_its_tag_and_says_what_is_new(tag, changes, code, tmp_path):
    [check] = [step for step in jobs("release")["build"]["steps"] if "notes.md" in step.get("run", "")]
    (tmp_path / "bert_jax.py").write_text(f'__version__ = "{bert_jax.__version__}"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n{changes.format(bert_jax.__version__)}\n## 0.0\n- Old.\n")
    script = check["run"].replace("python -c", f"{sys.executable} -c")
    done = run(script, tmp_path, GITHUB_REF_NAME=tag.format(bert_jax.__version__), PYTHONPATH=str(tmp_path))
    assert done.returncode == code, done.stderr
    if code == 0:
        assert (tmp_path / "notes.md").read_text().strip() == "- New."
