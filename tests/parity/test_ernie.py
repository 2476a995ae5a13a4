"""ERNIE 2.0 against ``transformers``, with random task ids: hidden states, logits, loss and every gradient.

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
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.model import encoder_of
from tests.interchange.heads import TOKENIZER
from tests.models.golden import batch_of, loss_of, write_golden

pytestmark = pytest.mark.parity
V, TASKS = TOKENIZER.size, 5
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
INPUTS = ("input_ids", "token_type_ids", "task_type_ids", "attention_mask")


def theirs(folder: Path, architecture: str, dtype: Any) -> Any:
    """Return a tiny random model of a transformers class with task ids, saved in ``folder``."""
    tasks = {"use_task_id": True, "task_type_vocab_size": TASKS}
    config = transformers.ErnieConfig(
        vocab_size=V, **SIZES, **tasks, max_position_embeddings=16, hidden_act="relu", attn_implementation="eager"
    )
    model = getattr(transformers, architecture)(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.2)
    model.save_pretrained(folder)
    TOKENIZER.save(folder / TOKENIZER.file_name)
    return model.to(dtype)


def batch_with_tasks() -> dict[str, np.ndarray]:
    batch = batch_of(V)
    tasks = np.random.default_rng(1).integers(0, TASKS, batch["input_ids"].shape)
    return batch | {"task_type_ids": tasks.astype(np.int32)}


def torch_loss(out: Any, batch: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """Return the loss of masked tokens and of next sentences, and the logits at the masked positions."""
    places, labels = (torch.tensor(batch[name]).long() for name in ("masked_positions", "masked_labels"))
    logits = torch.take_along_dim(out.prediction_logits, places[..., None], dim=1)
    nll = -torch.take_along_dim(torch.log_softmax(logits, -1), labels[..., None], dim=-1)[..., 0]
    weights = torch.tensor(batch["masked_weights"]).to(nll.dtype)
    following = torch.tensor(batch["next_sentence_labels"][:, 0]).long()
    nsp = torch.nn.functional.cross_entropy(out.seq_relationship_logits, following)
    return (nll * weights).sum() / weights.sum() + nsp, logits


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hidden_states_logits_loss_and_gradients(tmp_path: Path, dtype: Any) -> None:
    model = theirs(tmp_path, "ErnieForPreTraining", getattr(torch, dtype))
    imported, batch = import_model(tmp_path), batch_with_tasks()
    assert (imported.report.missing, imported.config.task_type_vocab_size) == ((), TASKS)
    out = model(**{name: torch.tensor(batch[name]).long() for name in INPUTS}, output_hidden_states=True)
    wanted_loss, wanted = torch_loss(out, batch)
    wanted_loss.backward()
    tolerance, of_gradients = (2e-5, 1e-5) if dtype == "float32" else (1e-10, 1e-10)
    with jax.enable_x64(dtype == "float64"):
        config = dataclasses.replace(imported.config, dtype=dtype)
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), imported.params)
        (loss, outputs), grads = jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True)(params)
        read = {name: batch[name] for name in INPUTS}
        hidden = encoder_of(config).apply({"params": params["encoder"]}, read, hidden_states="all").hidden
    real = batch["attention_mask"] > 0
    for ours, of_theirs in zip(hidden, out.hidden_states, strict=True):
        np.testing.assert_allclose(np.asarray(ours)[real], of_theirs.detach().numpy()[real], atol=tolerance, rtol=0)
    np.testing.assert_allclose(outputs["mlm_logits"], wanted.detach().numpy(), atol=tolerance, rtol=0)
    np.testing.assert_allclose(
        outputs["nsp_logits"][:, 0], out.seq_relationship_logits.detach().numpy(), atol=tolerance, rtol=0
    )
    assert abs(float(loss) - wanted_loss.item()) <= tolerance
    gradients, parameters = {}, dict(model.named_parameters())
    entries = [one for one in family_of("ernie").entries(config.num_layers) if leaf(grads, one.ours) is not None]
    assert len(entries) == len(jax.tree.leaves(grads)) == len(parameters)
    for entry in entries:
        of_theirs, ours = parameters[entry.theirs].grad.numpy(), np.asarray(leaf(grads, entry.ours))
        error = np.abs(names.to_theirs(ours, entry) - of_theirs).max()
        assert error <= of_gradients * max(1.0, np.abs(of_theirs).max()), entry.ours
        gradients[entry.ours] = names.to_ours(of_theirs, entry, ours.shape)
    if dtype == "float32":
        logits = {"mlm_logits": wanted.detach(), "nsp_logits": out.seq_relationship_logits.detach()}
        write_golden("ernie", imported.params, batch, gradients, loss=wanted_loss.item(), **logits)


def test_an_export_has_the_same_outputs_there(tmp_path: Path) -> None:
    """With random task ids, and without any; another task gives other outputs."""
    model = theirs(tmp_path / "theirs", "ErnieModel", torch.float32)
    imported, batch = import_model(tmp_path / "theirs"), batch_with_tasks()
    export_model(
        TrainedModel("", imported.params, imported.config, TOKENIZER, imported.head), tmp_path / "ours", "card"
    )
    again = transformers.ErnieModel.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    inputs = {name: torch.tensor(batch[name]).long() for name in INPUTS}
    without = {name: x for name, x in inputs.items() if name != "task_type_ids"}
    with torch.no_grad():
        of_tasks, of_none = (model(**given).last_hidden_state for given in (inputs, without))
        assert torch.equal(again(**inputs).last_hidden_state, of_tasks)
        assert torch.equal(again(**without).last_hidden_state, of_none)
    assert (of_tasks - of_none).abs().max() > 0.1
    sequence = encoder_of(imported.config).apply({"params": imported.params["encoder"]}, {n: batch[n] for n in without})
    real = batch["attention_mask"] > 0
    np.testing.assert_allclose(np.asarray(sequence.sequence)[real], of_none.numpy()[real], atol=2e-5, rtol=0)
