"""GPT-1 and GPT-2 against ``transformers``: hidden states, logits, loss, every gradient, and the classes with heads.

Run by ``make test-parity``. It also writes the golden arrays that ``make test`` checks without torch.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

import bert_jax
from bert_jax.cli.main import run
from bert_jax.interchange import names
from bert_jax.interchange.conversion import leaf
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.models.heads import Classifier, SpanClassifier
from bert_jax.models.model import Model, Part, encoder_of
from bert_jax.models.transformer import stack_layers, unstack_layers
from bert_jax.text.tokenizer import load
from tests import toy
from tests.interchange.heads import TOKENIZER
from tests.models.golden_gpt import FIELDS, KINDS, V, batch_of, config_of, golden, loss_of
from tests.runs.test_gpt import recipe
from tests.text.gpt_files import END, FORMS, write
from tests.text.test_byte_bpe import text_of
from tests.text.test_gpt import words_of

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]


def theirs(kind: str, folder: Path, dtype: Any = torch.float32, ending: str = "LMHeadModel", **changes: Any) -> Any:
    """Return a tiny random model of a transformers class, saved in ``folder``; every parameter is from N(0, 0.2)."""
    family = family_of(kind)
    keys = {key: FIELDS[ours] for key, ours in family.fields.items() if ours in FIELDS}
    if kind == "gpt":
        keys.pop("n_inner")
    config = getattr(transformers, f"{family.name}Config")(
        vocab_size=V, **keys | changes, attn_implementation="eager", num_labels=3
    )
    model = getattr(transformers, f"{family.name}{ending}")(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0, 0.2)
    model.save_pretrained(folder)
    TOKENIZER.save(folder / "vocab.txt")
    return model.to(dtype)


def tensors(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: torch.tensor(x).long() for name, x in batch.items()}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_logits_loss_and_gradients(tmp_path: Path, kind: str, layers: Any, dtype: Any) -> None:
    model, batch = theirs(kind, tmp_path, getattr(torch, dtype)), batch_of()
    imported, family = import_model(tmp_path), family_of(kind)
    assert imported.report.missing == ()
    given = tensors(batch)
    out = model(**given, output_hidden_states=True)
    labels = torch.where(given["attention_mask"] > 0, given["input_ids"], -100)
    their_loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1))
    their_loss.backward()
    tolerance = 2e-5 if dtype == "float32" else 1e-10
    with jax.enable_x64(dtype == "float64"):
        config = dataclasses.replace(imported.config, dtype=dtype, layers=layers)
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), imported.params)
        params = stack_layers(params) if layers == "scanned" else params
        (loss, logits), grads = jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True)(params)
        hidden = encoder_of(config).apply({"params": params["encoder"]}, batch, hidden_states="all").hidden
    real = batch["attention_mask"] > 0
    pairs = [*zip(hidden, out.hidden_states, strict=True), (logits, out.logits)]
    for ours, wanted in pairs:
        np.testing.assert_allclose(
            np.asarray(ours)[real], wanted.detach().numpy()[real], atol=tolerance, rtol=tolerance
        )
    assert float(loss) == pytest.approx(their_loss.item(), rel=tolerance)
    grads = unstack_layers(grads) if layers == "scanned" else grads
    parameters, gradients = dict(model.named_parameters()), {}
    entries = [e for e in family.entries(3, f"{family.name}LMHeadModel") if e.part == "encoder"]
    assert len(entries) == len(jax.tree.leaves(grads)) == len(parameters)
    for entry in entries:
        wanted = parameters[entry.theirs].grad.numpy()
        error = np.abs(names.to_theirs(np.asarray(leaf(grads, entry.ours)), entry) - wanted).max()
        # the gradient of the biases of keys is rounding alone, so the largest of the whole array bounds the error
        assert error <= tolerance * np.abs(wanted).max(), (entry.ours, error, np.abs(wanted).max())
        gradients[entry.ours] = names.to_ours(wanted, entry, np.shape(leaf(grads, entry.ours)))
    if (dtype, layers) == ("float32", "unrolled"):
        flat = {"/".join(str(k.key) for k in at): x for at, x in jax.tree_util.tree_leaves_with_path(imported.params)}
        np.savez_compressed(
            golden(kind),
            loss=np.float32(their_loss.item()),
            logits=out.logits.detach().numpy(),
            **{f"gradients/{name}": gradients[name] for name in gradients if "layer_1" in name or "embed" in name},
            **{f"params/{name}": x for name, x in flat.items()},
        )


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_is_read_there_with_the_same_logits(tmp_path: Path, kind: str) -> None:
    """In and out again: the file has the same tensors, bit by bit, and transformers misses none and adds none."""
    model, batch = theirs(kind, tmp_path / "theirs"), batch_of()
    imported = import_model(tmp_path / "theirs")
    export_model(imported, tmp_path / "out", "card")
    name = f"{family_of(kind).name}LMHeadModel"
    again, report = getattr(transformers, name).from_pretrained(
        tmp_path / "out", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert all(torch.equal(x, again.state_dict()[key]) for key, x in model.state_dict().items())
    with torch.no_grad():
        wanted, found = (one.eval()(**tensors(batch)).logits for one in (model, again))
    assert torch.equal(wanted, found)
    assert getattr(again.config, family_of(kind).activation) == {"gpt2": "gelu_new", "gpt": "gelu"}[kind]


@pytest.mark.parametrize("ending", ["Model", "ForTokenClassification", "ForQuestionAnswering"])
def test_the_other_classes_of_gpt2(tmp_path: Path, ending: str) -> None:
    model, batch = theirs("gpt2", tmp_path / "theirs", ending=ending), batch_of()
    imported = import_model(tmp_path / "theirs")
    heads: dict[str, tuple[Part, ...]] = {
        "Model": (),
        "ForTokenClassification": (Part.of("classifier", Classifier, num_outputs=3, vectors="sequence"),),
        "ForQuestionAnswering": (Part.of("qa_outputs", SpanClassifier),),
    }
    ours = Model(imported.config, heads[ending]).apply({"params": imported.params}, batch)
    with torch.no_grad():
        out = model(**tensors(batch))
    pairs = {
        "Model": (("sequence", "last_hidden_state"),),
        "ForTokenClassification": (("logits", "logits"),),
        "ForQuestionAnswering": (("start_logits", "start_logits"), ("end_logits", "end_logits")),
    }
    real = batch["attention_mask"] > 0
    for mine, name in pairs[ending]:
        np.testing.assert_allclose(np.asarray(ours[mine])[real], out[name].numpy()[real], atol=2e-5, rtol=2e-5)
    export_model(imported, tmp_path / "out", "card")
    again = getattr(transformers, f"GPT2{ending}").from_pretrained(tmp_path / "out")
    assert all(torch.equal(x, again.state_dict()[key]) for key, x in model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_their_tokenizer_of_a_published_folder_cuts_5_000_texts_as_ours(tmp_path: Path, kind: str) -> None:
    """Of vocab.json and merges.txt by their class, of what it saves, and of what we write."""
    files = FORMS[kind][1]()
    write(tmp_path, files)
    vocab, merges = files
    made = {"gpt2": transformers.GPT2Tokenizer, "gpt": transformers.OpenAIGPTTokenizer}[kind]
    there = made(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges])
    there.save_pretrained(tmp_path / "saved")
    ours = load(tmp_path)
    assert load(tmp_path / "saved").role_ids == ours.role_ids
    config = config_of(kind)
    for name, continues in (("continued", True), ("ended", False)):
        (tmp_path / name).mkdir()
        write_tokenizer(tmp_path / name, dataclasses.replace(config, vocab_size=ours.size), ours, continues)
    rng = random.Random(0)
    texts = [(text_of if i % 2 else words_of)(rng) for i in range(5_000)]
    wanted = [ids.tolist() for ids in ours.encode_batch(texts)]
    after = list(ours.around[1])
    assert there(texts)["input_ids"] == wanted
    for name, end in (("saved", []), ("continued", []), ("ended", after)):
        read = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        assert len(read) == ours.size == len(vocab)
        assert read(texts)["input_ids"] == [ids + end for ids in wanted], name
        again = load(tmp_path / name)
        assert (again.vocab, again.role_ids) == (ours.vocab, ours.role_ids)
    if kind == "gpt2":
        padded = read(["the cat", "a"], padding=True)
        assert padded["input_ids"][1][-1] == ours.pad_id
        assert read.eos_token == read.pad_token == END


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_run_exports_has_the_same_logits_there(tmp_path: Path, kind: str, one_device: None) -> None:
    path, workdir = toy.write_recipe(tmp_path / "recipe.json", recipe(tmp_path, kind)), tmp_path / "run"
    assert run(["pretrain", f"--config={path}", f"--workdir={workdir}"]) == 0
    trained = bert_jax.load(str(workdir))
    read = transformers.AutoTokenizer.from_pretrained(workdir / "hugging_face")
    model = transformers.AutoModelForCausalLM.from_pretrained(workdir / "hugging_face", attn_implementation="eager")
    assert type(model).__name__ == f"{family_of(kind).name}LMHeadModel"
    ids = read("the cat sees the river.")["input_ids"]
    assert ids == trained.tokenizer.encode_batch(["the cat sees the river."])[0].tolist()
    with torch.no_grad():
        wanted = model.eval()(torch.tensor([ids])).logits.numpy()
    batch = {"input_ids": np.array([ids], np.int32), "attention_mask": np.ones((1, len(ids)), np.int32)}
    found = np.asarray(loss_of(trained.config, trained.params, batch)[1])
    np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=0)
    continued = model.generate(torch.tensor([ids]), max_new_tokens=3, do_sample=False)
    assert continued.shape == (1, len(ids) + 3)
