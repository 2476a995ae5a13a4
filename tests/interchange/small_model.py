"""A small BERT with its tokenizer, for tests of exports and imports."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.tokenizer import wordpiece
from tests.models.helpers import random_params, tiny

LETTERS = [chr(97 + i) for i in range(26)]
TOKENIZER = wordpiece((*SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS), *"0123456"), lowercase=False)
CONFIG = tiny(activation="gelu_tanh", dropout_rate=0.2, layer_norm_eps=1e-6)
PARAMS = random_params(CONFIG)


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
