"""``bert-jax grow``: a larger model begins with the weights of a smaller one, and a pretraining goes on from it."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.conversion import tensors_of
from bert_jax.interchange.hugging_face import export_model, exported_head
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.model import encoder_file
from bert_jax.resizing.growing import grown, layers_of, tiled
from tests import toy
from tests.interchange.small_model import TOKENIZER, assert_same
from tests.models.helpers import random_params

SMALL = {"num_layers": 2, "hidden_size": 128, "num_heads": 2, "mlp_dim": 256}  # of an encoder without a size "tiny"


def model(encoder: str, **fields: int) -> TrainedModel:
    file = encoder_file(encoder)
    config = file.Config(vocab_size=TOKENIZER.size, max_length=32, **file.SIZES.get("tiny", SMALL) | fields)
    return TrainedModel("the small one", random_params(config), config, TOKENIZER)


def tensors(one: TrainedModel) -> dict[str, np.ndarray]:
    """Return the tensors as transformers names and lays them out: [output, input]."""
    return tensors_of(one.params, one.config, exported_head(one))[0]


def wrapped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return what numpy's own padding makes."""
    more = [new - old for old, new in zip(array.shape, shape, strict=True)]
    return np.pad(array, [(n // 2, n - n // 2) for n in more], mode="wrap")


def test_the_layers_of_modernbert_large():
    expected = "0 1 2 2 3 4 5 6 6 7 8 9 9 10 11 12 13 13 14 15 16 16 17 18 19 20 20 21"
    assert " ".join(map(str, layers_of(22, 28))) == expected
    assert layers_of(12, 24)[:6] == [0, 0, 1, 2, 2, 2]  # round of Python: a half goes to the even number
    assert layers_of(2, 5) == [0, 0, 1, 1, 1]
    assert layers_of(4, 4) == [0, 1, 2, 3]


@pytest.mark.parametrize(("old", "new"), [((5,), (12,)), ((4,), (13,)), ((3, 4), (8, 4)), ((6, 5), (7, 23))])
def test_an_array_is_padded_with_itself(old, new):
    array = np.random.default_rng(0).normal(size=old).astype(np.float32)
    np.testing.assert_array_equal(tiled(array, new), wrapped(array, new))


@pytest.mark.parametrize(("encoder", "size"), [("bert", "mini"), ("albert", "mini")])
def test_each_tensor_begins_as_one_of_the_small_model(encoder, size):
    small = model(encoder)
    before, after = tensors(small), tensors(grown(small, size))
    begins = [0, 0, 1, 1]  # in 4 layers of 2; ALBERT has the weights of one
    for name, array in after.items():
        source = re.sub(r"\blayer\.(\d+)", lambda layer: f"layer.{begins[int(layer[1])]}", name)
        np.testing.assert_array_equal(array, wrapped(before[source], array.shape), err_msg=name)


def test_a_model_of_equal_size_stays_as_it_is():
    small = model("modernbert")
    assert_same(grown(small, "tiny").params, {part: small.params[part] for part in ("encoder", "mlm_head")})


def test_queries_keys_values_and_gates_are_tiled_apart(tmp_path, one_device, capsys):
    small = model("modernbert", num_layers=3, global_every=1)  # layers of one form are compiled once
    export_model(small, tmp_path / "small", "the card")
    grow = ["grow", f"--init={tmp_path / 'small'}", "--size=ettin_17m", f"--output={tmp_path / 'large'}"]
    assert run(grow) == 0
    begins = [0, 0, 1, 1, 2, 2, 2]
    assert f"its layers begin as these of {tmp_path / 'small'}: 0 0 1 1 2 2 2" in capsys.readouterr().out
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("small", "large"))
    for name, array in after.items():
        source = re.sub(r"(?<=layers\.)\d+", lambda layer: str(begins[int(layer[0])]), name)
        if source == "model.layers.0.attn_norm.weight":  # the first layer has none
            np.testing.assert_array_equal(array, np.ones(256))
            continue
        together = 3 if ".Wqkv." in name else 2 if ".Wi." in name else 1
        alone = zip(np.split(before[source], together), np.split(array, together), strict=True)
        for old, new in alone:
            np.testing.assert_array_equal(new, wrapped(old, new.shape), err_msg=name)
    assert {name.partition(".layers.")[0] for name in after} == {name.partition(".layers.")[0] for name in before}
    assert load(str(tmp_path / "large")).config == dataclasses.replace(
        small.config, **encoder_file("modernbert").SIZES["ettin_17m"]
    )
    assert begins_pretraining(tmp_path) == 0
    assert f"starting from {tmp_path / 'large'}\n" in capsys.readouterr().err
    of_run = ["grow", f"--init={tmp_path / 'run'}@1", "--size=ettin_17m", f"--output={tmp_path / 'again'}"]
    assert run(of_run) == 0  # its layers are scanned
    assert_same(load(str(tmp_path / "again")).params, dict(load(str(tmp_path / "run")).params))
    capsys.readouterr()
    assert run(grow) == 2
    assert "exists already and is not empty" in capsys.readouterr().err


def begins_pretraining(folder: Path) -> int:
    """Pretrain the large model in ``folder`` for a step."""
    config = toy.recipe(
        toy.write_text(folder / "text.txt", documents=20),
        objective={"name": "mlm"},
        vocab={"path": ""},
        phases={"phase1": {"num_steps": 1, "batch_size": 8, "max_length": 16}},
        schedule={"warmup_steps": 0},
        training={"eval_every_steps": 1, "eval_rows": 8, "loggers": ()},
        examples=(),
        export=False,
    )
    config["model"] = {"encoder": "modernbert", "size": "ettin_17m", "layers": "scanned"}
    path = toy.write_recipe(folder / "recipe.json", config)
    return run(["pretrain", f"--config={path}", f"--workdir={folder / 'run'}", f"--init={folder / 'large'}"])


@pytest.mark.parametrize(
    ("encoder", "fields", "size", "message"),
    [
        ("modernbert", {"mlp_dim": 400}, "tiny", "has mlp_dim 192, less than the 400 of .*; it can grow to base, la"),
        (
            "bert",
            {},
            "table6_L6_H768_A3",
            "has heads of width 256, not 64 like the heads of .*; it can grow to base, l",
        ),
        ("bert", {"num_heads": 4}, "mini", "has heads of width 64, not 32 like the heads of .*; it fits into no size"),
        ("electra", {"embedding_size": 64}, "base", "has embeddings without a projection to its layers, unlike"),
    ],
)
def test_what_does_not_fit_is_refused(encoder, fields, size, message):
    with pytest.raises(UserError, match=message):
        grown(model(encoder, **fields), size)


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    export_model(model("bert"), tmp_path / "small", "the card")
    assert run(["grow", f"--init={tmp_path / 'small'}", "--size=lage", f"--output={tmp_path / 'large'}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "unknown size of bert 'lage'; did you mean 'large'" in line
    assert not (tmp_path / "large").exists()
