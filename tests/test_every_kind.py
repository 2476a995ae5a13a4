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
from typing import Any

import pytest

import bert_jax
from bert_jax.parts import catalogue
from tests import toy
from tests.test_new_encoder import BLOCKS
from tests.test_one_file import RULES

# File of the package -> its text. The encoder, the optimizer and the schedule are those of the page.
PARTS = {
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
    "training/optimizers/two_rules.py": RULES["optimizers"],
    "training/schedules/root.py": RULES["schedules"],
    "rows/strategies/every_other.py": '''
        """Every second candidate, as long as there are some to take."""
        import dataclasses
        import numpy as np
        from bert_jax.rows.interfaces import Selected

        @dataclasses.dataclass(frozen=True)
        class Config:
            first: int = 0

        def select(candidates, starts, counts, keys, options):
            place = np.cumsum(candidates, axis=1) - 1
            chosen = candidates & (place % 2 == options.first)
            return Selected(chosen & (np.cumsum(chosen, axis=1) <= counts[:, None]))
    ''',
    "rows/arrangements/single_sentences.py": '''
        """One sentence a sequence: [CLS] sentence [SEP]."""
        import dataclasses
        import numpy as np
        from bert_jax.rows.arrangements import sentences

        @dataclasses.dataclass(frozen=True)
        class Arrangement(sentences.Arrangement):
            def plan(self, split, key, max_length, limits):
                offsets = np.asarray(split.sentence_offsets)
                records = np.zeros(len(offsets) - 1, self.record)
                records["a_start"], records["sentence"] = offsets[:-1], np.arange(len(records))
                records["length"] = np.minimum(np.diff(offsets), max_length - self.special_tokens)
                yield records
    ''',
    "objectives/mlm_length.py": '''
        """Masked language modelling, and whether a sequence fills more than half of its row."""
        import jax.numpy as jnp
        from bert_jax.models.heads import Classifier
        from bert_jax.models.model import LM_HEAD, POOLER, Part
        from bert_jax.objectives import base

        Config = base.Config

        class Objective(base.PretrainingObjective):
            parts = (POOLER, LM_HEAD, Part.of("length_head", Classifier, num_outputs=2, logits="length_logits"))
            arrangement = "sentences"
            titles = {"length_accuracy": "Long or short"}
            derived = ("cls_positions", "length_labels", "length_weights")

            def terms(self, config):
                length = base.prediction("length_logits", "length_labels", "length_weights", 0.5, baseline="none")
                return {"mlm": base.MLM, "length": length}

            def inputs(self, batch):
                mask, weights = batch["attention_mask"], batch["row_weights"][:, None]
                labels = (jnp.mean(mask, axis=1, keepdims=True) > 0.5).astype(jnp.int32)
                places = jnp.zeros_like(labels)
                return {**batch, "cls_positions": places, "length_labels": labels, "length_weights": weights}
    ''',
    "models/encoders/bag.py": '''
        """Each token beside the mean of its row: an encoder without attention."""
        import dataclasses
        import jax.numpy as jnp
        from flax import linen as nn
        from bert_jax.models.config import ModelConfig
        from bert_jax.models.encoding import Encoding
        from bert_jax.models.heads import LmHead, Pooler
        from bert_jax.models.primitives import Dense, LayerNorm, normal, with_axes

        SIZES = {}

        @dataclasses.dataclass(frozen=True)
        class Config(ModelConfig):
            """No fields of its own."""

        class Encoder(nn.Module):
            config: Config
            reads = frozenset()

            @nn.compact
            def __call__(self, batch, rng=None, hidden_states="last"):
                c, mask = self.config, batch["attention_mask"][..., None]
                shape = (c.vocab_size, c.hidden_size)
                table = self.param("word_embeddings", with_axes(normal(c), "vocab", "embed"), shape, c.param_dtype)
                x = jnp.take(table, batch["input_ids"], axis=0)
                mean = jnp.sum(x * mask, axis=1, keepdims=True) / jnp.sum(mask, axis=1, keepdims=True)
                x = Dense(c, (("embed", c.hidden_size),), ((None, c.hidden_size),), name="mix")(x + mean)
                x = LayerNorm(c, name="layer_norm")(x)
                return Encoding(x, table, x[None] if hidden_states == "all" else None)
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
    assert all(len([line for line in text.splitlines() if line.strip()]) <= 40 for text in PARTS.values())
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
