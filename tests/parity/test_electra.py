"""ELECTRA against ``transformers``: both networks in one step, and every class of the family.

Run by ``make test-parity``. It also writes the golden arrays that ``make test`` checks without torch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.interchange import names
from bert_jax.interchange.architectures import HeadClass
from bert_jax.interchange.conversion import leaf
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.model import encoder_of
from bert_jax.models.transformer import stack_layers, unstack_layers
from tests.interchange.heads import HEADS, TOKENIZER
from tests.models import golden_heads
from tests.models.golden_electra import GOLDEN, SIZES, V, batch_of, loss_of, objective

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]
KINDS = tuple(kind for kind in golden_heads.KINDS if kind not in ("encoder", "masked_lm"))
INPUTS = ("input_ids", "token_type_ids", "attention_mask")


def config_of(**changes: Any) -> Any:
    fields = {key: SIZES[ours] for key, ours in family_of("electra").fields.items() if ours in SIZES}
    return transformers.ElectraConfig(vocab_size=V, **{**fields, **changes}, attn_implementation="eager")


def drawn(model: Any, seed: int, dtype: Any) -> Any:
    """Return a model of transformers, in evaluation, with every parameter drawn anew."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # gains about 1, or deep gradients drown in rounding
            parameter.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.2)
    return model.eval().to(dtype)


def pair(folder: Path, dtype: Any = torch.float32, **changes: Any) -> tuple[Any, Any]:
    """Return a discriminator and a generator of half its width with the same embeddings, saved in ``folder``."""
    discriminator = drawn(transformers.ElectraForPreTraining(config_of(**changes)), 0, dtype)
    narrow = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 16}
    generator = transformers.ElectraForMaskedLM(config_of(**changes, **narrow))
    generator = drawn(generator, 1, dtype)
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()
    for model, name in ((discriminator, "discriminator"), (generator, "generator")):
        model.save_pretrained(folder / name)
        TOKENIZER.save(folder / name / "vocab.txt")
    return discriminator, generator


def joined(discriminator: Any, generator: Any) -> dict[str, Any]:
    """Return the parameters of two imported models as a run has the parameters of both networks."""
    encoder = {name: x for name, x in generator["encoder"].items() if name != "embeddings"}
    return {**discriminator, "generator": {**generator, "encoder": encoder}}


def torch_step(discriminator: Any, generator: Any, batch: Any, ids: np.ndarray) -> tuple[Any, Any, Any]:
    """Return the loss of both networks by transformers, and the logits of each. The second network reads ``ids``."""
    tensors = {name: torch.tensor(np.asarray(x)) for name, x in batch.items()}
    inputs = {name: tensors[name].long() for name in INPUTS}
    positions, labels = tensors["masked_positions"].long(), tensors["masked_labels"].long()
    logits = torch.gather(generator(**inputs).logits, 1, positions[..., None].expand(-1, -1, V))
    nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    weights = tensors["masked_weights"].to(logits.dtype)
    original = inputs["input_ids"].clone()
    for row, slot in zip(*np.nonzero(batch["masked_weights"]), strict=True):
        original[row, positions[row, slot]] = labels[row, slot]
    ids = torch.tensor(np.asarray(ids)).long()
    out = discriminator(**{**inputs, "input_ids": ids}, labels=(ids != original).long())
    real, replaced = inputs["attention_mask"] == 1, (ids != original).to(logits.dtype)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(out.logits[real], replaced[real])
    assert abs(loss.item() - out.loss.item()) <= 1e-6  # theirs is of float32 always
    return (nll * weights).sum() / weights.sum() + 50.0 * loss, logits, out.logits


