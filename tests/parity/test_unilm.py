"""UniLM's four masks against ``transformers``' BertForMaskedLM with six token types and 4D additive float masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.interchange import names
from bert_jax.interchange.family import family_of
from bert_jax.models.encoders import bert
from bert_jax.objectives import unilm
from bert_jax.objectives.base import Setting
from bert_jax.task import Variables
from tests.models.golden import batch_of, write_golden
from tests.models.helpers import random_params
from tests.objectives.test_unilm import DIRECTIONS
from tests.parity import tiny_bert
from tests.parity.test_causal import leaf, ours
from tests.parity.tiny_bert import P, V

pytestmark = pytest.mark.parity
TYPES = {"both sides": (0, 1), "sequence to sequence": (4, 5), "left to right": (2, 2), "right to left": (3, 3)}


def theirs(dtype):
    return tiny_bert.made(transformers.BertForMaskedLM, dtype, type_vocab_size=6)


def rows():
    """Rows with padding, of which the second segments begin at 5, and uneven numbers of masked positions."""
    batch = batch_of(V)
    real = batch["attention_mask"] > 0
    batch["token_type_ids"] = ((np.arange(real.shape[1])[None] >= 5) & real).astype(np.int32)
    batch["next_sentence_weights"] = np.zeros_like(batch["next_sentence_labels"], np.float32)
    batch["row_weights"] = np.ones(len(real), np.float32)
    return batch


def mask_of(direction, batch, dtype):
    """The additive mask [B, 1, L, L] as its authors draw it, row by row."""
    found = np.full((len(batch["input_ids"]), 1, *[batch["input_ids"].shape[1]] * 2), np.finfo(np.float32).min)
    for row, (types, real) in enumerate(zip(batch["token_type_ids"], batch["attention_mask"] > 0, strict=True)):
        end, source = int(real.sum()), int((real & (types == 0)).sum())
        seen = np.zeros(found.shape[2:], bool)
        if direction == "both sides":
            seen[:, :end] = True
        elif direction == "sequence to sequence":
            seen[:, :source] = True
            seen[source:end, source:end] = np.tril(np.ones((end - source, end - source)))
        else:
            seen[:end, :end] = (np.tril if direction == "left to right" else np.triu)(np.ones((end, end)))
            seen[end:, :end] = True  # padding; nothing reads it
        found[row, 0][seen] = 0.0
    return torch.tensor(found, dtype=dtype)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("dtype", "tolerance", "gradient_tolerance"), [("float32", 2e-5, 1e-5), ("float64", 1e-10, 1e-10)]
)
def test_logits_loss_and_gradients(direction, dtype, tolerance, gradient_tolerance):
    model, batch = theirs(getattr(torch, dtype)), rows()
    real = batch["attention_mask"] > 0
    first, second = TYPES[direction]
    out = model(
        input_ids=torch.tensor(batch["input_ids"]).long(),
        token_type_ids=torch.tensor(np.where(batch["token_type_ids"] > 0, second, first)).long(),
        attention_mask=mask_of(direction, batch, getattr(torch, dtype)),
    )
    logits = torch.gather(out.logits, 1, torch.tensor(batch["masked_positions"]).long()[..., None].expand(-1, -1, V))
    weights = torch.tensor(batch["masked_weights"], dtype=logits.dtype)
    labels = torch.tensor(batch["masked_labels"]).long()
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    expected_loss = (each * weights).sum() / weights.sum()
    expected_loss.backward()

    config = bert.Config(V, 32, 3, 4, 64, max_length=P, dtype=dtype, type_vocab_size=6)
    with jax.enable_x64(dtype == "float64"):
        task = unilm.Objective(
            unilm.Config(direction=direction), Setting(config, {"phase1": batch["input_ids"].shape[1]})
        )
        params = ours(model, config, dtype)
        heads = {part.name: random_params(config)[part.name] for part in task.parts if part.name not in params}

        def loss_of(params):
            variables = Variables({**heads, **params}, {})
            nll = task.loss(variables, jax.tree.map(jnp.asarray, batch), None).terms["mlm"]
            return nll.value / nll.count, task.outputs(variables, batch)

        (loss, outputs), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(params)
    hidden = model.bert(
        input_ids=torch.tensor(batch["input_ids"]).long(),
        token_type_ids=torch.tensor(np.where(batch["token_type_ids"] > 0, second, first)).long(),
        attention_mask=mask_of(direction, batch, getattr(torch, dtype)),
    ).last_hidden_state.detach()
    np.testing.assert_allclose(np.asarray(outputs["sequence"])[real], hidden.numpy()[real], atol=tolerance, rtol=0)
    np.testing.assert_allclose(outputs["mlm_logits"], logits.detach().numpy(), atol=tolerance, rtol=0)
    assert abs(float(loss) - expected_loss.item()) <= tolerance
    parameters, of_ours = dict(model.named_parameters()), {}
    for entry in family_of("bert").entries(config.num_layers):
        if not entry.ours.startswith(("encoder/", "mlm_head/")):
            continue
        expected = parameters[entry.theirs].grad.numpy()
        largest = 1.0 if "key/bias" in entry.ours else np.abs(expected).max()
        error = np.abs(names.to_theirs(np.asarray(leaf(gradients, entry.ours)), entry) - expected).max()
        assert error <= gradient_tolerance * max(largest, 1e-30), (entry.ours, error, largest)
        of_ours[entry.ours] = names.to_ours(expected, entry, np.shape(leaf(gradients, entry.ours)))
    if (direction, dtype) == ("sequence to sequence", "float32"):
        kept = {name: x for name, x in of_ours.items() if "layer_1" in name or "embed" in name}
        write_golden("unilm", params, batch, loss=expected_loss.item(), logits=logits.detach().numpy(), gradients=kept)


def test_the_power_check():
    """Another direction's mask gives other logits."""
    model, batch = theirs(torch.float32), rows()
    found = {
        direction: model(
            input_ids=torch.tensor(batch["input_ids"]).long(), attention_mask=mask_of(direction, batch, torch.float32)
        ).logits.detach()
        for direction in DIRECTIONS
    }
    for one in DIRECTIONS:
        assert all(torch.abs(found[one] - found[other]).max() > 0.1 for other in DIRECTIONS if other != one)
