"""A tiny random model of every class, by the modules that train it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from bert_jax.interchange.architectures import HeadClass
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import ChoiceClassifier, Classifier, SpanClassifier
from bert_jax.models.model import POOLER, Model, Part
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.tokenizer import wordpiece
from tests.models.helpers import random_params, tiny

LETTERS = [chr(97 + i) for i in range(26)]
TOKENIZER = wordpiece((*SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS), *"0123456"))
CONFIG = tiny()
TAGS = ("O", "B-PER", "I-PER", "B-ORG")
HEADS = {
    "encoder": HeadClass("BertModel"),
    "pretraining": HeadClass("BertForPreTraining"),
    "masked_lm": HeadClass("BertForMaskedLM"),
    "next_sentence": HeadClass("BertForNextSentencePrediction"),
    "classification": HeadClass(
        "BertForSequenceClassification", ("no", "yes", "été"), "single_label_classification", classifier_dropout=0.25
    ),
    "regression": HeadClass("BertForSequenceClassification", (), "regression"),
    "tagging": HeadClass("BertForTokenClassification", TAGS),
    "span_qa": HeadClass("BertForQuestionAnswering"),
    "multiple_choice": HeadClass("BertForMultipleChoice"),
}


def module_of(head: HeadClass, config: ModelConfig) -> Any:
    """The module of ours that has the parts of ``head``, and none that it lacks; None for pretraining ones."""
    number = head.num_outputs
    parts: dict[str, tuple[Part, ...]] = {
        "ForSequenceClassification": (POOLER, Part.of("classifier", Classifier, num_outputs=number)),
        "ForTokenClassification": (Part.of("classifier", Classifier, num_outputs=number, vectors="sequence"),),
        "ForQuestionAnswering": (Part.of("qa_outputs", SpanClassifier),),
        "ForMultipleChoice": (POOLER, Part.of("classifier", ChoiceClassifier)),
    }
    return Model(config, parts[head.ending]) if head.ending in parts else None


def params_of(head: HeadClass, config: ModelConfig, seed: int = 0) -> Any:
    """Every parameter from N(0, 0.2), gains around 1."""
    shapes = _shapes_of(head, config)
    if shapes is None:
        return {part: tree for part, tree in random_params(config, seed).items() if part in head.parts}
    rng = np.random.default_rng(seed)

    def draw(path: Any, leaf: Any) -> np.ndarray:
        return (rng.normal(0.0, 0.2, leaf.shape) + (path[-1].key == "scale")).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.cache
def _shapes_of(head: HeadClass, config: ModelConfig) -> Any:
    """Return the shapes of the parameters of ``module_of``, or None if it is None."""
    module = module_of(head, config)
    if module is None:
        return None
    ids = np.ones((1, 2, 4) if "MultipleChoice" in head.architecture else (1, 4), np.int32)
    batch = {"input_ids": ids, "token_type_ids": ids * 0, "attention_mask": ids}
    return jax.eval_shape(lambda: nn.unbox(module.init(jax.random.key(0), batch))["params"])


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
