"""One part of every kind is added to a copy of the package: its commands know them all, and nothing else is touched.

``parts/test_own_files.py`` names files outside of the package by their path.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import bert_jax
from bert_jax.parts import catalogue
from tests import toy
from tests.parts.texts import PARTS, lines_of

KINDS = {
    "objective.name": "mlm_length",
    "objective.arrangement": "single_sentences",
    "objective.masking.strategy": "every_other",
    "model.encoder": "blocks",
    "model.attention_kernel": "masked",
    "corpus.source": "stories",
    "corpus.columns.*.annotator": "thes",
    "training.loggers.*": "lines",
    "training.evaluations.*.name": "spread",
    "optimizer.name": "two_rules",
    "schedule.name": "root",
    "task.name": "sure",
    "data.format": "arrows",
}
MIXED = {  # new parts beside the package's: encoder, objective, strategy, packing
    "encoder": ("bag", {"name": "mlm_nsp"}, "token", "none"),
    "rows": ("bert", {"name": "mlm", "arrangement": "single_sentences"}, "every_other", "packed"),
}
RUN = """
import json, sys
from tests.toy import one_device
from bert_jax.cli.main import run
with one_device():
    for argv in json.loads(sys.stdin.read()):
        print(argv[-1], run(argv), flush=True)
"""


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


EVALUATIONS = {"spread": {"name": "spread"}}


def recipe_of_every_kind(text: Path) -> dict[str, Any]:
    """Return a recipe for pretraining that names every part of ``PARTS`` that pretraining can have."""
    recipe = toy.recipe(
        text,
        corpus={"source": "stories", "options": {"path": str(text)}, "columns": {"thes": {"annotator": "thes"}}},
        objective={"name": "mlm_length", "arrangement": "single_sentences", "packing": "none"},
        model={
            "encoder": "blocks",
            "max_length": 32,
            "attention_kernel": "masked",
            "attention_dropout_rate": 0.0,
        },
        phases={
            "phase1": {"num_steps": 4, "batch_size": 8, "max_length": 32},
            "phase2": {
                "num_steps": 4,
                "batch_size": 8,
                "max_length": 32,
                "masking": {"strategy": "whole_unit", "unit": "thes"},
            },
        },
        optimizer={"name": "two_rules"},
        schedule={"name": "root", "warmup_steps": 1},
        training={"log_every_steps": 2, "eval_every_steps": 4, "loggers": ("lines",), "evaluations": EVALUATIONS},
        examples=(),
    )
    recipe["objective"]["masking"] = {"strategy": "every_other"}
    return recipe


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, and with what its commands have left."""
    folder = tmp_path_factory.mktemp("every_kind")
    source, copy = Path(bert_jax.__file__).parent, folder / "code" / "bert_jax"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in PARTS.items():
        (copy / name).write_text(textwrap.dedent(text).lstrip())
    text = toy.write_text(folder / "text.txt", documents=40)
    recipe = recipe_of_every_kind(text)
    (folder / "train.txt").write_text("".join(f"the {('ship', 'cat')[i % 2]} sees {i} -> {i % 2}\n" for i in range(24)))
    pretrained, tuned = folder / "pretrained", folder / "tuned"
    keys = {"task.name": "sure", "data.format": "arrows", "data.splits.train": folder / "train.txt"}
    keys |= {"data.dev_fraction": 0.5, "phases.train.max_length": 32}
    keys |= {"phases.train.num_epochs": 1, "phases.train.batch_size": 4, "training.loggers": "('lines',)"}
    keys |= {"optimizer.name": "two_rules", "schedule.name": "root", "selection.metric": "sureness"}
    keys |= {"training.evaluations": json.dumps(EVALUATIONS)}
    changed = [f"--config.{key}={value}" for key, value in keys.items()]
    commands = [
        ["pretrain", f"--config={toy.write_recipe(folder / 'recipe.json', recipe)}", f"--workdir={pretrained}"],
        [
            "finetune",
            f"--config={source.parent / 'configs' / 'finetune' / 'classification.py'}",
            *changed,
            f"--init={pretrained}",
            f"--workdir={tuned}",
        ],
        ["report", f"--workdir={tuned}"],
        ["export", f"--output={folder / 'exported'}", f"--workdir={tuned}"],
        ["predict", "the cat sees", f"--output={folder / 'predicted.jsonl'}", f"--workdir={tuned}"],
    ]
    for name, (encoder, objective, strategy, packing) in MIXED.items():
        recipe = toy.recipe(
            text,
            objective={**objective, "packing": packing, "masking": {"strategy": strategy}},
            phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": 32}},
            schedule={"warmup_steps": 1},
            training={"log_every_steps": 2, "eval_every_steps": 4, "loggers": ()},
            examples=(),
        )
        recipe["model"] = {"encoder": encoder, **(recipe["model"] if encoder == "bert" else {"hidden_size": 32})}
        path = toy.write_recipe(folder / f"{name}.json", recipe)
        commands.append(["pretrain", f"--config={path}", f"--workdir={folder / name}"])
    before = digests(copy)
    ended = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        env=toy.environment() | {"PYTHONPATH": f"{copy.parent}:{Path(__file__).parents[1]}"},
        cwd=copy.parent,
        check=False,
        timeout=600,
    )
    codes = re.findall(r"^--workdir=\S+ (\d+)$", ended.stdout, re.MULTILINE)
    assert codes == ["0"] * len(commands), ended.stdout[-2000:] + ended.stderr[-4000:]
    assert "masked: cpu 32\n" in ended.stdout
    ours = digests(source)
    assert digests(copy) == before
    assert {name for name, digest in before.items() if ours.get(name) != digest} == set(PARTS)
    return folder


