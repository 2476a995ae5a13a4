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

from bert_jax.errors import UserError
from bert_jax.interchange import names
from bert_jax.interchange.conversion import leaf
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.encoders import xlnet
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.models.transformer import stack_layers, unstack_layers
from bert_jax.rows.example_rows import pair_sequences
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.sentencepiece_model import parse
from bert_jax.text.tokenizer import load
from tests.interchange.heads import TOKENIZER
from tests.interchange.outputs import module_outputs
from tests.interchange.test_families import head_of, params_of
from tests.models.golden_xlnet import FIELDS, GOLDEN, LENGTH, MEMORY, V, batch_of, config_of, labels_of, loss_of
from tests.text.test_cls_last import NAMES, TEXTS

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
    batch = {name: x.astype(dtype) if name == "past_states" else x for name, x in batch.items()}
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


def test_an_order_from_left_to_right_is_a_causal_model(tmp_path: Path) -> None:
    """Their models with attn_type "uni", in two segments with memory, beside ranks that grow."""
    model = theirs(tmp_path, attn_type="uni", mem_len=LENGTH)
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text().replace('"uni"', '"bi"'))
    imported, mems = import_model(tmp_path), None
    past: dict[str, Any] = {
        name: np.zeros((2, *one.shape), one.dtype)
        for name, one in xlnet.Encoder.past(imported.config).items()  # type: ignore[arg-type]
    }
    ids = np.random.default_rng(0).integers(0, V, (2, 2, LENGTH)).astype(np.int32)
    everywhere = np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1))
    run = jax.jit(lambda batch: Model(imported.config, (LM_HEAD,)).apply({"params": imported.params}, batch))
    for segment in ids:
        with torch.no_grad():
            out = model(torch.tensor(segment).long(), mems=mems, use_mems=True)
        mems = out.mems
        batch = {"input_ids": segment, "attention_mask": np.ones_like(segment), "order_ids": everywhere, **past}
        found: Any = run({**batch, "token_type_ids": 0 * segment, "masked_positions": everywhere})
        past = {name: found[name] for name in past}
        np.testing.assert_allclose(found["mlm_logits"], out.logits.numpy(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("ending", ["LMHeadModel", "ForSequenceClassification", "ForTokenClassification"])
def test_a_model_of_theirs_goes_in_and_out_bit_by_bit(tmp_path: Path, ending: str) -> None:
    model = theirs(tmp_path / "theirs", ending=ending)
    export_model(import_model(tmp_path / "theirs"), tmp_path / "out", "card")
    again, report = getattr(transformers, f"XLNet{ending}").from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert all(torch.equal(x, again.state_dict()[key]) for key, x in model.state_dict().items())
    kept = ("d_head", "d_inner", "mem_len", "layer_norm_eps", "ff_activation", "summary_type", "attn_type", "dropout")
    assert [getattr(again.config, name) for name in kept] == [getattr(model.config, name) for name in kept]


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    for changes, said in (
        ({"attn_type": "uni"}, "has attn_type 'uni'; of the XLNet family, only models with 'bi' can be read"),
        ({"clamp_len": 7}, "has clamp_len 7; of the XLNet family, only models with -1 can be read"),
        ({"summary_type": "first"}, "has summary_type 'first'; of the XLNet family, only models with 'last'"),
    ):
        theirs(tmp_path, **changes)
        with pytest.raises(UserError, match=said):
            import_model(tmp_path)
    theirs(tmp_path, ending="ForQuestionAnswering")
    with pytest.raises(UserError, match="is XLNetForQuestionAnswering|tensors have no place"):
        import_model(tmp_path)


def test_their_tokenizer_lays_texts_out_as_ours_and_a_padded_batch_is_classified_alike(tmp_path: Path) -> None:
    """What XLNetTokenizer saves is read; what we write gives its ids and types, padded at the left."""
    data = learn_sentencepiece(TEXTS * 20, 100, num_threads=1, lowercase=False)
    model = parse(data, "the model")
    for piece in model.pieces:
        piece.piece = NAMES.get(piece.piece, piece.piece)
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    table = model.normalizer_spec.precompiled_charsmap
    there = transformers.XLNetTokenizer(vocab=pieces, unk_id=1, _spm_precompiled_charsmap=table)
    there.save_pretrained(tmp_path / "theirs")
    ours, config = load(tmp_path / "theirs"), config_of(vocab_size=len(there), dropout_rate=0.0)
    head = head_of("xlnet", "ForSequenceClassification")
    params = params_of(config, head)
    export_model(TrainedModel("", params, config, ours, head), tmp_path / "ours", "card")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    published = tmp_path / "published"
    published.mkdir()
    (published / "spiece.model").write_bytes(model.SerializeToString())
    (published / "config.json").write_text('{"model_type": "xlnet"}')
    for text, pair in [(text, None) for text in TEXTS] + [("The cats", "run to it.")]:
        wanted = there(text, pair, return_token_type_ids=True)
        for name in ("input_ids", "token_type_ids"):
            assert tuple(wanted[name]) == getattr(ours.encode(text, pair), name), text
            assert wanted[name] == again(text, pair)[name], text
        assert tuple(wanted["input_ids"]) == load(published).encode(text, pair).input_ids
    batch = again(TEXTS, ["it runs"] * len(TEXTS), padding=True, return_tensors="pt")
    assert batch["attention_mask"][:, -1].all()
    assert not batch["attention_mask"][:, 0].all()
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        logits = classifier(**batch).logits.numpy()
    rows = pair_sequences(ours, TEXTS, ["it runs"] * len(TEXTS), 64)
    padded = {name: np.stack([np.pad(x, (0, 64 - len(x))) for x in values]) for name, values in rows.items()}
    mask = np.stack([np.arange(64) < len(ids) for ids in rows["input_ids"]]).astype(np.int32)
    found = module_outputs(params, config, {**padded, "attention_mask": mask}, head)["logits"]
    np.testing.assert_allclose(found, logits, atol=2e-5)
