"""DistilBERT against every class of ``transformers``: hidden states, logits, loss and every gradient.

Run by ``make test-parity``. It also writes the golden arrays that ``make test`` checks without torch.
"""

from __future__ import annotations

import dataclasses
import json
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
from bert_jax.models.encoders import distilbert
from bert_jax.models.model import encoder_of
from bert_jax.models.transformer import stack_layers, unstack_layers
from tests.interchange.heads import HEADS, TOKENIZER
from tests.models.golden_distilbert import GOLDEN, KINDS, STORED
from tests.models.golden_heads import SIZES, V, batch_of, loss_of
from tests.tasks import toy_tasks

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]
INPUTS = ("input_ids", "attention_mask")


def head_of(kind: str) -> HeadClass:
    """Return the head of a kind as DistilBERT has it: its dropout rate is one of the model's settings."""
    head = HEADS[kind]
    return dataclasses.replace(head, architecture=f"DistilBert{head.ending}", classifier_dropout=None)


def theirs(kind: str, folder: Path, dtype: Any = torch.float32, **changes: Any) -> Any:
    """Return a tiny random model of a transformers class, saved in ``folder``; every kind has the same encoder."""
    fields = {key: SIZES[ours] for key, ours in family_of("distilbert").fields.items() if ours in SIZES}
    head = head_of(kind)
    labels = head.labels or tuple(f"LABEL_{i}" for i in range(1 if kind == "regression" else 2))
    config = transformers.DistilBertConfig(
        vocab_size=V,
        **fields,
        attn_implementation="eager",
        problem_type=head.problem_type,
        id2label=dict(enumerate(labels)),
        **changes,
    )
    model = getattr(transformers, head.architecture)(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        encoder_first = sorted(model.named_parameters(), key=lambda item: not item[0].startswith("distilbert."))
        for name, parameter in encoder_first:  # gains about 1, or deep gradients drown in rounding
            is_gain = name.lower().endswith(("layernorm.weight", "layer_norm.weight"))
            parameter.normal_(1.0 if is_gain else 0.0, 0.2)
    model.save_pretrained(folder)
    TOKENIZER.save(folder / "vocab.txt")
    return model.to(dtype)


def torch_outputs(model: Any, batch: dict[str, np.ndarray]) -> tuple[Any, dict[str, Any], Any]:
    """Return the loss by the code of transformers, the named outputs, and the hidden states."""
    dtype = next(model.parameters()).dtype
    tensors = {name: torch.tensor(x) for name, x in batch.items() if name != "token_type_ids"}
    tensors = {name: x.to(dtype) if x.is_floating_point() else x.long() for name, x in tensors.items()}
    out = model(**tensors, output_hidden_states=True)
    return out.loss, {n: out[n] for n in ("logits", "start_logits", "end_logits") if n in out}, out.hidden_states


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kind", "layers", "activation"),
    [
        *((kind, "unrolled", "gelu") for kind in KINDS),
        ("masked_lm", "scanned", "gelu"),
        ("masked_lm", "unrolled", "relu"),
    ],
)
def test_hidden_states_logits_loss_and_gradients(
    tmp_path: Path, kind: str, layers: Any, activation: str, dtype: Any
) -> None:
    model = theirs(kind, tmp_path, getattr(torch, dtype), activation=activation)
    imported = import_model(tmp_path)
    assert (imported.report.missing, imported.head) == ((), head_of(kind))
    batch = batch_of(kind)
    expected_loss, expected, expected_hidden = torch_outputs(model, batch)
    expected_loss.backward()
    tolerance, gradient_tolerance = (2e-5, 1e-5) if dtype == "float32" else (1e-10, 1e-10)
    with jax.enable_x64(dtype == "float64"):
        config = dataclasses.replace(imported.config, dtype=dtype, layers=layers)
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), imported.params)
        params = stack_layers(params) if layers == "scanned" else params
        batch = {name: x.astype(dtype) if x.dtype == np.float64 else x for name, x in batch.items()}
        (loss, outputs), grads = jax.value_and_grad(lambda p: loss_of(kind, config, p, batch), has_aux=True)(params)
        flat = {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in INPUTS}
        hidden = encoder_of(config).apply({"params": params["encoder"]}, flat, hidden_states="all").hidden
    real = flat["attention_mask"] > 0
    assert len(hidden) == len(expected_hidden) == SIZES["num_layers"] + 1
    for ours, wanted in zip(hidden, expected_hidden, strict=True):
        np.testing.assert_allclose(np.asarray(ours)[real], wanted.detach().numpy()[real], atol=tolerance, rtol=0)
    assert set(outputs) == set(expected)
    for name, found in outputs.items():
        np.testing.assert_allclose(np.asarray(found), expected[name].detach().numpy(), atol=tolerance, rtol=0)
    assert abs(float(loss) - expected_loss.item()) <= tolerance * max(1.0, abs(expected_loss.item()))
    grads = unstack_layers(grads) if layers == "scanned" else grads
    parameters, gradients = dict(model.named_parameters()), {}
    overall = max(np.abs(p.grad.numpy()).max() for p in parameters.values())
    entries = [e for e in family_of("distilbert").entries(config.num_layers) if e.part in HEADS[kind].parts]
    assert len(entries) == len(jax.tree.leaves(grads)) == len(parameters)
    for entry in entries:
        wanted = parameters[entry.theirs].grad.numpy()
        largest = np.abs(wanted).max()
        largest = overall if largest < 1e-5 * overall else largest  # zero but for rounding: what shifts all keys alike
        error = np.abs(names.to_theirs(np.asarray(leaf(grads, entry.ours)), entry) - wanted).max()
        assert error <= gradient_tolerance * largest, (entry.ours, error, largest)
        gradients[entry.ours] = names.to_ours(wanted, entry, np.shape(leaf(grads, entry.ours)))
    if (dtype, layers, activation) == ("float32", "unrolled", "gelu") and kind in STORED:
        write_golden(kind, imported.params, expected_loss.item(), expected, gradients)