@pytest.mark.parametrize("widths", ["narrow", "same"])
@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_of_both_networks(tmp_path: Path, widths: str, layers: Any, dtype: Any) -> None:
    same = {"embedding_size": SIZES["hidden_size"]} if widths == "same" else {}
    pairs = pair(tmp_path, getattr(torch, dtype), **same)
    imported = [import_model(tmp_path / name) for name in ("discriminator", "generator")]
    assert [one.head.architecture for one in imported] == ["ElectraForPreTraining", "ElectraForMaskedLM"]
    assert [one.report.missing for one in imported] == [(), ()]
    assert ("embedding_projection" in imported[0].params["encoder"]) == (widths == "narrow")
    batch = batch_of()
    with jax.enable_x64(dtype == "float64"):
        config = dataclasses.replace(imported[0].config, dtype=dtype, layers=layers)
        task = objective(config)
        assert task.generator.config == dataclasses.replace(imported[1].config, dtype=dtype, layers=layers)
        tree = joined(*(one.params for one in imported))
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), stack_layers(tree) if layers == "scanned" else tree)
        (found, outputs), grads = jax.jit(jax.value_and_grad(lambda p: loss_of(task, p, batch), has_aux=True))(params)
        grads = unstack_layers(grads) if layers == "scanned" else grads
    assert 3 <= outputs["is_replaced"].sum() <= 9
    loss, mlm, replaced = torch_step(*pairs, batch, outputs["drawn_ids"])
    loss.backward()
    tolerance, gradient_tolerance = (2e-5, 1e-5) if dtype == "float32" else (1e-10, 1e-10)
    real = batch["attention_mask"] > 0
    mlm, replaced = mlm.detach().numpy(), replaced.detach().numpy()
    np.testing.assert_allclose(outputs["mlm_logits"], mlm, atol=tolerance, rtol=0)
    np.testing.assert_allclose(outputs["replaced_logits"][real], replaced[real], atol=tolerance, rtol=0)
    assert abs(float(found) - loss.item()) <= tolerance * loss.item()
    gradients, compared = {}, 0
    of_both = [(grads, "", pairs[0]), (task.generator.whole(grads), "generator/", pairs[1])]
    for tree, begin, model in of_both:
        parameters = dict(model.named_parameters())
        for entry in family_of("electra").entries(SIZES["num_layers"]):
            got = leaf(tree, entry.ours)
            if entry.theirs not in parameters or got is None:
                assert got is None
                continue
            expected = parameters[entry.theirs].grad.numpy()
            largest = max(np.abs(expected).max(), 1.0 if "key/bias" in entry.ours else 1e-30)
            error = np.abs(names.to_theirs(np.asarray(got), entry) - expected).max()
            assert error <= gradient_tolerance * largest, (begin, entry.ours, error, largest)
            if not (begin and "encoder/embeddings" in entry.ours):
                gradients[f"{begin}{entry.ours}"] = names.to_ours(expected, entry, np.shape(got))
            compared += 1
    assert len(gradients) == len(jax.tree.leaves(grads))
    assert compared == len(gradients) + 5  # both networks have the same embeddings
    if (dtype, layers, widths) == ("float32", "unrolled", "narrow"):
        write_golden(joined(*(one.params for one in imported)), batch, outputs, mlm, replaced, loss.item(), gradients)


