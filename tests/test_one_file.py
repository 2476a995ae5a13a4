"""A new part of any kind (see PARTS) is one short file: nothing else is touched."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.cli.main import run
from tests import toy
from tests.training import gang

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
PAGE = (Path(bert_jax.__file__).parent / "objectives" / "README.md").read_text(encoding="utf-8")
for kind, file in (("optimizers", "two_rules.py"), ("schedules", "root.py")):  # as the page has them
    [PARTS[f"training/{kind}/{file}"]] = re.findall(
        rf"`{file}`[^`]*\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
    )
[PARTS["rows/strategies/rare_pieces.py"]] = re.findall(
    r"`rare_pieces.py`[^`]*`token`[^`]*\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)
# AdamW as it is put together from optax, to be compared with the one of the package.
ADAM = """
    import dataclasses
    import optax
    from bert_jax.training.optimizers import base

    @dataclasses.dataclass(frozen=True)
    class Optimizer(base.Rule):
        def make(self):
            decay = optax.add_decayed_weights(0.01, mask=base.decay_mask)
            return optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(eps=1e-6), decay)
"""
RULES = {"optimizer": {"name": "two_rules"}, "schedule": {"name": "root", "warmup_steps": 1}}
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
    "new strategy that reads tokens": ("bert", {"name": "mlm", "arrangement": "sentences"}, "rare_pieces", "packed"),
    "new optimizer and schedule": ("bert", {"name": "mlm"}, "token", "none"),
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
    """A copy of the package with the files of PARTS in it."""
    folder = tmp_path_factory.mktemp("one_file")
    source = Path(bert_jax.__file__).parent
    shutil.copytree(source, folder / "bert_jax", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in PARTS.items():
        lines = [line for line in textwrap.dedent(text).strip().splitlines() if line.strip()]
        assert 9 <= len(lines) <= 25, name
        (folder / "bert_jax" / name).write_text(textwrap.dedent(text))
    return folder


def test_new_files_are_pretrained_with_old_and_new_partners(package: Path, tmp_path: Path) -> None:
    text, commands = toy.write_text(tmp_path / "text.txt", documents=40), []
    for name, (encoder, objective, strategy, packing) in RUNS.items():
        masking = {"strategy": strategy, **({"unit": "word"} if strategy == "whole_unit" else {})}
        recipe = toy.recipe(
            text,
            objective={**objective, "packing": packing, "masking": masking},
            phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": 32}},
            **(RULES if "optimizer" in name else {"schedule": {"warmup_steps": 1}}),
            training={"log_every_steps": 2, "eval_every_steps": 4, "loggers": ()},
        )
        recipe["model"] = {"encoder": encoder, **(recipe["model"] if encoder == "bert" else {"hidden_size": 32})}
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


def test_an_evaluation_of_ones_own_beside_a_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's, by its path: killed, resumed, and what selects the best step. It is part of that run."""
    page = (Path(bert_jax.__file__).parent / "objectives/README.md").read_text(encoding="utf-8")
    codes = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    [code] = [code for code in codes if "class Evaluator" in code]
    assert len(code.splitlines()) <= 40
    own, pairs, tables = tmp_path / "pairs.py", tmp_path / "pairs.tsv", {"train": 40, "dev": 20}
    own.write_text(code)
    pairs.write_text("the cat sees the river.\triver the sees cat the.\na dog finds a letter.\tdog letter a a finds.\n")
    for name, count in tables.items():
        lines = [f"the {('cat', 'ship')[i % 2]} sees {i}\t{i % 2}" for i in range(count)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    data = {"format": "delimited", "splits": {name: f"{name}.tsv" for name in tables}}
    probe = {"name": "probe", "every": 2, "task": "classification", "folder": str(tmp_path), "data": data}
    training = {"log_every_steps": 5, "eval_every_steps": 10, "eval_rows": 20, "evaluations": {"probe": probe}}
    recipe = gang.make_inputs(tmp_path, 80, training=training, selection={"metric": "pairs/accuracy"})
    named = "--config.training.evaluations.pairs"
    flags = [f"{named}.name={own}", f"{named}.pairs={pairs}"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    found = {record["step"]: record for record in gang.finish(recipe, whole, 1, *flags) if record["split"] == "eval"}
    assert [step for step, record in found.items() if "pairs/accuracy" in record] == [*range(0, 81, 10)]
    assert [step for step, record in found.items() if "probe/accuracy" in record] == [*range(0, 81, 20)]
    scores = [found[step]["pairs/accuracy"] for step in range(10, 81, 10)]
    assert max(saved_steps(str(whole / "best"))) == 10 * (1 + scores.index(max(scores)))

    gang.kill_after(recipe, cut, flags)
    gang.finish(recipe, cut, 1, *flags)
    assert gang.records(cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)

    recorded = json.loads((cut / "run.json").read_text())
    name = recorded["config"]["training"]["evaluations"]["pairs"]["name"]
    assert name.startswith("pairs.py@")
    assert (cut / "code" / name.partition("@")[2] / "pairs.py").read_text() == code
    for file, changed in ((own, f"evaluations.pairs.name: '{name}' -> 'pairs.py@"), (pairs, "pairs: 'pairs.tsv@")):
        before = file.read_text()
        file.write_text(before + "\n")
        assert run(["pretrain", f"--config={recipe}", f"--workdir={cut}", *flags]) == 2
        assert changed in capsys.readouterr().err
        file.write_text(before)


def test_a_teacher_is_killed_resumed_and_read_by_two_processes(tmp_path: Path) -> None:
    """The objective of the page, whose teacher is the workdir of a run."""
    [code] = re.findall(r"^```python\n(\"\"\"[^`]*a teacher says.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    own, teacher, moved = tmp_path / "teacher.py", tmp_path / "first", tmp_path / "moved"
    own.write_text(code)
    training = {"log_every_steps": 5, "eval_every_steps": 30, "eval_rows": 20}
    recipe = gang.make_inputs(tmp_path, 60, training=training)
    gang.finish(recipe, teacher, 1, "--config.phases.phase1.num_steps=10", "--config.model.hidden_size=64")
    flags = [f"--config.objective.name={own}", "--config.objective.temperature=3.0"]
    named = [*flags, f"--config.objective.teacher={teacher}"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    found = gang.finish(recipe, whole, 1, *named)
    assert found[-1]["teacher_loss"] < found[0]["teacher_loss"]
    gang.assert_same_losses(gang.finish(recipe, tmp_path / "two", 2, *named), found)

    gang.kill_after(recipe, cut, named)
    teacher.rename(moved)
    assert gang.finish(recipe, cut, 1, *flags, f"--config.objective.teacher={moved}") == found
    gang.assert_same_model(cut, whole)


def test_a_strategy_by_path_masks_rare_pieces_more_often(tmp_path: Path) -> None:
    """The number of masks is the same; the bound on the share of rare pieces is that of binomial draws."""
    text, file = toy.write_text(tmp_path / "text.txt", documents=120), tmp_path / "rare_pieces.py"
    file.write_text(PARTS["rows/strategies/rare_pieces.py"])
    recipe = toy.recipe(
        text,
        objective={"name": "mlm", "arrangement": "sentences", "packing": "packed"},
        phases={"phase1": {"num_steps": 40, "batch_size": 8, "max_length": 32}},
        training={"log_every_steps": 20, "eval_every_steps": 40, "eval_rows": 8, "loggers": ()},
        examples=(),
        export=False,
    )
    path, found = toy.write_recipe(tmp_path / "recipe.json", recipe), {}
    for strategy in ("token", str(file)):
        workdir, key = tmp_path / Path(strategy).stem, "objective.masking.strategy"
        with toy.one_device():
            assert run(["pretrain", f"--config={path}", f"--workdir={workdir}", f"--config.{key}={strategy}"]) == 0
        batches = bert_jax.batches(str(path), workdir, overrides={key: strategy})
        special = [*batches.tokenizer.special_ids]
        whole, labels = [], []
        for batch in batches:
            row, slot = np.nonzero(batch["masked_weights"])
            ids = batch["input_ids"].copy()  # as before masking
            ids[row, batch["masked_positions"][row, slot]] = batch["masked_labels"][row, slot]
            whole.append(ids[~np.isin(ids, special)])
            labels.append(batch["masked_labels"][row, slot])
        found[Path(strategy).stem] = np.concatenate(whole), np.concatenate(labels)
    text_ids, plain = found["token"]
    np.testing.assert_array_equal(found["rare_pieces"][0], text_ids)  # the same rows, up to their masks
    rare = np.bincount(text_ids) < np.median(np.bincount(text_ids)[text_ids])  # bool [V]
    share = rare[text_ids].mean()
    assert len(found["rare_pieces"][1]) == len(plain) > 1000
    assert 0.2 < share < 0.6
    for name, (_, labels) in found.items():
        z = (rare[labels].sum() - share * len(labels)) / np.sqrt(share * (1 - share) * len(labels))
        assert z > 6 if name == "rare_pieces" else abs(z) < 4, (name, z)


# ---- Optimizers and schedules by path --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe of 6 steps, whose matrices 8 devices divide, and with files of a user's own."""
    folder = tmp_path_factory.mktemp("own")
    files = {Path(name).name: text for name, text in PARTS.items() if name.startswith("training/")} | {"adam.py": ADAM}
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))
    recipe = toy.recipe(
        toy.write_text(folder / "text.txt", documents=40),
        objective={"name": "mlm"},
        model={"hidden_size": 32, "num_layers": 1, "num_heads": 2, "mlp_dim": 128, "max_length": 32},
        optimizer={"name": "adamw", "bias_correction": "standard"},
        phases={"phase1": {"num_steps": 6, "batch_size": 8, "max_length": 32}},
        schedule={"name": "linear", "warmup_steps": 2},
        training={"log_every_steps": 1, "eval_every_steps": 6, "eval_rows": 8, "loggers": ()},
        checkpoints={"every_steps": 3},
        examples=(),
        export=False,
    )
    toy.write_recipe(folder / "recipe.json", recipe)
    return folder


def pretrain(own: Path, workdir: Path, *flags: str) -> dict[str, np.ndarray]:
    """Run the command; return the curves of the run."""
    assert run(["pretrain", f"--config={own / 'recipe.json'}", f"--workdir={workdir}", *flags]) == 0
    every = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in every if line["split"] == "train"]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    return {name: np.array([line[name] for line in lines]) for name in ("loss", "gradient_norm", "learning_rate")}


def test_adam_of_optax_in_a_file_of_ones_own_has_the_curve_of_adamw(own: Path, tmp_path: Path) -> None:
    with toy.one_device():
        theirs = pretrain(own, tmp_path / "adamw")
        ours = pretrain(own, tmp_path / "own", f"--config.optimizer.name={own / 'adam.py'}")
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)


