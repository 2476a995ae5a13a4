"""Generation beside ``generate`` of transformers: the same tokens, for GPT-2 and for BertLMHeadModel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.generation.search import Search, Tokens
from bert_jax.generation.settings import Settings
from bert_jax.generation.steppers import LeftToRight
from tests.parity import test_causal, test_gpt

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]
NEW, PAD = 10, 1
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy without repeats": {"no_repeat_ngram": 2},
    "beams": {"method": "beam", "beams": 4, "num_results": 3},
    "long texts": {"method": "beam", "beams": 3, "length_penalty": 2.0, "num_results": 3},
    "short texts": {"method": "beam", "beams": 3, "length_penalty": -1.0, "num_results": 2},
    "beams without repeats": {"method": "beam", "beams": 4, "no_repeat_ngram": 2, "num_results": 4},
}


@pytest.fixture(scope="module", params=["gpt2", "bert"])
def models(request: Any, tmp_path_factory: Any) -> tuple[Any, Any, Any]:
    """Their model in float64, our config and our parameters. Logits are made steeper, so that texts end."""
    if request.param == "bert":
        model = test_causal.theirs(torch.float64)
        config = test_causal.bert.Config(
            vocab_size=test_causal.V,
            hidden_size=32,
            num_layers=3,
            num_heads=4,
            mlp_dim=64,
            max_length=test_causal.P,
            attention="causal",
            dtype="float64",
        )
        with jax.enable_x64(True):
            return model, config, test_causal.ours(model, config, "float64")
    folder: Path = tmp_path_factory.mktemp("gpt2")
    model = test_gpt.theirs("gpt2", folder, torch.float64)
    imported = test_gpt.import_model(folder)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), imported.params)
    return model, test_gpt.dataclasses.replace(imported.config, dtype="float64"), params


def prompts(vocabulary: int, lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(6, vocabulary, length) for length in lengths]


def written(model: Any, text: np.ndarray, **options: Any) -> np.ndarray:
    """The new tokens of transformers after one prompt, [results, n]."""
    given = {"attention_mask": torch.ones(1, len(text)).long(), "max_new_tokens": NEW, "pad_token_id": PAD}
    ids = model.generate(torch.tensor(text)[None], do_sample=False, **given, **options)
    return ids[:, len(text) :].numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_tokens(models: Any, name: str) -> None:
    """Prompts of unlike lengths in one batch of ours, one at a time in theirs; tokens that they write end texts."""
    model, config, params = models
    settings = Settings(max_new_tokens=NEW, **SETTINGS[name])
    texts = prompts(config.vocab_size, [1, 4, 7, 10])
    free = [written(model, text, eos_token_id=None) for text in texts[:2]]
    ends = sorted({int(ids[0, place]) for ids, place in zip(free, (3, 5), strict=True)})
    width = max(map(len, texts))
    with jax.enable_x64(True):
        run = jax.jit(Search(LeftToRight(config), settings, Tokens(config.vocab_size, PAD, tuple(ends))))
        batch = {
            "input_ids": jnp.asarray(np.stack([np.pad(text, (0, width - len(text))) for text in texts]), jnp.int32),
            "attention_mask": jnp.asarray([[int(i < len(text)) for i in range(width)] for text in texts], jnp.int32),
        }
        found = run({"params": params}, jnp.int32(0), batch, jnp.arange(len(texts)))
    options: dict[str, Any] = {"no_repeat_ngram_size": settings.no_repeat_ngram}
    if settings.method == "beam":
        options |= {"num_beams": settings.beams, "length_penalty": settings.length_penalty}
        options |= {"num_return_sequences": settings.num_results, "early_stopping": False}
    ended = 0
    for row, text in enumerate(texts):
        wanted = written(model, text, eos_token_id=ends, **options)
        for result, ids in enumerate(wanted):
            ours = np.asarray(found.ids[row, result])
            assert np.array_equal(ours[: len(ids)], ids), (row, result, ours, ids)
            assert np.all(ours[len(ids) :] == PAD)
            found_ends = np.flatnonzero(np.isin(ids, ends))
            ended += len(found_ends)
            assert found.lengths[row, result] == (found_ends[0] if len(found_ends) else NEW)
    assert ended > 0