def write_golden(params, batch, outputs, mlm_logits, replaced_logits, loss: float, gradients) -> None:
    """Store weights, inputs and the outputs of torch for them."""
    flat = {"/".join(str(k.key) for k in path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}
    np.savez_compressed(
        GOLDEN,
        **{f"params/{name}": x for name, x in flat.items()},
        **{f"batch/{name}": x for name, x in batch.items()},
        **{f"gradients/{name}": x for name, x in gradients.items() if "key/bias" not in name},
        **{name: np.asarray(outputs[name]) for name in ("drawn_ids", "is_replaced")},
        mlm_logits=mlm_logits,
        replaced_logits=replaced_logits,
        loss=np.float32(loss),
    )


def head_of(kind: str) -> HeadClass:
    head = HEADS[kind]
    return dataclasses.replace(head, architecture=f"Electra{head.ending}")


def theirs(kind: str, folder: Path, dtype: Any = torch.float32) -> Any:
    """Return a tiny random model of a transformers class, saved in ``folder``."""
    head = head_of(kind)
    labels = head.labels or tuple(f"LABEL_{i}" for i in range(1 if kind == "regression" else 2))
    config = config_of(
        problem_type=head.problem_type, id2label=dict(enumerate(labels)), classifier_dropout=head.classifier_dropout
    )
    model = drawn(getattr(transformers, head.architecture)(config), 0, dtype)
    model.save_pretrained(folder)
    TOKENIZER.save(folder / "vocab.txt")
    return model


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_logits_loss_and_gradients(tmp_path: Path, kind: str, dtype: Any) -> None:
    model = theirs(kind, tmp_path, getattr(torch, dtype))
    imported = import_model(tmp_path)
    assert (imported.report.missing, imported.head) == ((), head_of(kind))
    batch = golden_heads.batch_of(kind)
    tensors = {name: torch.tensor(x) for name, x in batch.items()}
    wide = getattr(torch, dtype)
    tensors = {name: x.to(wide) if x.is_floating_point() else x.long() for name, x in tensors.items()}
    out = model(**tensors, output_hidden_states=True)
    out.loss.backward()
    tolerance, gradient_tolerance = (2e-5, 1e-5) if dtype == "float32" else (1e-10, 1e-10)
    with jax.enable_x64(dtype == "float64"):
        config = dataclasses.replace(imported.config, dtype=dtype)
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), imported.params)
        batch = {name: x.astype(dtype) if x.dtype == np.float64 else x for name, x in batch.items()}
        run = jax.jit(jax.value_and_grad(lambda p: golden_heads.loss_of(kind, config, p, batch), has_aux=True))
        (loss, outputs), grads = run(params)
        flat = {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in INPUTS}
        hidden = encoder_of(config).apply({"params": params["encoder"]}, flat, hidden_states="all").hidden
    real = flat["attention_mask"] > 0
    states = out.hidden_states  # theirs begin with the embeddings before their projection, or after it
    assert len(hidden) == SIZES["num_layers"] + 1
    for ours, wanted in list(zip(hidden, states[-len(hidden) :], strict=True))[1:]:
        np.testing.assert_allclose(np.asarray(ours)[real], wanted.detach().numpy()[real], atol=tolerance, rtol=0)
    assert outputs
    for name, found in outputs.items():
        np.testing.assert_allclose(np.asarray(found), out[name].detach().numpy(), atol=tolerance, rtol=0)
    assert abs(float(loss) - out.loss.item()) <= tolerance * max(1.0, abs(out.loss.item()))
    parameters = dict(model.named_parameters())
    overall = max(np.abs(p.grad.numpy()).max() for p in parameters.values())
    entries = [
        e
        for e in family_of("electra").entries(config.num_layers, imported.head.architecture)
        if e.part in imported.head.parts
    ]
    assert len(entries) == len(jax.tree.leaves(grads)) == len(parameters)
    for entry in entries:
        wanted = parameters[entry.theirs].grad.numpy()
        largest = np.abs(wanted).max()
        largest = overall if largest < 1e-5 * overall else largest  # zero but for rounding: what shifts all keys alike
        error = np.abs(names.to_theirs(np.asarray(leaf(grads, entry.ours)), entry) - wanted).max()
        assert error <= gradient_tolerance * largest, (entry.ours, error, largest)


@pytest.mark.parametrize("name", ["discriminator", "generator", *KINDS])
def test_an_export_loads_without_a_word(tmp_path: Path, name: str) -> None:
    """No key is missing, left over or of another shape, and every tensor is the same."""
    if name in KINDS:
        model, folder = theirs(name, tmp_path / "theirs"), tmp_path / "theirs"
    else:
        model, folder = dict(zip(("discriminator", "generator"), pair(tmp_path), strict=True))[name], tmp_path / name
    read = import_model(folder)
    export_model(TrainedModel("", read.params, read.config, read.tokenizer, read.head), tmp_path / "ours", "card")
    again, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = model.state_dict()
    assert again.state_dict().keys() == expected.keys()
    for key, value in again.state_dict().items():
        assert torch.equal(value, expected[key]), key