def test_two_rules_by_path_on_every_layout_and_resumed(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--config.optimizer.name={own / 'two_rules.py'}", f"--config.schedule.name={own / 'root.py'}"]
    with toy.one_device():
        one = pretrain(own, tmp_path / "one", *flags)
    np.testing.assert_allclose(one["learning_rate"], 1e-3 * np.sqrt(2) / np.sqrt([np.inf, 8, 2, 3, 4, 5]), rtol=1e-6)
    for update in ("replicated", "sharded"):
        found = pretrain(own, tmp_path / update, *flags, f"--config.mesh.weight_update={update}")
        for name, values in one.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, err_msg=f"{update}: {name}")
    assert "divide no axis" not in capsys.readouterr().err
    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "sharded", cut)
    shutil.rmtree(cut / "checkpoints" / "6")
    pretrain(own, cut, *flags)
    params = [jax.tree.leaves(read_params(str(workdir))[0]) for workdir in (tmp_path / "sharded", cut)]
    for unbroken, resumed in zip(*params, strict=True):
        np.testing.assert_array_equal(unbroken, resumed)
    (own / "two_rules.py").write_text((own / "two_rules.py").read_text() + "# another\n")
    assert run(["pretrain", f"--config={own / 'recipe.json'}", f"--workdir={cut}", *flags]) == 2
    assert "config.optimizer.name: 'two_rules.py@" in capsys.readouterr().err


