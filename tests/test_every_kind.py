"""One part of every kind is added to a copy of the package: its commands know them all, and nothing else is touched."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import bert_jax
from bert_jax.parts import catalogue
from tests import toy
from tests.test_new_encoder import BLOCKS
from tests.test_one_file import PARTS, RUN

# File of the package -> its text. Those of PARTS and the encoder of the page are added too.
OWN = {
    "objectives/mlm_length.py": PARTS["objectives/mlm_length.py"].replace(
        '            arrangement = "sentences"\n',
        '            arrangement = "sentences"\n            titles = {"length_accuracy": "Long or short"}\n',
    ),
    "models/encoders/blocks.py": BLOCKS,
    "models/kernels/masked.py": '''
        """Attention without dropout from a mask, on any device."""
        import jax

        WORTHWHILE = None

        def obstacle(case):
            return "has no dropout" if case.rate else None

        def attend(factors, ids, dropout_keys, case):
            print("masked:", case.platform, case.length)
            seen = (ids[0][:, :, None] == ids[1][:, None]) & (ids[1][:, None] > 0)
            return jax.nn.dot_product_attention(*factors, mask=seen[:, None])
    ''',
    "corpora/stories.py": '''
        """A file of text, a sentence a line and a document a paragraph."""
        import dataclasses
        import hashlib
        from pathlib import Path
        from bert_jax.corpora.source import Piece
        from bert_jax.records import Document

        @dataclasses.dataclass(frozen=True)
        class Source:
            path: str

            def pieces(self):
                return [Piece(self.path)]

            def read(self, piece):
                for number, text in enumerate(Path(piece.name).read_text().split("\\n\\n")):
                    yield Document(f"story {number}", tuple(text.split("\\n")))

            def fingerprint(self):
                return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()

            def describe(self):
                return {"kind": "stories"}
    ''',
    "corpora/annotators/thes.py": '''
        """Marks each "the" with the word after it as a unit."""
        import dataclasses
        import re
        from bert_jax.corpora.columns import unit_values

        @dataclasses.dataclass(frozen=True)
        class Annotator:
            dtype = "uint8"

            def identity(self):
                return {"version": 1}

            def annotate(self, sentences, spans):
                found = ([m.span() for m in re.finditer(r"the \\w+", text)] for text in sentences)
                return [unit_values(units, places) for units, places in zip(found, spans, strict=True)]
    ''',
    "examples/arrows.py": '''
        """Lines such as ``the cat sees -> 1``."""
        import dataclasses
        from pathlib import Path
        from bert_jax.examples.reading import DataRecord

        @dataclasses.dataclass(frozen=True)
        class Reader:
            named_splits = False

            def read(self, path):
                for number, line in enumerate(Path(path).read_text().splitlines()):
                    text, label = line.split(" -> ")
                    yield DataRecord({"text": text, "label": label}, f"{path}:{number + 1}")
    ''',
    "tasks/sure.py": '''
        """Classification that also says how sure it is."""
        import dataclasses
        import numpy as np
        from scipy import special
        from bert_jax.tasks import classification
        from bert_jax.tasks.classification import Config
        from bert_jax.tasks.findings import Judge

        Config = dataclasses.make_dataclass("Config", [], bases=(Config,), frozen=True)

        class Task(classification.Task):
            titles = {"sureness": "How sure it is, %"}
            judge = Judge("riddles", lambda record: (1.0, 0.0), lambda example, record: {"asked": example["text"]})

            def finish(self, part, outputs):
                sure = special.softmax(outputs["logits"], axis=-1).max(axis=-1).mean()
                return super().finish(part, outputs) | {"sureness": 100 * float(sure)}

            def predictions(self, split, outputs):
                return [record | {"asked": "yes"} for record in super().predictions(split, outputs)]
    ''',
    "runs/evaluations/spread.py": '''
        """The largest parameter."""
        import jax
        from bert_jax.runs.evaluations import base

        Config = base.Config

        class Evaluator(base.TrainingEvaluator):
            titles = {"largest": "Largest parameter"}

            def score(self, model, params, tokenizer):
                return {"largest": max(float(abs(leaf).max()) for leaf in jax.tree.leaves(params))}
    ''',
    "reporting/loggers/lines.py": '''
        """A line of text for each record."""
        from pathlib import Path

        class Logger:
            def start(self, run):
                self.path = Path(run.workdir) / "lines.txt"

            def log(self, step, split, time, metrics):
                with self.path.open("a") as file:
                    file.write(f"{step} {split} {sorted(metrics)}\\n")

            def cut_back(self, records):
                pass

            def close(self):
                pass
    ''',
}
TEXTS = PARTS | OWN
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


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, and with what its commands have left."""
    folder = tmp_path_factory.mktemp("every_kind")
    source, copy = Path(bert_jax.__file__).parent, folder / "code" / "bert_jax"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in TEXTS.items():
        (copy / name).write_text(textwrap.dedent(text).lstrip())
    text = toy.write_text(folder / "text.txt", documents=40)
    evaluations = {"spread": {"name": "spread"}}
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
        training={"log_every_steps": 2, "eval_every_steps": 4, "loggers": ("lines",), "evaluations": evaluations},
        examples=(),
    )
    recipe["objective"]["masking"] = {"strategy": "every_other"}
    (folder / "train.txt").write_text("".join(f"the {('ship', 'cat')[i % 2]} sees {i} -> {i % 2}\n" for i in range(24)))
    pretrained, tuned = folder / "pretrained", folder / "tuned"
    keys = {"task.name": "sure", "data.format": "arrows", "data.splits.train": folder / "train.txt"}
    keys |= {"data.dev_fraction": 0.5, "phases.train.max_length": 32}
    keys |= {"phases.train.num_epochs": 1, "phases.train.batch_size": 4, "training.loggers": "('lines',)"}
    keys |= {"optimizer.name": "two_rules", "schedule.name": "root", "selection.metric": "sureness"}
    keys |= {"training.evaluations": json.dumps(evaluations)}
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
    assert {name for name, digest in before.items() if ours.get(name) != digest} == set(TEXTS)
    return folder


def test_every_kind_of_part_is_among_them() -> None:
    """So a new kind (``catalogue.KEYS``) needs an example here."""
    categories = set(catalogue.KEYS.values())
    assert {catalogue.KEYS[key] for key in KINDS} == categories
    for key, name in KINDS.items():
        assert f"{catalogue.KEYS[key].package.replace('.', '/')}/{name}.py" in TEXTS


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
