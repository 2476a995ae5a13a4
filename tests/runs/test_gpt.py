"""Runs of GPTs with the published form of their tokenizers: trained, exported, gone on from, fine-tuned; bad input."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import bert_jax
from bert_jax.cli.main import run
from bert_jax.recipes import recipes
from bert_jax.tasks import tagging
from bert_jax.text.tokenizer import of_json
from tests import toy
from tests.interchange.numpy_gpt import gpt_outputs
from tests.models.golden_gpt import loss_of
from tests.tasks import toy_tasks
from tests.text.gpt_files import END, FORMS, write

SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "mlp_dim": 128, "max_length": 64, "dtype": "float32"}


def recipe(folder: Path, kind: str, **changes: Any) -> dict[str, Any]:
    """The shipped recipe with a tiny model, two steps, and the tokenizer's files of ``kind`` in ``folder``."""
    (folder / "vocab").mkdir(exist_ok=True)
    write(folder / "vocab", FORMS[kind][1]())
    small = toy.recipe(toy.write_text(folder / "text.txt"))
    config = recipes.load(kind).to_dict()
    model = {"encoder": kind, **SIZES}
    phases = {"pretraining": {"num_steps": 2, "batch_size": 8, "max_length": 32}}
    training = {"log_every_steps": 1, "eval_every_steps": 2, "eval_rows": 8, "loggers": ()}
    config |= {"corpus": small["corpus"], "model": model, "phases": phases, "training": training}
    config["schedule"] = config["schedule"] | {"warmup_steps": 1}
    config |= {"loader": {"num_workers": 0}, "checkpoints": {"every_steps": 2, "keep": 1}, "examples": ()}
    config["vocab"] = {"path": str(folder / "vocab")}
    return config | changes


