"""XLNet against ``transformers``: both streams, memory, logits, loss, every gradient, and the classes with heads.

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
from bert_jax.interchange.conversion import leaf
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import import_model
from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.models.transformer import stack_layers, unstack_layers
from tests.interchange.heads import TOKENIZER
from tests.models.golden_xlnet import FIELDS, GOLDEN, LENGTH, MEMORY, V, batch_of, config_of, labels_of, loss_of

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]


def theirs(folder: Path, dtype: Any = torch.float32, ending: str = "LMHeadModel", **changes: Any) -> Any:
    """Return a tiny random model of a transformers class, saved in ``folder``; every parameter is from N(0, 0.2)."""
    family = family_of("xlnet")
    keys = {key: FIELDS[ours] for key, ours in family.fields.items() if ours in FIELDS}
    config = transformers.XLNetConfig(
        vocab_size=V, **keys | changes, num_labels=3, dropout=0.0, summary_last_dropout=0.0
    )
    model = getattr(transformers, f"XLNet{ending}")(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "layer_norm.weight" in name else 0.0, 0.2)
    model.save_pretrained(folder)
    write_tokenizer(folder, config_of(), TOKENIZER)
    if dtype == torch.float64:  # where there is a query stream, their sinusoids stay float32
        model.transformer.relative_positional_encoding = lambda qlen, klen, bsz=None, device=None: sinusoids(qlen, klen)
    return model.to(dtype)


def sinusoids(queries: int, keys: int) -> Any:
    """Return what ``relative_positional_encoding`` returns, in float64."""
    size = FIELDS["hidden_size"]
    angles = torch.arange(keys, -queries, -1, dtype=torch.float64)[:, None] / 10000 ** (
        torch.arange(0, size, 2, dtype=torch.float64) / size
    )
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)[:, None]


def given_to(batch: dict[str, np.ndarray], dtype: Any, queries: bool = True) -> dict[str, Any]:
    """Return the arguments of their model for ``batch``."""
    ranks = batch["order_ids"]
    inputs: dict[str, Any] = {name: torch.tensor(batch[name]).long() for name in ("input_ids", "token_type_ids")}
    inputs["attention_mask"] = torch.tensor(batch["attention_mask"]).to(dtype)
    inputs["perm_mask"] = torch.tensor(ranks[:, None, :] >= ranks[:, :, None]).to(dtype)
    # tokens of one rank see each other, and so a token of rank -1 sees all of rank -1; a query sees what is before
    content = torch.tensor(ranks[:, None, :] > ranks[:, :, None]).to(dtype)
    inputs["perm_mask"] = torch.where(torch.tensor(ranks < 0)[:, :, None], content, inputs["perm_mask"])
    if queries:
        inputs["target_mapping"] = torch.nn.functional.one_hot(
            torch.tensor(batch["query_positions"]).long(), LENGTH
        ).to(dtype)
    if "past_states" in batch:  # [B, N, M, D] -> N of [M, B, D]
        inputs["mems"] = [
            torch.tensor(one).to(dtype).transpose(0, 1) for one in np.moveaxis(batch["past_states"], 1, 0)
        ]
    return inputs


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_streams_memory_loss_and_gradients(tmp_path: Path, layers: Any, dtype: Any, memory: bool) -> None:
    model, batch = theirs(tmp_path, getattr(torch, dtype)), batch_of(memory)
    imported = import_model(tmp_path)
    assert imported.report.missing == ()
    assert imported.config == dataclasses.replace(
        config_of(), dropout_rate=0.0, attention_dropout_rate=0.0, classifier_dropout_rate=0.0
    )
    inputs = given_to(batch, getattr(torch, dtype))
    out = model(**inputs, output_hidden_states=True, use_mems=True)
    labels = torch.tensor(labels_of(batch)).long()
    their_loss = torch.nn.functional.cross_entropy(out.logits.reshape(-1, V), labels.reshape(-1))
    their_loss.backward()
    tolerance = 2e-5 if dtype == "float32" else 1e-10
    with jax.enable_x64(dtype == "float64"):
        config = dataclasses.replace(imported.config, dtype=dtype, layers=layers)
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), imported.params)
        params = stack_layers(params) if layers == "scanned" else params
        run = jax.jit(jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True))
        (loss, ours), grads = run(params)
    real = batch["attention_mask"] > 0
    content, queries = out.hidden_states[-2:]
    mems = np.stack([one.detach().numpy() for one in out.mems]).transpose(2, 0, 1, 3)
    compared = [
        (ours["mlm_logits"], out.logits),
        (ours["queries"], queries),
        (np.asarray(ours["sequence"])[real], content.detach().numpy()[real]),
    ]
    if memory:
        seen = np.asarray(ours["past_mask"]) > 0
        assert mems.shape == ours["past_states"].shape == (3, 3, MEMORY, 16)
        compared.append((np.moveaxis(ours["past_states"], 1, 2)[seen], np.moveaxis(mems, 1, 2)[seen]))
    for mine, wanted in compared:
        wanted = wanted.detach().numpy() if hasattr(wanted, "detach") else wanted
        np.testing.assert_allclose(mine, wanted, atol=tolerance, rtol=tolerance)
    assert float(loss) == pytest.approx(their_loss.item(), rel=tolerance)
    grads = unstack_layers(grads) if layers == "scanned" else grads
    parameters, gradients = dict(model.named_parameters()), {}
    entries = [e for e in family_of("xlnet").entries(3, "XLNetLMHeadModel") if e.part in ("encoder", "mlm_head")]
    assert len(entries) == len(jax.tree.leaves(grads)) == len(parameters)
    for entry in entries:
        wanted = parameters[entry.theirs].grad.numpy()
        error = np.abs(names.to_theirs(np.asarray(leaf(grads, entry.ours)), entry) - wanted).max()
        assert error <= tolerance * max(1.0, np.abs(wanted).max()), (entry.ours, error, np.abs(wanted).max())
        gradients[entry.ours] = names.to_ours(wanted, entry, np.shape(leaf(grads, entry.ours)))
    if (dtype, layers, memory) == ("float32", "unrolled", True):
        flat = {"/".join(str(k.key) for k in at): x for at, x in jax.tree_util.tree_leaves_with_path(imported.params)}
        np.savez_compressed(
            GOLDEN,
            loss=np.float32(their_loss.item()),
            logits=out.logits.detach().numpy(),
            past_states=mems,
            **{f"gradients/{name}": x for name, x in gradients.items() if "layer_1" in name or "embed" in name},
            **{f"params/{name}": x for name, x in flat.items()},
        )
