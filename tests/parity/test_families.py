"""Every class of every family against ``transformers``: outputs of imports, and exports that it reads.

Run by ``make test-parity``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.errors import UserError
from bert_jax.interchange.family import families
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.trained_model import TrainedModel
from tests.interchange.heads import TOKENIZER
from tests.interchange.outputs import module_outputs
from tests.interchange.test_families import DECODERS, config_of, head_of, params_of

pytestmark = pytest.mark.parity
CLASSES = [(name, ending) for name, family in sorted(families().items()) for ending in family.classes if name != "bert"]
LENGTH = 12
# What is compared: their output -> ours.
OUTPUTS = {
    "Model": {"last_hidden_state": "sequence"},
    **dict.fromkeys(("ForMaskedLM", "LMHeadModel", "ForCausalLM"), {"logits": "mlm_logits"}),
    "ForPreTraining": {
        "prediction_logits": "mlm_logits",
        "seq_relationship_logits": "nsp_logits",
        "sop_logits": "sop_logits",
        "logits": "replaced_logits",  # of ELECTRA
    },
    "ForNextSentencePrediction": {"logits": "nsp_logits"},
    "ForQuestionAnswering": {"start_logits": "start_logits", "end_logits": "end_logits"},
}


def batch_of(encoder: str) -> dict[str, np.ndarray]:
    """Return two rows without ids that mean padding; the second row is shorter. An XLNet reads the last position."""
    rng = np.random.default_rng(0)
    mask = np.arange(LENGTH)[None] < np.array([[LENGTH], [LENGTH - 4]])
    mask = mask[:, ::-1] if encoder == "xlnet" else mask
    ids = np.where(mask, rng.integers(5, TOKENIZER.size, (2, LENGTH)), TOKENIZER.pad_id)
    types = mask & (np.arange(LENGTH)[None] > 5)
    arrays = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    return {name: array.astype(np.int32) for name, array in arrays.items()}


def has_types(config: Any) -> bool:
    return config.model_type == "xlnet" or getattr(config, "type_vocab_size", 1) > 1


def theirs(folder: Path, architecture: str, batch: dict[str, np.ndarray]) -> Any:
    model, info = getattr(transformers, architecture).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    inputs = {name: torch.tensor(x).long() for name, x in batch.items()}
    if not has_types(model.config):
        del inputs["token_type_ids"]
    if architecture.endswith("MultipleChoice"):
        inputs = {name: x[:, None] for name, x in inputs.items()}
    with torch.no_grad():
        return model.eval()(**inputs)


def tolerance(encoder: str, expected: np.ndarray) -> float:
    """Return 2e-5, for ELECTRA as a share of the largest output: its narrow embeddings from N(0, 0.2) are widened.

    test_electra.py compares them in float64, to 1e-10.
    """
    return 2e-5 * max(1.0, np.abs(expected).max()) if encoder == "electra" else 2e-5


@pytest.mark.parametrize(("encoder", "ending"), CLASSES, ids=lambda value: value)
def test_an_export_gives_the_same_outputs_there(tmp_path: Path, encoder: str, ending: str) -> None:
    config, head = config_of(encoder), head_of(encoder, ending)
    params, batch = params_of(config, head), batch_of(encoder)
    export_model(TrainedModel("", params, config, TOKENIZER, head), tmp_path / "model", "card")
    out = theirs(tmp_path / "model", head.architecture, batch)
    ours = module_outputs(params, config, batch, head)
    real = batch["attention_mask"] > 0
    pairs = OUTPUTS.get(ending, {"logits": "logits"})
    compared = 0
    if "qa_logits" in ours:
        ours |= {"start_logits": ours["qa_logits"][..., 0], "end_logits": ours["qa_logits"][..., 1]}
    for name, own in pairs.items():
        if name not in out or own not in ours:
            continue
        expected, found = out[name].numpy(), np.asarray(ours[own])
        compared += 1
        if expected.shape[:2] == real.shape:
            expected, found = expected[real], found[real]
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=tolerance(encoder, expected), rtol=0)
    assert compared


@pytest.mark.parametrize("encoder", sorted({encoder for encoder, _ in CLASSES}))
def test_a_model_of_theirs_is_read(tmp_path: Path, encoder: str) -> None:
    """The random weights are saved by transformers."""
    family, config = families()[encoder], config_of(encoder)
    described = family.to_config(config, TOKENIZER.pad_id)
    described.pop("torch_dtype")
    their_config = getattr(transformers, f"{family.name}Config")(**described, attn_implementation="eager")
    ending = "ForMaskedLM" if "ForMaskedLM" in family.classes else family.causal
    model = getattr(transformers, family.class_name(ending))(their_config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_gain = any(f"{norm}.weight" in name for norm in ("LayerNorm", "layer_norm", "ln_1", "ln_2", "ln_f"))
            parameter.normal_(1.0 if is_gain else 0.0, 0.2)
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.tokenizer_json())
    imported, batch = import_model(tmp_path), batch_of(encoder)
    assert imported.config == config
    inputs = {name: torch.tensor(x).long() for name, x in batch.items()}
    if not has_types(model.config):
        del inputs["token_type_ids"]
    with torch.no_grad():
        expected = model(**inputs).logits.numpy()
    found = np.asarray(module_outputs(imported.params, config, batch, imported.head)["mlm_logits"])
    real = batch["attention_mask"] > 0
    np.testing.assert_allclose(found[real], expected[real], atol=tolerance(encoder, expected), rtol=0)


@pytest.mark.parametrize("encoder", DECODERS)
def test_an_untied_model_of_theirs_is_refused(tmp_path: Path, encoder: str) -> None:
    """Its decoder differs from its word embeddings, so its logits would differ from ours."""
    family = families()[encoder]
    described = family.to_config(config_of(encoder), TOKENIZER.pad_id) | {"tie_word_embeddings": False}
    described.pop("torch_dtype")
    model = getattr(transformers, family.class_name("ForMaskedLM"))(
        getattr(transformers, f"{family.name}Config")(**described)
    )
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.tokenizer_json())
    with pytest.raises(UserError, match="has an MLM decoder that is not its word embeddings; only tied ones can be re"):
        import_model(tmp_path)