Trained = Callable[[str], tuple[Path, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return a function from a kind to the workdir of a run of two steps, and what the run said."""

    @functools.cache
    def of(kind: str) -> tuple[Path, str]:
        folder, said = tmp_path_factory.mktemp(kind), io.StringIO()
        path = toy.write_recipe(folder / "recipe.json", recipe(folder, kind))
        with toy.one_device(), contextlib.redirect_stderr(said):
            assert run(["pretrain", f"--config={path}", f"--workdir={folder / 'run'}"]) == 0
        return folder / "run", said.getvalue()

    return of


# GPT-1 differs in its layers, which tests/models/test_gpt.py compares with torch, and in names of tensors, which
# tests/interchange/test_families.py compares.
KINDS = ["gpt2", pytest.param("gpt", marks=pytest.mark.heavy)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_exports_what_its_model_computes(trained: Trained, kind: str) -> None:
    first, said = trained(kind)
    name = {"gpt2": "GPT2LMHeadModel", "gpt": "OpenAIGPTLMHeadModel"}[kind]
    assert f"exported to {first}/hugging_face: {name}, " in said
    vocab = FORMS[kind][0]()["model"]["vocab"]
    assert f"vocabulary: {len(vocab)} pieces" in said

    out = first / "hugging_face"
    described = json.loads((out / "config.json").read_text())
    end = vocab.get(END)
    assert [described[f"{n}_token_id"] for n in ("pad", "bos", "eos")] == [end or 0, end, end]
    assert "is_decoder" not in described
    template = json.loads((out / "tokenizer.json").read_text())["post_processor"]
    assert [[*part] for part in template["single"]] == [["Sequence"]]  # a prompt is not ended
    model, again = (bert_jax.load(str(folder)) for folder in (first, out))
    assert model.tokenizer.sha256 == again.tokenizer.sha256
    ids = np.array([model.tokenizer.encode("the cat sees the river.").input_ids], np.int32)
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    logits = np.asarray(loss_of(model.config, model.params, batch)[1])
    np.testing.assert_array_equal(logits, loss_of(again.config, again.params, batch)[1])
    tensors = load_file(out / "model.safetensors")
    vectors = gpt_outputs(tensors, model.config, batch, frozenset())["sequence"]
    table = next(array for key, array in tensors.items() if key.endswith(("wte.weight", "tokens_embed.weight")))
    np.testing.assert_allclose(logits, vectors @ table.T, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_is_gone_on_from(
    tmp_path: Path, trained: Trained, kind: str, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    first = trained(kind)[0]
    on = toy.write_recipe(tmp_path / "on.json", recipe(tmp_path, kind, model={}, vocab={}))
    init = f"--init={first / 'hugging_face'}"
    assert run(["pretrain", f"--config={on}", init, f"--workdir={tmp_path / 'on'}"]) == 0
    assert "fresh" not in capsys.readouterr().err
    before, after = (jax.tree.leaves(bert_jax.load(str(f)).params) for f in (first, tmp_path / "on"))
    assert all(x.shape == y.shape for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("task", "exported"), [("classification", False), pytest.param("tagging", True, marks=pytest.mark.heavy)]
)
def test_fine_tuned_from_a_model_and_its_published_tokenizer(
    tmp_path: Path, trained: Trained, task: str, exported: bool, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text ends with the end token, whose vector is classified. Transformers has a class for tags alone."""
    first = trained("gpt2")[0]
    data, workdir = tmp_path / "data", tmp_path / "tuned"
    data.mkdir()
    toy_tasks.write_toy(data, task, train=16, dev=8)
    tuning = toy_tasks.recipe(task) | {"vocab": {}, "model": {}, "export": True}
    path = toy.write_recipe(tmp_path / "task.json", tuning)
    capsys.readouterr()
    assert run(["finetune", f"--config={path}", f"--data={data}", f"--init={first}", f"--workdir={workdir}"]) == 0
    said = capsys.readouterr().err
    if exported:
        assert "hugging_face: GPT2ForTokenClassification, " in said
        template = json.loads((workdir / "hugging_face" / "tokenizer.json").read_text())["post_processor"]
        assert template["single"][-1] == {"SpecialToken": {"id": "end", "type_id": 0}}
        tokenizers = {bert_jax.load(str(folder)).tokenizer.sha256 for folder in (first, workdir / "hugging_face")}
        assert len(tokenizers) == 1
    else:
        assert "not exported: transformers has no class with this head" in said
        assert "pooler" not in bert_jax.load(str(workdir)).params


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"objective": {"name": "mlm", "arrangement": "sentences"}},
            "objective 'mlm' reads both sides, and encoder 'gpt2' reads what came before alone; take another",
        ),
        (
            {"objective": {"name": "ltr"}},
            "config.objective.arrangement 'sentence_pairs' needs the token [SEP], which the tokenizer lacks",
        ),
        (
            {"objective": {"name": "mlm", "arrangement": "sentences"}, "model": SIZES | {"encoder": "bert"}},
            "masking (config.objective.masking) needs the token [MASK], which the tokenizer lacks",
        ),
        ({"model": SIZES | {"encoder": "gpt", "mlp_dim": 64}}, "config.model.mlp_dim is 64; a GPT has four times hid"),
    ],
)
def test_what_does_not_fit_is_one_line_before_text_is_read(
    tmp_path: Path, changes: Any, said: str, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = toy.write_recipe(tmp_path / "recipe.json", recipe(tmp_path, "gpt2", **changes))
    assert run(["pretrain", f"--config={path}", f"--workdir={tmp_path / 'run'}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == [line for line in lines if said in line]
    assert not (tmp_path / "run" / "corpus").exists()


@pytest.mark.parametrize("kind", FORMS)
def test_words_to_tag_stand_before_the_end_token(kind: str) -> None:
    """The first piece of each word has its number; nothing stands before the first word."""
    tokenizer = of_json(FORMS[kind][0]())
    setting = toy_tasks.make_task("tagging", {"train": toy_tasks.examples("tagging", 1)}).setting
    example = {"id": "0", "words": ["the", "cat", "Hello"], "tags": ["O"] * 3}
    setting = dataclasses.replace(setting, splits={"train": (example,)}, tokenizer=tokenizer, max_length=32)
    rows = tagging.Task(tagging.Config(metrics="accuracy"), setting).rows["train"].sequences
    pieces = [tokenizer.encode_batch([tokenizer.joiner + word])[0].tolist() for word in example["words"]]
    after = list(tokenizer.around[1])
    assert rows["input_ids"].tolist() == [*sum(pieces, []), *after]
    firsts = [[number, *[0] * (len(ids) - 1)] for number, ids in enumerate(pieces, 1)]
    assert rows["word_ids"].tolist() == [*sum(firsts, []), *[0] * len(after)]


def test_pairs_and_masks_of_a_gpt_are_refused(
    tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(bert_jax.UserError, match="no size 'huge'; there are tiny, small, medium, large, xl"):
        recipes.load("gpt2:huge")
    write(tmp_path, FORMS["gpt2"][1]())
    assert run(["tokenize", f"--vocab={tmp_path}", "a", "b"]) == 2
    assert "a pair of texts needs the token [SEP], which the tokenizer lacks" in capsys.readouterr().err
    assert run(["tokenize", f"--vocab={tmp_path}", "the cat"]) == 0
    assert END in capsys.readouterr().out
