import jax
import pytest
from flax import linen as nn

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import SIZES
from tests.models.helpers import pretraining, random_batch

COUNTS = {"base": (109_482_240, 110_106_428), "large": (335_141_888, 336_226_108)}


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
@pytest.mark.parametrize("size", COUNTS)
def test_parameter_counts_are_the_published_ones(size: str, layers: str) -> None:
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
