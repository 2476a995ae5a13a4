from types import SimpleNamespace
from typing import Any

import jax
import pytest
from flax import linen as nn

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.models import model
from bert_jax.models.config import ModelConfig
from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import SIZES
from bert_jax.records import Feature
from bert_jax.runs.model_choice import check_kernel
from bert_jax.training.mesh import MeshConfig, make_mesh
from tests.models.helpers import pretraining, random_batch

COUNTS = {"base": (109_482_240, 110_106_428), "large": (335_141_888, 336_226_108)}


@pytest.mark.parametrize(("size", "layers"), [("base", "unrolled"), ("base", "scanned"), ("large", "scanned")])
def test_parameter_counts_are_the_published_ones(size: str, layers: Any) -> None:
    config = bert.Config(vocab_size=30_522, **SIZES[size], layers=layers)
    shapes = nn.unbox(jax.eval_shape(pretraining(config).init, jax.random.key(0), random_batch()))
    count = {name: sum(leaf.size for leaf in jax.tree.leaves(tree)) for name, tree in shapes["params"].items()}
    encoder, whole = COUNTS[size]
    assert count["encoder"] + count["pooler"] == encoder
    assert sum(count.values()) == whole


def test_the_released_small_sizes_are_all_there() -> None:
    assert sum(name[0] == "L" for name in SIZES) == 24
    assert SIZES["tiny"] == SIZES["L2_H128"] == {"num_layers": 2, "hidden_size": 128, "num_heads": 2, "mlp_dim": 512}
    for fields in SIZES.values():
        build(bert.Config, {"vocab_size": 10, **fields}, "model")


def test_flops_match_the_published_model() -> None:
    def giga(size: str, length: int, masked: int) -> float:
        return bert.Config(30_522, **SIZES[size]).train_flops(length, masked, 1) / 1e9

    assert giga("base", 128, 20) == pytest.approx(69.93, rel=1e-3)
    assert giga("base", 512, 76) == pytest.approx(300.87, rel=1e-3)
    assert giga("large", 128, 20) == pytest.approx(240.64, rel=1e-3)
    assert giga("large", 512, 76) == pytest.approx(1019.75, rel=1e-3)


def test_an_encoder_may_count_its_own_products() -> None:
    class Half(bert.Config):
        def products(self, length: int) -> int:
            return super().products(length) // 2

    one, other = (config(100, **SIZES["tiny"]) for config in (bert.Config, Half))
    assert one.train_flops(64) == 2 * other.train_flops(64) > 0


class Bare(ModelConfig):
    """The config of an encoder without layers and attention."""


def test_an_encoder_without_layers_has_no_settings_of_them() -> None:
    config = build(Bare, {"vocab_size": 100, "hidden_size": 30}, "config.model")
    assert (config.num_layers, config.num_heads, config.remat, config.plain()) == (0, 0, "none", config)
    assert config.train_flops(64, num_masked=2) == 6 * 2 * (30 * 30 + 100 * 30)  # the head's alone
    mesh = make_mesh(MeshConfig(tensor=8), jax.devices())
    check_kernel(config, mesh, [{"input_ids": Feature((64,), "int32")}])  # no heads that 8 devices do not divide
    with pytest.raises(UserError, match="does not divide the model's 12 attention heads"):
        check_kernel(bert.Config(100), mesh, [])
    with pytest.raises(UserError, match="unknown key config.model.num_heads"):
        build(Bare, {"vocab_size": 100, "num_heads": 2}, "config.model")


def test_recorded_settings_of_an_encoder_without_layers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "encoder_file", lambda name: SimpleNamespace(Config=Bare))
    before = model.config_facts(Bare(100, hidden_size=36)) | {"encoder": "mine.py@0123"}
    assert model.config_of(before) == Bare(100, hidden_size=36)
    with pytest.raises(UserError, match="unknown key model.hidden_sise"):
        model.config_of(before | {"hidden_sise": 8})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"hidden_size": 100, "num_heads": 12},
            "hidden_size 100 does not divide by num_heads 12; the nearest that does is 10",
        ),
        ({"dropout_rate": 1.0}, "config.model.dropout_rate is 1.0; 0 or more and below 1 is needed"),
        ({"num_layers": 0}, "config.model.num_layers is 0; 1 to 4,096 are allowed"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        bert.Config(10, **fields)  # type: ignore[arg-type]
