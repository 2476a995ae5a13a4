"""Every head against its class of ``transformers``: logits, loss, gradients; exports in the programs that read them.

Run by ``make test-parity``. It also writes the golden arrays that ``make test`` checks without torch.
"""

import dataclasses

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
from tests.interchange.heads import HEADS, TOKENIZER
from tests.models.golden_heads import INPUTS, KINDS, SIZES, V, batch_of, golden, loss_of

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]
TASKS = ("classification", "regression", "tagging", "span_qa", "multiple_choice")


def config_of(kind):
    head, sizes = HEADS[kind], SIZES
    outputs = 1 if kind == "regression" else 2  # 2 is what transformers takes by itself
    labels = head.labels or tuple(f"LABEL_{i}" for i in range(outputs))
    return transformers.BertConfig(
        vocab_size=V,
        hidden_size=sizes["hidden_size"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        intermediate_size=sizes["mlp_dim"],
        max_position_embeddings=sizes["max_length"],
        attn_implementation="eager",
        problem_type=head.problem_type,
        id2label=dict(enumerate(labels)),
        classifier_dropout=head.classifier_dropout,
    )


def theirs(kind, folder, dtype=torch.float32):
    """Return a tiny random model of a transformers class, in evaluation, saved in ``folder``."""
    torch.manual_seed(KINDS.index(kind))
    model = getattr(transformers, HEADS[kind].architecture)(config_of(kind)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # gains about 1, or deep gradients drown in rounding
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.2)
    model.save_pretrained(folder)
    TOKENIZER.save(folder / "vocab.txt")
    return model.to(dtype)


def torch_outputs(kind, model, batch):
    """Return (loss, named outputs), the loss by the code of transformers if it has a loss."""
    dtype = next(model.parameters()).dtype
    tensors = {k: torch.tensor(v) for k, v in batch.items()}
    tensors = {k: v.to(dtype) if v.is_floating_point() else v.long() for k, v in tensors.items()}
    if kind == "encoder":
        out = model(**{name: tensors[name] for name in INPUTS})
        kept = {"sequence": out.last_hidden_state, "pooled": out.pooler_output}
        return sum((x * tensors[f"{name}_weights"]).sum() / len(x) for name, x in kept.items()), kept
    out = model(**tensors)
    return out.loss, {name: out[name] for name in ("logits", "start_logits", "end_logits") if name in out}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_loss_and_gradients(tmp_path, kind, dtype):
    model = theirs(kind, tmp_path, getattr(torch, dtype))
    imported = import_model(tmp_path)
    assert imported.report.missing == ()
    assert dataclasses.replace(imported.head, labels=()) == dataclasses.replace(HEADS[kind], labels=())
    assert imported.head.labels == HEADS[kind].labels
    batch = batch_of(kind)
    expected_loss, expected = torch_outputs(kind, model, batch)
    expected_loss.backward()
    tolerance, gradient_tolerance = (2e-5, 1e-5) if dtype == "float32" else (1e-10, 1e-10)
    with jax.enable_x64(dtype == "float64"):
        config = dataclasses.replace(imported.config, dtype=dtype)
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), imported.params)
        batch = {name: x.astype(dtype) if x.dtype == np.float64 else x for name, x in batch.items()}
        (loss, outputs), grads = jax.value_and_grad(lambda p: loss_of(kind, config, p, batch), has_aux=True)(params)
    assert set(outputs) == set(expected)
    real = batch["attention_mask"] > 0
    for name, found in outputs.items():
        wanted, found = expected[name].detach().numpy(), np.asarray(found)
        if name == "sequence":
            wanted, found = wanted[real], found[real]
        np.testing.assert_allclose(found, wanted, atol=tolerance, rtol=0)
    assert abs(float(loss) - expected_loss.item()) <= tolerance * max(1.0, abs(expected_loss.item()))
    overall = max(np.abs(p.grad.numpy()).max() for p in model.parameters())
    gradients = {}
    for entry in (e for e in family_of("bert").entries(config.num_layers) if e.part in HEADS[kind].parts):
        name = entry.theirs.removeprefix("bert.") if kind == "encoder" else entry.theirs
        wanted = model.get_parameter(name).grad.numpy()
        found = names.to_theirs(np.asarray(leaf(grads, entry.ours)), entry)
        largest = np.abs(wanted).max()
        if largest < 1e-5 * overall:  # zero but for rounding: what shifts all keys, or all positions, alike
            largest = overall
        error = np.abs(found - wanted).max()
        assert error <= gradient_tolerance * largest, (entry.ours, error, largest)
        gradients[entry.ours] = names.to_ours(wanted, entry, np.shape(leaf(grads, entry.ours)))
    if dtype == "float32":
        write_golden(kind, imported.params, expected_loss.item(), expected, gradients)


