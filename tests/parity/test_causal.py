"""The causal model against ``transformers``' BertLMHeadModel with ``is_decoder``: states, logits, loss, gradients."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.interchange import names
from bert_jax.interchange.architectures import HeadClass, of_pretraining
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.losses.cross_entropy import cross_entropy
from bert_jax.models.config import ModelConfig
from bert_jax.models.encoders import bert
from bert_jax.models.model import LM_HEAD, Model, encoder_of, fresh_params
from bert_jax.objectives.ltr import next_token_weights
from tests.interchange import test_families as families
from tests.models.golden import batch_of
from tests.parity import tiny_bert
from tests.parity.tiny_bert import P, V

pytestmark = pytest.mark.parity


def theirs(dtype):
    return tiny_bert.made(transformers.BertLMHeadModel, dtype, is_decoder=True)


def leaf(tree, path: str):
    for part in path.split("/"):
        tree = tree[part]
    return tree


def ours(model, config: ModelConfig, dtype: str):
    """Return the parameters of transformers as the tree of an encoder under ``LM_HEAD``."""
    shapes = jax.eval_shape(lambda: fresh_params(dataclasses.replace(config, dtype="float32")))
    parameters, params = dict(model.named_parameters()), {}
    for entry in family_of("bert").entries(config.num_layers):
        if entry.ours.startswith(("encoder/", "mlm_head/")):
            *folders, last = entry.ours.split("/")
            node = params
            for name in folders:
                node = node.setdefault(name, {})
            array = parameters[entry.theirs].detach().numpy()
            node[last] = jnp.asarray(names.to_ours(array, entry, leaf(shapes, entry.ours).shape), dtype)
    return params


@pytest.mark.parametrize(
    ("dtype", "tolerance", "gradient_tolerance"), [("float32", 2e-5, 1e-5), ("float64", 1e-10, 1e-10)]
)
def test_outputs_and_gradients(dtype: str, tolerance: float, gradient_tolerance: float) -> None:
    model = theirs(getattr(torch, dtype))
    batch = {n: v for n, v in batch_of(V).items() if n in ("input_ids", "token_type_ids", "attention_mask")}
    batch["row_weights"] = np.ones(len(batch["input_ids"]), np.float32)
    real = batch["attention_mask"] > 0
    labels = torch.tensor(np.where(real, batch["input_ids"], -100)).long()  # shifted inside; -100 does not count
    tensors = {n: torch.tensor(v).long() for n, v in batch.items() if n != "row_weights"}
    out = model(**tensors, labels=labels, output_hidden_states=True)
    # Theirs again, for they reckon their own in float32 throughout.
    expected_loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].transpose(1, 2), labels[:, 1:])
    expected_loss.backward()
    config = bert.Config(V, 32, 3, 4, 64, max_length=P, dtype=dtype, attention="causal")
    rows, length = batch["input_ids"].shape
    positions = np.broadcast_to(np.arange(length - 1, dtype=np.int32), (rows, length - 1))
    inputs = {n: jnp.asarray(v) for n, v in batch.items() if n != "row_weights"}
    with jax.enable_x64(dtype == "float64"):
        params, module = ours(model, config, dtype), Model(config, (LM_HEAD,))

        def loss_of(params):
            logits = module.apply({"params": params}, {**inputs, "masked_positions": positions})["mlm_logits"]
            nll, _ = cross_entropy(logits, inputs["input_ids"][:, 1:], next_token_weights(batch | inputs))
            return nll.value / nll.count, logits

        (loss, logits), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        hidden = encoder_of(config).apply({"params": params["encoder"]}, inputs, hidden_states="all").hidden
    for mine, expected in zip(hidden, out.hidden_states, strict=True):
        np.testing.assert_allclose(np.asarray(mine)[real], expected.detach().numpy()[real], atol=tolerance, rtol=0)
    shown = real[:, :-1]
    np.testing.assert_allclose(
        np.asarray(logits)[shown], out.logits.detach().numpy()[:, :-1][shown], atol=tolerance, rtol=0
    )
    assert abs(float(loss) - expected_loss.item()) <= tolerance
    assert abs(float(loss) - out.loss.item()) <= 2e-5
    parameters = dict(model.named_parameters())
    for entry in family_of("bert").entries(config.num_layers):
        if not entry.ours.startswith(("encoder/", "mlm_head/")):
            continue
        expected = parameters[entry.theirs].grad.numpy()
        largest = 1.0 if "key/bias" in entry.ours else np.abs(expected).max()
        error = np.abs(names.to_theirs(np.asarray(leaf(gradients, entry.ours)), entry) - expected).max()
        assert error <= gradient_tolerance * max(largest, 1e-30), (entry.ours, error, largest)


def test_the_power_check() -> None:
    """A model that sees both sides is far from the causal model of transformers."""
    model = theirs(torch.float32)
    ids = np.random.default_rng(0).integers(5, V, (2, 12)).astype(np.int32)
    expected = model(torch.tensor(ids).long()).logits.detach().numpy()
    config = bert.Config(V, 32, 3, 4, 64, max_length=P)
    for attention, low, high in (("causal", 0.0, 2e-5), ("bidirectional", 0.1, np.inf)):
        module = Model(dataclasses.replace(config, attention=attention), (LM_HEAD,))
        positions = np.broadcast_to(np.arange(12, dtype=np.int32), (2, 12))
        batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": 0 * ids + 1}
        params = ours(model, config, "float32")
        found = module.apply({"params": params}, {**batch, "masked_positions": positions})["mlm_logits"]
        assert low <= np.abs(found - expected).max() <= high


@pytest.mark.parametrize("ending", ["LM", "ForTokenClassification"])
@pytest.mark.parametrize("encoder", ["bert", "roberta", "ernie"])
def test_exports_and_imports(encoder: str, ending: str, tmp_path: Path) -> None:
    """``transformers`` computes the vectors of the model from our export, and we compute them from its files."""
    made = dataclasses.replace(families.config_of(encoder), attention="causal")
    lm = HeadClass(of_pretraining(made, ("mlm_head",)))
    head = lm if ending == "LM" else families.head_of(encoder, ending)
    params = families.params_of(made, head)
    export_model(TrainedModel("", params, made, families.TOKENIZER, head), tmp_path / "ours", "card")
    auto = transformers.AutoModelForCausalLM if ending == "LM" else transformers.AutoModelForTokenClassification
    model, report = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(model).__name__ == head.architecture
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    model.eval().save_pretrained(tmp_path / "theirs")
    families.TOKENIZER.save(tmp_path / "theirs" / families.TOKENIZER.file_name)
    read = import_model(tmp_path / "theirs")
    assert (read.config, read.head) == (made, head)

    ids, mask = np.arange(60, dtype=np.int32).reshape(3, 20) % 40 + 5, np.ones((3, 20), np.int32)
    ids[1, 13:], mask[1, 13:] = families.TOKENIZER.pad_id, 0
    batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    found = encoder_of(made).apply({"params": jax.tree.map(jnp.asarray, read.params["encoder"])}, batch).sequence
    with torch.no_grad():
        inputs = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(mask).long()}
        expected = model(**inputs, output_hidden_states=True).hidden_states[-1].numpy()
    np.testing.assert_allclose(found[mask > 0], expected[mask > 0], atol=2e-5)
    if ending == "LM":
        with torch.no_grad():
            model.get_output_embeddings().bias[families.TOKENIZER.sep_id] = 1e3
        written = model.generate(torch.tensor(ids[:1, :5]).long(), max_new_tokens=9, do_sample=False)
        assert written[0, 5:].tolist() == [families.TOKENIZER.sep_id]  # it ends there