# ---- A phase with another objective, by path -------------------------------------------------------------------------

AHEAD = '''
"""Left to right, and each position says the token after the next one too."""

import jax.numpy as jnp

from bert_jax.models.heads import LmHead
from bert_jax.models.model import LM_HEAD, Part
from bert_jax.objectives import base, ltr
from bert_jax.objectives.base import Config  # no keys of its own


class AheadHead(LmHead):
    logits: str = "ahead_logits"


class Objective(ltr.Objective):
    parts = (LM_HEAD, Part.of("ahead_head", AheadHead))
    derived = (*ltr.Objective.derived, "ahead_labels", "ahead_weights")

    def terms(self, config):
        return {**super().terms(config), "ahead": base.prediction("ahead_logits", "ahead_labels", "ahead_weights")}

    def inputs(self, batch):
        batch = super().inputs(batch)
        labels, weights = (
            jnp.pad(batch[f"next_token_{name}"][:, 1:], ((0, 0), (0, 1))) for name in ("labels", "weights")
        )
        return {**batch, "ahead_labels": labels, "ahead_weights": weights * batch["next_token_weights"]}
'''


def test_a_phase_with_another_objective(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's own, killed in its phase and in the next one. What is left is the model of the last phase."""
    assert len(AHEAD.strip().splitlines()) <= 40
    own = tmp_path / "ahead.py"
    own.write_text(AHEAD)
    recipe = gang.make_inputs(tmp_path, 40, checkpoints={"every_steps": 10, "keep": 100}, export=True)
    phase = {"num_steps": 40, "batch_size": 8, "max_length": 32}
    flags = [
        f"--config.phases={ {'phase1': phase, 'phase2': phase} }",
        f"--config.phases.phase1.objective.name={own}",
        "--config.objective.name=mlm",
        "--config.examples=('the [MASK] sees the river.',)",
    ]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gang.finish(recipe, whole, 1, *flags)
    for step in (10, 50):
        gang.kill_after(recipe, cut, flags, step)
    gang.finish(recipe, cut, 1, *flags)
    assert gang.records(cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)

    found = {split: [r for r in gang.records(cut) if r["split"] == split] for split in ("train", "eval")}
    for record in found["train"]:
        assert ("ahead_loss" in record, "mlm_loss" in record) == (
            (True, False) if record["step"] <= 40 else (False, True)
        )
    assert all("mlm_loss" in record and "lm_loss" not in record for record in found["eval"])
    at_change, at_end = (read_params(str(cut), step)[0] for step in (40, 80))
    assert at_change.keys() == {"encoder", "mlm_head", "ahead_head"}
    jax.tree.map(np.testing.assert_array_equal, at_end["ahead_head"], at_change["ahead_head"])

    trained = bert_jax.load(str(cut))
    assert trained.params.keys() == {"encoder", "mlm_head"}
    assert not trained.config.causal
    capsys.readouterr()
    for model in (f"--workdir={cut}", f"--workdir={cut / 'hugging_face'}"):
        assert run(["fill-mask", model, "the [MASK] sees the river."]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :], "what a run fills is what its export fills"
    assert json.loads((cut / "hugging_face" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    own.write_text(AHEAD + "\n# another\n")
    assert run(["pretrain", f"--config={recipe}", f"--workdir={cut}", *flags]) == 2
    assert "config.phases.phase1.objective.name: 'ahead.py@" in capsys.readouterr().err


def test_two_tasks_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's own beside masked language modelling, killed: each has its batches, metrics and held-out rows."""
    own = tmp_path / "ahead.py"
    own.write_text(AHEAD)
    recipe = gang.make_inputs(tmp_path, 60, checkpoints={"every_steps": 10})
    members = {"masked": {"name": "mlm"}, "ours": {"name": str(own), "share": 0.5}}
    flags = [f"--config.objective={{'packing': 'packed', 'arrangement': 'sentences', 'members': {members}}}"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gang.finish(recipe, whole, 1, *flags)
    gang.kill_after(recipe, cut, flags)
    gang.finish(recipe, cut, 1, *flags)
    assert gang.records(cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)

    train = [record for record in gang.records(cut) if record["split"] == "train"]
    ahead = [record for record in train if "ahead_loss" in record]
    assert all(("mlm_loss" in record) != ("ahead_loss" in record) for record in train)
    assert 10 <= len(ahead) <= 30, "a third of the batches"
    first, *_, last = (record for record in gang.records(cut) if record["split"] == "eval")
    for name in ("mlm_loss/masked", "lm_loss/ours", "ahead_loss/ours", "mlm_loss", "ahead_loss"):
        assert last[name] < first[name], name
    assert "mlm_loss/ours" not in last
    assert bert_jax.load(str(cut)).params.keys() == {"encoder", "mlm_head", "ahead_head"}
    recorded = json.loads((cut / "run.json").read_text())["config"]["objective"]["members"]["ours"]["name"]
    assert recorded.startswith("ahead.py@")
    assert run(["fill-mask", f"--workdir={cut}", "the [MASK] sees the river."]) == 0
