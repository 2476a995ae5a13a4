"""A new strategy, arrangement, encoder and objective are one short file each: nothing else is touched."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bert_jax
from tests import toy

PARTS = {
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
}
OWN = {"bert": {"encoder": "bert"}, "bag": {"encoder": "bag"}}
RUNS = {  # model, objective, with what packing
    "all new": ("bag", {"name": "mlm_length", "arrangement": "single_sentences"}, "every_other", "none"),
    "new encoder": ("bag", {"name": "mlm_nsp"}, "token", "none"),
    "new arrangement and strategy": (
        "bert",
        {"name": "mlm", "arrangement": "single_sentences"},
        "every_other",
        "packed",
    ),
    "new objective": ("bert", {"name": "mlm_length", "arrangement": "sentences"}, "whole_unit", "none"),
}
RUN = """
import json, sys
from tests.toy import one_device
from bert_jax.cli.main import run
with one_device():
    for argv in json.loads(sys.stdin.read()):
        print(argv[-1], run(argv), flush=True)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the four files in it."""
    folder = tmp_path_factory.mktemp("one_file")
    source = Path(bert_jax.__file__).parent
    shutil.copytree(source, folder / "bert_jax", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in PARTS.items():
        lines = [line[8:] for line in text.strip("\n").splitlines()]
        assert 10 <= len([line for line in lines if line.strip()]) <= 25, name
        (folder / "bert_jax" / name).write_text("\n".join(lines).rstrip() + "\n")
    return folder


def test_four_files_are_pretrained_with_old_and_new_partners(package: Path, tmp_path: Path) -> None:
    text, commands = toy.write_text(tmp_path / "text.txt", documents=40), []
    for name, (encoder, objective, strategy, packing) in RUNS.items():
        masking = {"strategy": strategy, **({"unit": "word"} if strategy == "whole_unit" else {})}
        recipe = toy.recipe(
            text,
            model=OWN[encoder],
            objective={**objective, "packing": packing, "masking": masking},
            phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": 32}},
            schedule={"warmup_steps": 1},
            training={"log_every_steps": 2, "eval_every_steps": 4, "loggers": ()},
        )
        folder = tmp_path / name.replace(" ", "_")
        path = toy.write_recipe(tmp_path / f"{folder.name}.json", recipe)
        commands.append(["pretrain", f"--config={path}", f"--workdir={folder}"])
    root = Path(__file__).parents[1]
    environment = toy.environment() | {"PYTHONPATH": f"{package}:{root}"}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        env=environment,
        cwd=package,
        check=False,
        timeout=600,
    )
    ended = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines() if line.startswith("--workdir"))
    assert list(ended.values()) == ["0"] * len(RUNS), done.stdout[-3000:] + done.stderr[-3000:]
    for name in RUNS:
        lines = (tmp_path / name.replace(" ", "_") / "metrics.jsonl").read_text().splitlines()
        losses = [line for line in map(json.loads, lines) if line["split"] == "eval"]
        assert losses[-1]["mlm_loss"] < losses[0]["mlm_loss"], name
