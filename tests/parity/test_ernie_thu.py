"""ERNIE with entities against arithmetic in torch: states of all layers, logits, loss and every gradient.

Run by ``make test-parity``. It also writes the golden arrays that ``make test`` checks without torch.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")

from bert_jax.interchange.conversion import leaf, put
from tests.models.golden import write_golden
from tests.models.golden_ernie_thu import HEADS, KINDS, SIZES, batch_of, config_of, loss_of
from tests.parity import ernie_thu_arithmetic as theirs

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]

_PARTS = {
    "attention_output": "attention/output",
    "attention_norm": "attention_layer_norm",
    "inner": "mlp/input",
    "output": "mlp/output",
    "output_norm": "mlp_layer_norm",
    "entity_attention_output": "entity_attention/output",
    "entity_attention_norm": "entity_attention_layer_norm",
    "entity_inner": "mlp/entity_input",
    "entity_output": "mlp/entity_output",
    "entity_output_norm": "entity_mlp_layer_norm",
    **{name: f"attention/{name}" for name in ("query", "key", "value")},
    **{f"entity_{name}": f"entity_attention/{name}" for name in ("query", "key", "value")},
}
_TOP = {"embeddings.norm": "encoder/embeddings/layer_norm", "pooler": "pooler/dense"}
_TOP |= {"entity_head.dense": "entity_head/transform", "entity_head.norm": "entity_head/layer_norm"}


def ours(name: str, value: np.ndarray) -> tuple[str, np.ndarray]:
    """Return path and array of our parameter for one of theirs, or for its gradient."""
    first, _, rest = name.partition(".")
    if first == "embeddings" and "norm" not in name:
        return f"encoder/embeddings/{rest}_embeddings", value
    stem, _, kind = name.rpartition(".")
    if first == "layer":
        number, _, part = stem.removeprefix("layer.").partition(".")
        path = f"encoder/layer_{number}/{_PARTS[part]}"
    else:
        path = _TOP[stem]
    heads = HEADS["entity_attention/" in path]
    if path.endswith("norm"):
        return f"{path}/{'scale' if kind == 'weight' else 'bias'}", value
    value = value.T if kind == "weight" else value
    if "attention/" in path and not (path.endswith("output") and kind == "bias"):
        size = value.shape[0] if path.endswith("output") else value.shape[-1]
        split = (heads, size // heads)
        value = value.reshape(*split, -1) if path.endswith("output") else value.reshape(*value.shape[:-1], *split)
    return f"{path}/{'kernel' if kind == 'weight' else 'bias'}", value


def as_tree(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in arrays.items():
        if not name.startswith("pooler"):
            put(found, *ours(name, value))
    return found


def test_states_loss_and_gradients() -> None:
    batch, params = batch_of(), theirs.draw(theirs.shapes(KINDS, SIZES), seed=5)
    params = {name: x.float().double().requires_grad_(True) for name, x in params.items()}  # as float32 holds them
    table, read = torch.tensor(batch["table"]).double(), torch.tensor(batch["entity_ids"]).long()
    entity_mask = (read > 0).double()
    entity_mask[:, 0] = 1.0
    given = {
        "ids": torch.tensor(batch["input_ids"]).long(),
        "types": torch.tensor(batch["token_type_ids"]).long(),
        "mask": torch.tensor(batch["attention_mask"]),
        "entity_vectors": table[read],
        "entity_mask": entity_mask,
    }
    states = theirs.encode(params, KINDS, HEADS, given)
    known = torch.unique(torch.tensor(batch["labels"]).long())
    classes = torch.searchsorted(known, torch.tensor(batch["labels"]).long())
    logits = theirs.entity_logits(params, states[-1], table[known])
    loss = theirs.alignment_loss(logits, torch.where(torch.tensor(batch["labels"]) > 0, classes, -1))
    loss.backward()
    numpy = {name: x.detach().numpy() for name, x in params.items()}
    gradients = {name: np.zeros(x.shape) if x.grad is None else x.grad.numpy() for name, x in params.items()}
    wanted = as_tree(gradients)
    assert not np.any(leaf(wanted, "encoder/layer_3/mlp/entity_output/kernel"))  # nothing reads the last entities
    assert np.any(leaf(wanted, "encoder/layer_3/mlp/entity_input/kernel"))
    real = batch["attention_mask"] > 0
    for dtype, tolerance in (("float64", 1e-10), ("float32", 2e-5)):
        with jax.enable_x64(dtype == "float64"):
            given_params = jax.tree.map(lambda x, dtype=dtype: jnp.asarray(x, dtype), as_tree(numpy))
            config = config_of(dtype=dtype)
            run = jax.jit(jax.value_and_grad(lambda p, c=config: loss_of(c, p, batch), has_aux=True))
            (found, (hidden, scores)), slopes = jax.device_get(run(given_params))
        for one, other in zip(hidden, states, strict=True):
            np.testing.assert_allclose(one[real], other.detach().numpy()[real], atol=tolerance, rtol=0)
        np.testing.assert_allclose(scores[real], logits.detach().numpy()[real], atol=5 * tolerance, rtol=0)
        assert abs(float(found) - float(loss.detach())) < tolerance
        for path, expected in jax.tree_util.tree_leaves_with_path(wanted):
            name = "/".join(str(key.key) for key in path)
            difference = np.abs(leaf(slopes, name) - expected).max()
            assert difference <= tolerance * max(1.0, np.abs(expected).max()), name
    flat = {"/".join(str(k.key) for k in path): x for path, x in jax.tree_util.tree_leaves_with_path(wanted)}
    write_golden(
        "ernie_thu",
        jax.tree.map(np.float32, as_tree(numpy)),
        {},
        {name: np.float32(x) for name, x in flat.items()},
        loss=loss.detach(),
        logits=logits.detach(),
        hidden=torch.stack(states).detach(),
    )