def write_golden(kind, params, loss, outputs, gradients):
    """Store weights, the outputs of torch for them, and gradients of the last layer, the first layer and the words."""
    flat = {"/".join(str(k.key) for k in path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}
    shown = [name for name in gradients if name.endswith(("qa_outputs/dense/kernel", "classifier/dense/kernel"))]
    shown += ["encoder/layer_0/attention/query/kernel", "encoder/embeddings/word_embeddings"]
    np.savez_compressed(
        golden(kind),
        loss=np.float32(loss),
        **{f"params/{name}": x for name, x in flat.items()},
        **{f"outputs/{name}": x.detach().numpy() for name, x in outputs.items()},
        **{f"gradients/{name}": gradients[name] for name in shown},
    )


@pytest.mark.parametrize("kind", [*HEADS])
def test_an_export_loads_without_a_word(tmp_path, kind):
    """No key is missing, left over or of another shape, and the logits are ours."""
    from tests.interchange.heads import params_of
    from tests.models.helpers import tiny

    config = tiny(**SIZES)
    params = params_of(HEADS[kind], config)
    export_model(TrainedModel("", params, config, TOKENIZER, HEADS[kind]), tmp_path / "out", "card")
    their_class = getattr(transformers, HEADS[kind].architecture)
    model, info = their_class.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert HEADS[kind].labels in ((), tuple(model.config.id2label[i] for i in range(model.config.num_labels)))
    assert model.config.problem_type == HEADS[kind].problem_type
    if kind not in KINDS:
        return
    batch = batch_of(kind)
    expected_loss, expected = torch_outputs(kind, model.eval(), batch)
    batch = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in batch.items()}
    loss, outputs = loss_of(kind, config, params, batch)
    real = batch["attention_mask"] > 0
    for name, found in outputs.items():
        wanted, found = expected[name].detach().numpy(), np.asarray(found)
        keep = real if name == "sequence" else slice(None)
        np.testing.assert_allclose(found[keep], wanted[keep], atol=2e-5, rtol=0)
    assert abs(float(loss) - expected_loss.item()) <= 2e-5 * max(1.0, abs(expected_loss.item()))


def exported(kind, folder, **keywords):
    """Return an export of a head, which auto classes find, and its parameters."""
    from tests.interchange.heads import params_of
    from tests.models.helpers import tiny

    config = tiny(**SIZES)
    params = params_of(HEADS[kind], config)
    export_model(TrainedModel("", params, config, TOKENIZER, HEADS[kind]), folder, "card", **keywords)
    return config, params


@pytest.mark.parametrize("kind", TASKS)
def test_one_trainer_step(tmp_path, kind):
    """``Trainer`` starts from an export, lowers its first loss, and saves files that we read again."""
    pytest.importorskip("accelerate", reason="needs accelerate, which Trainer asks for")
    config, params = exported(kind, tmp_path / "out")
    model = getattr(transformers, HEADS[kind].architecture).from_pretrained(tmp_path / "out")
    batch = batch_of(kind)
    whole = {name: torch.tensor(x) for name, x in batch.items()}
    whole = {name: x.float() if x.is_floating_point() else x.long() for name, x in whole.items()}
    rows = [{name: x[i] for name, x in whole.items()} for i in range(4)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "trainer"),
        max_steps=1,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        lr_scheduler_type="constant",
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
    before, _ = torch_outputs(kind, model.eval(), batch)
    trained = trainer.train()
    assert trained.global_step == 1
    after, _ = torch_outputs(kind, model.eval(), batch)
    assert after.item() < before.item()
    trainer.save_model(str(tmp_path / "saved"))
    TOKENIZER.save(tmp_path / "saved" / "vocab.txt")
    again = import_model(tmp_path / "saved")
    assert (again.head, again.config, again.report.missing) == (HEADS[kind], config, ())
    moved = np.abs(
        leaf(again.params, "encoder/layer_0/mlp/input/kernel") - leaf(params, "encoder/layer_0/mlp/input/kernel")
    )
    assert 0 < moved.max() < 0.01


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_sentence_transformers_gives_our_vectors(tmp_path, pooling):
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    config, params = exported("encoder", tmp_path / "out", pooling=pooling)
    model = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    texts = ["abc de", "f", "a b c d e f g h i j k l m n o p q r s t", "BAD cab"]
    found = model.encode(texts)
    from tests.interchange.outputs import module_outputs

    for text, vector in zip(texts, found, strict=True):
        encoded = TOKENIZER.encode(text, max_length=config.max_length)
        batch = {name: np.asarray([getattr(encoded, name)], np.int32) for name in INPUTS}
        sequence = np.asarray(module_outputs(params, config, batch, HEADS["encoder"])["sequence"])[0]
        real = sequence[batch["attention_mask"][0] > 0]
        np.testing.assert_allclose(vector, real.mean(0) if pooling == "mean" else real[0], atol=2e-5, rtol=0)
    assert model.max_seq_length == config.max_length


@pytest.mark.parametrize("kind", TASKS)
def test_onnx_runtime_gives_our_logits(tmp_path, kind):
    """The exporter of torch leaves the size of a batch open."""
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime, onnx and onnxscript")
    pytest.importorskip("onnxscript", reason="needs onnxruntime, onnx and onnxscript")
    config, params = exported(kind, tmp_path / "out")
    model = getattr(transformers, HEADS[kind].architecture).from_pretrained(
        tmp_path / "out", attn_implementation="eager"
    )
    model.config.return_dict = False
    batch = batch_of(kind)
    inputs = {name: batch[name].astype(np.int64) for name in INPUTS}
    torch.onnx.export(
        model.eval(),
        (),
        str(tmp_path / "model.onnx"),
        kwargs={name: torch.tensor(x) for name, x in inputs.items()},
        input_names=list(inputs),
        dynamo=True,
        verbose=False,
    )
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    found = session.run(None, {node.name: inputs[node.name] for node in session.get_inputs()})
    batch = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in batch.items()}
    _, outputs = loss_of(kind, config, params, batch)
    assert len(found) == len(outputs)
    for ours, logits in zip(outputs.values(), found, strict=True):
        np.testing.assert_allclose(logits, ours, atol=2e-5, rtol=0)