def write_golden(kind: str, params: Any, loss: float, outputs: Any, gradients: dict[str, np.ndarray]) -> None:
    """Store weights, and the outputs of torch for them, beside the arrays of the other kind."""
    flat = {"/".join(str(k.key) for k in path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}
    shown = [name for name in gradients if not name.startswith("encoder") and name.endswith("kernel")]
    shown += ["encoder/layer_0/attention/query/kernel", "encoder/embeddings/word_embeddings"]
    own = {
        f"{kind}/loss": np.float32(loss),
        **{f"{kind}/outputs/{name}": x.detach().numpy() for name, x in outputs.items()},
        **{f"{kind}/gradients/{name}": gradients[name] for name in shown},
        **{f"params/{name}": x for name, x in flat.items()},
    }
    before = dict(np.load(GOLDEN)) if GOLDEN.exists() else {}
    np.savez_compressed(GOLDEN, **before | own)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_config_says_of_dropout_goes_in_and_out(tmp_path: Path, kind: str) -> None:
    """The modules of transformers get the rates, whatever the class, and an export has every rate."""
    rates = {"dropout": 0.15, "attention_dropout": 0.05, "seq_classif_dropout": 0.25, "qa_dropout": 0.35}
    theirs(kind, tmp_path / "theirs", **rates)
    read = import_model(tmp_path / "theirs")
    fields = family_of("distilbert").fields
    assert {key: getattr(read.config, fields[key]) for key in rates} == rates
    model = TrainedModel("", read.params, read.config, read.tokenizer, read.head)
    export_model(model, tmp_path / "ours", "card")
    again = getattr(transformers, head_of(kind).architecture).from_pretrained(tmp_path / "ours")
    assert {key: getattr(again.config, key) for key in rates} == rates
    head = {"tagging": "dropout", "span_qa": "qa_dropout"}.get(kind, "seq_classif_dropout")
    assert kind == "masked_lm" or again.dropout.p == rates[head]


def test_positions_made_with_sines_are_read(tmp_path: Path) -> None:
    config = transformers.DistilBertConfig(
        vocab_size=V,
        dim=16,
        n_layers=1,
        n_heads=2,
        hidden_dim=32,
        max_position_embeddings=16,
        sinusoidal_pos_embds=True,
    )
    model = transformers.DistilBertForMaskedLM(config).eval()
    model.save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path / "vocab.txt")
    read, batch = import_model(tmp_path), batch_of("masked_lm")
    positions = read.params["encoder"]["embeddings"]["position_embeddings"]
    np.testing.assert_allclose(positions[3, :2], [np.sin(3), np.cos(3)], atol=1e-6)
    inputs = {name: batch[name] for name in INPUTS}
    with torch.no_grad():
        wanted = model.distilbert(**{name: torch.tensor(x).long() for name, x in inputs.items()}).last_hidden_state
    found = np.asarray(distilbert.Encoder(read.config).apply({"params": read.params["encoder"]}, inputs).sequence)
    real = batch["attention_mask"] > 0
    np.testing.assert_allclose(found[real], wanted.numpy()[real], atol=2e-5, rtol=0)


def test_an_exported_tokenizer_gives_their_model_its_inputs(tmp_path: Path) -> None:
    """An export makes no token types, which a model of transformers would refuse."""
    theirs("masked_lm", tmp_path / "theirs")
    read = import_model(tmp_path / "theirs")
    model = TrainedModel("", read.params, read.config, read.tokenizer, read.head)
    export_model(model, tmp_path / "ours", "card")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    encoded = tokenizer("ab ca", "d")
    assert set(encoded) == set(INPUTS)
    assert encoded["input_ids"] == list(TOKENIZER.encode("ab ca", "d").input_ids)
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "ours"), tokenizer=str(tmp_path / "ours"))
    assert len(fill("a [MASK] b")) == 5


def test_a_model_of_theirs_is_fine_tuned_and_goes_back(tmp_path: Path) -> None:
    """After ``bert-jax finetune --init=DIR`` and an export, transformers makes our predictions for the dev split."""
    vocabulary = toy_tasks.make_tokenizer()
    config = transformers.DistilBertConfig(
        vocab_size=vocabulary.size, dim=32, n_layers=1, n_heads=2, hidden_dim=64, max_position_embeddings=32
    )
    transformers.DistilBertForMaskedLM(config).save_pretrained(tmp_path / "theirs")
    vocabulary.save(tmp_path / "theirs" / "vocab.txt")
    toy_tasks.write_toy(tmp_path, "classification", train=64, phase={"num_epochs": 2}, export=True)
    assert toy_tasks.finetune(tmp_path, f"--init={tmp_path / 'theirs'}") == 0
    exported = tmp_path / "run" / "hugging_face"
    model = transformers.DistilBertForSequenceClassification.from_pretrained(exported).eval()
    assert (model.config.seq_classif_dropout, model.config.dropout) == (0.2, 0.0)  # the recipe has the second
    texts = [json.loads(line)["text"] for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    batch = transformers.AutoTokenizer.from_pretrained(exported)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        shares = torch.softmax(model(**batch).logits, -1).numpy()
    written = [record["probabilities"] for record in toy_tasks.predictions(tmp_path)]
    assert len(written) == len(texts)
    for found, wanted in zip(shares, written, strict=True):
        by_name = {model.config.id2label[i]: share for i, share in enumerate(found)}
        assert by_name == pytest.approx(wanted, abs=2e-6)
