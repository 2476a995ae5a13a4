"""A run of MASS: what it leaves can be read by other commands, or is refused in a line; killed, it ends the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.checkpoints.restoring import read_params
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.encoders import seq2seq
from bert_jax.models.model import fresh_params
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.tokenizer import wordpiece
from tests import toy
from tests.training import gang

MASS = (
    "--config.objective.name=mass",
    "--config.objective.packing=packed",
    *(f"--config.model.{name}={value}" for name, value in toy.MODELS["mass"].items()),
    "--config.export=False",
)


def pretrain(folder: Path, name: str, *flags: str, **changes: Any) -> Path:
    recipe = toy.recipe(
        toy.write_text(folder / "text.txt"),
        phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": 32}},
        schedule={"warmup_steps": 1},
        training={"log_every_steps": 4, "eval_every_steps": 4, "eval_rows": 8, "loggers": ()},
        **changes,
    )
    path = toy.write_recipe(folder / f"{name}.json", recipe)
    assert run(["pretrain", f"--config={path}", f"--workdir={folder / name}", *flags]) == 0
    return folder / name


@pytest.mark.heavy
def test_its_encoder_gives_vectors_and_it_writes_no_masks(
    tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its examples have masks, which a decoder does not fill; a BERT begins both of its halves."""
    objective = {"name": "mass", "packing": "packed"}
    of_bert = pretrain(tmp_path, "bert", examples=(), export=False)
    made = pretrain(
        tmp_path,
        "mass",
        f"--init={of_bert}",
        objective=objective,
        model={**toy.MODELS["mass"], "layers": "scanned"},
        export=False,
    )
    said = capsys.readouterr().err
    assert "the model goes on with held-out text:" in said
    assert f"generate --workdir={made}" in said
    assert f"starting from {of_bert}; left out: nsp_head, pooler; the cross-attention of the decoder is fresh" in said
    assert "held-out fragment loss" in said
    assert "better than 3-gram" in said or "worse than 3-gram" in said
    model = bert_jax.load(str(made))
    assert model.config.decodes
    assert model.encode(["the cat sees the river.", "a dog."]).shape == (2, 32)
    assert run(["fill-mask", f"--workdir={made}", "a [MASK]."]) == 2
    assert "error: a model with a decoder writes text and cannot fill a [MASK]" in capsys.readouterr().err
    assert run(["export", f"--workdir={made}", f"--output={tmp_path / 'out'}"]) == 2
    assert "transformers has no class for it" in capsys.readouterr().err


def test_what_reads_no_decoder_reads_the_encoder_or_is_refused() -> None:
    tokenizer = wordpiece((*SPECIAL_TOKENS, "the", "cat", "sees"))
    config = seq2seq.Config(tokenizer.size, 16, 1, 2, 32, max_length=16, num_decoder_layers=1, lm_head="bert")
    params = jax.tree.map(np.asarray, fresh_params(config))
    model = TrainedModel("there", {name: params[name] for name in ("encoder", "mlm_head")}, config, tokenizer)
    assert model.encode(["the cat sees", "the cat"]).shape == (2, 16)
    with pytest.raises(UserError, match=r"^a model with a decoder writes text and cannot fill a \[MASK\]"):
        model.fill_mask("the [MASK]")


def test_a_model_without_a_decoder_is_refused_before_text_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = toy.write_recipe(
        tmp_path / "mass.json", toy.recipe(tmp_path / "no text", objective={"name": "mass"}, export=False)
    )
    assert run(["pretrain", f"--config={recipe}", f"--workdir={tmp_path / 'run'}"]) == 2
    assert "error: objective 'mass' trains an encoder with a decoder, and encoder 'bert'" in capsys.readouterr().err


@pytest.mark.heavy
def test_a_run_is_killed_resumed_and_of_two_processes(tmp_path: Path) -> None:
    """On packed rows, with dropout; a resume has the same bits."""
    training = {"log_every_steps": 5, "eval_every_steps": 30, "eval_rows": 20}
    inputs = gang.make_inputs(tmp_path, 60, training=training)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    found = gang.finish(inputs, whole, 1, *MASS)
    assert found[-1]["fragment_loss"] < found[0]["fragment_loss"]
    gang.assert_same_losses(gang.finish(inputs, tmp_path / "two", 2, *MASS), found)
    gang.kill_after(inputs, cut, [*MASS])
    assert gang.finish(inputs, cut, 1, *MASS) == found
    gang.assert_same_model(cut, whole)
    crossed = read_params(str(whole))[0]["encoder"]["decoder"]
    assert all(np.isfinite(leaf).all() for leaf in crossed["layer_0"]["cross_attention"]["query"].values())