def test_every_kind_of_part_is_among_them() -> None:
    """So a new kind (``catalogue.KEYS``) needs an example here."""
    assert all(lines_of(text) <= 40 for text in PARTS.values())
    categories = set(catalogue.KEYS.values())
    assert {catalogue.KEYS[key] for key in KINDS} == categories
    for key, name in KINDS.items():
        assert f"{catalogue.KEYS[key].package.replace('.', '/')}/{name}.py" in PARTS


def test_the_report_has_their_titles(done: Path) -> None:
    pretrained, tuned = ((done / name / "report.html").read_text() for name in ("pretrained", "tuned"))
    assert "<h3>Long or short</h3>" in pretrained
    for report in (pretrained, tuned):
        assert "<h3>spread: Largest parameter</h3>" in report
    assert "<h3>How sure it is, %</h3>" in tuned
    assert '<span class="soft">asked</span> the ' in tuned, "an example of a form that the report does not know"


def test_the_exports_have_their_classes(done: Path) -> None:
    folders = {"BertForMaskedLM": "pretrained/hugging_face", "BertForSequenceClassification": "exported"}
    for name, folder in folders.items():
        assert json.loads((done / folder / "config.json").read_text())["architectures"] == [name]


def test_predictions_are_those_of_the_task(done: Path) -> None:
    [record] = map(json.loads, (done / "predicted.jsonl").read_text().splitlines())
    assert record["asked"] == "yes"
    assert json.loads((done / "tuned" / "results.json").read_text())["metric"] == "sureness"
    assert "'sureness'" in (done / "tuned" / "lines.txt").read_text()
    assert "'length_loss'" in (done / "pretrained" / "lines.txt").read_text()


@pytest.mark.parametrize("name", ["pretrained", *MIXED])
def test_the_loss_falls(done: Path, name: str) -> None:
    lines = map(json.loads, (done / name / "metrics.jsonl").read_text().splitlines())
    first, *_, last = (line["mlm_loss"] for line in lines if line["split"] == "eval")
    assert last < first
