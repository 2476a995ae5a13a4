"""ALBERT against ``transformers``' AlbertForPreTraining: hidden states, logits, loss and every gradient.

Run by ``make test-parity``. It also writes the golden arrays that ``make test`` checks without torch.
"""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.errors import UserError
from bert_jax.interchange import names
from bert_jax.interchange.conversion import leaf
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import import_model
from bert_jax.models.model import encoder_of
from tests.interchange.heads import TOKENIZER
from tests.models.golden_albert import GOLDEN, SIZES, V, batch_of, loss_of

pytestmark = pytest.mark.parity


def theirs(folder: Path, dtype=torch.float32, **changes):
    """Return a tiny random model of transformers, saved in its directory."""
    torch.manual_seed(0)
    family, config = family_of("albert"), dict(SIZES)
    fields = {theirs: config[ours] for theirs, ours in family.fields.items() if ours in config}
    config = transformers.AlbertConfig(vocab_size=V, **fields, attn_implementation="eager", **changes)
    model = transformers.AlbertForPreTraining(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # gains about 1, or deep gradients drown in rounding
            parameter.normal_(1.0 if name.lower().endswith(("layernorm.weight", "layer_norm.weight")) else 0.0, 0.2)
    model.save_pretrained(folder)
    TOKENIZER.save(folder / "vocab.txt")
    return model.to(dtype)


def torch_outputs(model, batch):
    """Return the hidden states, the logits at the masked positions and of the order, and the loss."""
    tensors = {name: torch.tensor(np.asarray(x)) for name, x in batch.items()}
    inputs = {name: tensors[name].long() for name in ("input_ids", "token_type_ids", "attention_mask")}
    out = model(**inputs, output_hidden_states=True)
    positions = tensors["masked_positions"].long()
    logits = torch.gather(out.prediction_logits, 1, positions[..., None].expand(-1, -1, V))
    nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tensors["masked_labels"].long(), reduction="none")
    weights = tensors["masked_weights"].to(logits.dtype)
    sop = torch.nn.functional.cross_entropy(out.sop_logits, tensors["sentence_order_labels"][:, 0].long())
    return out, logits, (nll * weights).sum() / weights.sum() + sop


@pytest.mark.parametrize("activation", ["gelu_new", "relu"])
@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outputs_and_gradients(tmp_path: Path, activation: str, layers: str, dtype: str) -> None:
    assert TOKENIZER.size == V
    model = theirs(tmp_path, getattr(torch, dtype), hidden_act=activation)
    imported = import_model(tmp_path)
    assert imported.report.missing == ()
    assert imported.head.architecture == "AlbertForPreTraining"
    batch = batch_of()
    out, logits, loss = torch_outputs(model, batch)
    loss.backward()
    tolerance, gradient_tolerance = (2e-5, 1e-5) if dtype == "float32" else (1e-10, 1e-10)
    with jax.enable_x64(dtype == "float64"):
        config = dataclasses.replace(imported.config, dtype=dtype, layers=layers)
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), imported.params)
        (found, outputs), grads = jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True)(params)
        hidden = encoder_of(config).apply({"params": params["encoder"]}, batch, hidden_states="all").hidden
    real = batch["attention_mask"] > 0
    assert len(hidden) == SIZES["num_layers"] + 1
    for ours, their_hidden in zip(hidden, out.hidden_states, strict=True):
        np.testing.assert_allclose(np.asarray(ours)[real], their_hidden.detach().numpy()[real], atol=tolerance, rtol=0)
    sop = out.sop_logits.detach().numpy()
    np.testing.assert_allclose(outputs["mlm_logits"], logits.detach().numpy(), atol=tolerance, rtol=0)
    np.testing.assert_allclose(outputs["sop_logits"][:, 0], sop, atol=tolerance, rtol=0)
    assert abs(float(found) - loss.item()) <= tolerance
    parameters, gradients = dict(model.named_parameters()), {}
    entries = [entry for entry in family_of("albert").entries(config.num_layers) if entry.part in grads]
    assert len(entries) == len(jax.tree.leaves(grads)) == len(parameters)
    for entry in entries:
        expected = parameters[entry.theirs].grad.numpy()
        largest = 1.0 if "key/bias" in entry.ours else np.abs(expected).max()
        error = np.abs(names.to_theirs(np.asarray(leaf(grads, entry.ours)), entry) - expected).max()
        assert error <= gradient_tolerance * max(largest, 1e-30), (entry.ours, error, largest)
        gradients[entry.ours] = names.to_ours(expected, entry, np.shape(leaf(grads, entry.ours)))
    if (dtype, layers, activation) == ("float32", "unrolled", "gelu_new"):
        write_golden(imported.params, batch, logits.detach().numpy(), sop, loss.item(), gradients)


def write_golden(params, batch, mlm_logits, sop_logits, loss: float, gradients) -> None:
    """Store weights, inputs and the outputs of torch for them."""
    flat = {"/".join(str(k.key) for k in path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}
    np.savez_compressed(
        GOLDEN,
        **{f"params/{name}": x for name, x in flat.items()},
        **{f"batch/{name}": x for name, x in batch.items()},
        **{f"gradients/{name}": x for name, x in gradients.items() if "key/bias" not in name},
        mlm_logits=mlm_logits,
        sop_logits=sop_logits,
        loss=np.float32(loss),
    )


@pytest.mark.parametrize("field", ["num_hidden_groups", "inner_group_num"])
def test_several_layers_of_their_own_are_refused(tmp_path: Path, field: str) -> None:
    theirs(tmp_path, **{field: 2})
    with pytest.raises(UserError, match=f"has {field} 2; of the ALBERT family, only models with 1 can be read"):
        import_model(tmp_path)
