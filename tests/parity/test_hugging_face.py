"""The model against ``transformers``' BertForPreTraining: outputs, gradients, training, and both ways of interchange.

Run by ``make test-parity``. It also writes the golden arrays that ``make test`` checks without torch.
"""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.cli.main import run
from bert_jax.corpora.store import Corpus
from bert_jax.interchange import names
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.model import encoder_of
from bert_jax.models.transformer import stack_layers, unstack_layers
from bert_jax.objectives.base import Setting
from bert_jax.objectives.mlm_nsp import Config, Objective
from bert_jax.text.tokenizer import wordpiece
from bert_jax.training.optimizers import adamw
from bert_jax.training.schedules import linear_from_zero
from tests import toy
from tests.models.golden import GOLDEN, batch_of, loss_of
from tests.parity import tiny_bert
from tests.parity.tiny_bert import P, V

pytestmark = pytest.mark.parity
VOCAB = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *(chr(97 + i) for i in range(26)),
    *(f"##{chr(97 + i)}" for i in range(26)),
    *"0123456",
)


def theirs(tmp_path: Path, activation: str = "gelu", dtype=torch.float32):
    """Return a tiny random model of transformers, saved in ``tmp_path``."""
    model = tiny_bert.made(transformers.BertForPreTraining, hidden_act=activation)
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return model.to(dtype)


def torch_outputs(model, batch):
    """Return the outputs, the logits at the masked positions, and the loss."""
    tensors = {k: torch.tensor(np.asarray(v)) for k, v in batch.items()}
    out = model(
        input_ids=tensors["input_ids"].long(),
        token_type_ids=tensors["token_type_ids"].long(),
        attention_mask=tensors["attention_mask"].long(),
        output_hidden_states=True,
    )
    positions = tensors["masked_positions"].long()
    logits = torch.gather(out.prediction_logits, 1, positions[..., None].expand(-1, -1, V))
    nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tensors["masked_labels"].long(), reduction="none")
    weights = tensors["masked_weights"].to(logits.dtype)
    nsp = torch.nn.functional.cross_entropy(out.seq_relationship_logits, tensors["next_sentence_labels"][:, 0].long())
    loss = (nll * weights).sum() / weights.sum() + nsp
    return out, logits, loss


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outputs_and_gradients(tmp_path: Path, activation: str, layers: str, dtype: str) -> None:
    model = theirs(tmp_path, activation, getattr(torch, dtype))
    imported = import_model(tmp_path)
    assert imported.report.missing == ()
    batch = batch_of(V)
    out, logits, loss = torch_outputs(model, batch)
    loss.backward()
    tolerance, gradient_tolerance = (2e-5, 1e-5) if dtype == "float32" else (1e-10, 1e-10)
    with jax.enable_x64(dtype == "float64"):
        config = dataclasses.replace(imported.config, dtype=dtype, layers=layers)
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), imported.params)
        params = stack_layers(params) if layers == "scanned" else params
        (found, outputs), grads = jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True)(params)
        hidden = encoder_of(config).apply({"params": params["encoder"]}, batch, hidden_states="all").hidden
    real = batch["attention_mask"] > 0
    for ours, their_hidden in zip(hidden, out.hidden_states, strict=True):
        np.testing.assert_allclose(np.asarray(ours)[real], their_hidden.detach().numpy()[real], atol=tolerance, rtol=0)
    np.testing.assert_allclose(outputs["mlm_logits"], logits.detach().numpy(), atol=tolerance, rtol=0)
    nsp = out.seq_relationship_logits.detach().numpy()
    np.testing.assert_allclose(outputs["nsp_logits"][:, 0], nsp, atol=tolerance, rtol=0)
    assert abs(float(found) - loss.item()) <= tolerance
    grads = unstack_layers(grads) if layers == "scanned" else grads
    parameters = dict(model.named_parameters())
    entries = [entry for entry in family_of("bert").entries(config.num_layers) if entry.ours.split("/")[0] in grads]
    assert len(entries) == len(jax.tree.leaves(grads))
    for entry in entries:
        leaf = grads
        for part in entry.ours.split("/"):
            leaf = leaf[part]
        expected = parameters[entry.theirs].grad.numpy()
        largest = 1.0 if "key/bias" in entry.ours else np.abs(expected).max()
        error = np.abs(names.to_theirs(np.asarray(leaf), entry) - expected).max()
        assert error <= gradient_tolerance * max(largest, 1e-30), (entry.ours, error, largest)
    if dtype == "float32" and layers == "unrolled" and activation == "gelu":
        write_golden(imported.params, batch, logits.detach().numpy(), nsp, loss.item(), parameters)


def write_golden(params, batch, mlm_logits, nsp_logits, loss: float, parameters) -> None:
    """Store weights, inputs and the outputs of torch for them."""
    flat = {
        "/".join(str(k.key) for k in path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(params)
    }
    gradient = parameters["bert.encoder.layer.0.attention.self.query.weight"].grad.numpy()
    words = parameters["bert.embeddings.word_embeddings.weight"].grad.numpy()
    np.savez_compressed(
        GOLDEN,
        **{f"params/{k}": v for k, v in flat.items()},
        **{f"batch/{k}": v for k, v in batch.items()},
        mlm_logits=mlm_logits,
        nsp_logits=nsp_logits,
        loss=np.float32(loss),
        query_gradient=gradient,
        word_gradient=words,
    )


def test_training_trajectory(tmp_path: Path) -> None:
    """Both take twenty steps of AdamW (google-research/bert) from the same weights on the same batches, dropout off."""
    model, steps, peak = theirs(tmp_path), 20, 1e-3
    imported = import_model(tmp_path)
    batches = [batch_of(V, seed=i) for i in range(steps)]
    decayed = {n: p for n, p in model.named_parameters() if not n.endswith("bias") and "LayerNorm" not in n}
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in model.named_parameters()}
    expected = []
    for step, batch in enumerate(batches):
        model.zero_grad()
        *_, loss = torch_outputs(model, batch)
        loss.backward()
        expected.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = peak * step / 5 if step < 5 else peak * (1 - step / steps)
        with torch.no_grad():
            for name, p in model.named_parameters():
                m, v = moments[name]
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                v.mul_(0.999).add_(p.grad**2, alpha=0.001)
                p.sub_(rate * (m / (v.sqrt() + 1e-6) + (0.01 * p if name in decayed else 0)))
    params, tx = jax.tree.map(jnp.asarray, imported.params), adamw.Optimizer().make()
    schedule = linear_from_zero.Schedule(peak, 5).make(steps)
    opt_state = tx.init(params)
    found = []
    for step, batch in enumerate(batches):
        (loss, _), grads = jax.value_and_grad(lambda p, b=batch: loss_of(imported.config, p, b), has_aux=True)(params)
        direction, opt_state = tx.update(grads, opt_state, params)
        params = jax.tree.map(lambda w, d, s=step: w - schedule(s) * d, params, direction)
        found.append(float(loss))
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def test_the_first_held_out_loss_of_a_run_that_goes_on_is_theirs(tmp_path: Path) -> None:
    """The figures that ``bert-jax pretrain --init=HF_DIR`` logs before the first step are the sums of PyTorch."""
    model = theirs(tmp_path / "model")
    recipe = toy.recipe(
        toy.write_text(tmp_path / "text.txt"),
        phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": P}},
        schedule={"warmup_steps": 2},
    )
    workdir = tmp_path / "run"
    flags = [f"--config={toy.write_recipe(tmp_path / 'recipe.json', recipe)}", f"--workdir={workdir}"]
    assert run(["pretrain", *flags, f"--init={tmp_path / 'model'}"]) == 0
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    found = next(line for line in lines if line["split"] == "eval" and line["step"] == 0)

    corpus, tokenizer = Corpus(workdir / "corpus"), wordpiece(VOCAB)
    config = import_model(tmp_path / "model").config
    task = Objective(Config(), Setting(config, {"phase1": P})).with_text(corpus, tokenizer)
    rows = np.arange(min(recipe["training"]["eval_rows"], task.source("eval", "phase1", 0).rows_per_epoch))
    batch = task.source("eval", "phase1", 0).rows(np.zeros_like(rows), rows)
    with torch.no_grad():
        out, logits, loss = torch_outputs(model, batch)
    nsp = torch.nn.functional.cross_entropy(
        out.seq_relationship_logits, torch.tensor(batch["next_sentence_labels"])[:, 0].long()
    )
    assert found["nsp_loss"] == pytest.approx(nsp.item(), abs=1e-4)
    assert found["mlm_loss"] == pytest.approx((loss - nsp).item(), abs=1e-4)
    hits = (logits.argmax(-1).numpy() == batch["masked_labels"]) * batch["masked_weights"]
    assert found["mlm_accuracy"] == pytest.approx(hits.sum() / batch["masked_weights"].sum(), abs=1e-6)


def test_an_export_loads_in_transformers(tmp_path: Path) -> None:
    theirs(tmp_path / "in")
    imported = import_model(tmp_path / "in")
    export_model(TrainedModel("", imported.params, imported.config, imported.tokenizer), tmp_path / "out", "card")
    model, info = transformers.BertForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    batch = batch_of(V)
    _, logits, loss = torch_outputs(model.eval(), batch)
    found, outputs = loss_of(imported.config, imported.params, batch)
    np.testing.assert_allclose(outputs["mlm_logits"], logits.detach().numpy(), atol=2e-5, rtol=0)
    assert abs(float(found) - loss.item()) <= 2e-5
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("ab ca", "d")["input_ids"] == list(wordpiece(VOCAB).encode("ab ca", "d").input_ids)
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "out"), tokenizer=str(tmp_path / "out"))
    assert len(fill("a [MASK] b")) == 5
