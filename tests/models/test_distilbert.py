"""DistilBERT: BERT's layers without token types, the published sizes, and what PyTorch gave for stored weights."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.interchange.conversion import leaf
from bert_jax.models.encoders import bert, distilbert
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.models.transformer import stack_layers
from bert_jax.parts import catalogue
from tests.models.golden import tree_of
from tests.models.golden_distilbert import GOLDEN, STORED
from tests.models.golden_heads import SIZES, V, batch_of, loss_of
from tests.models.helpers import TINY, as_jax, random_batch, random_params, tiny
from tests.tasks import questions, toy_tasks


def small(**fields: Any) -> distilbert.Config:
    return distilbert.Config(**(TINY | fields))


def shapes(config: Any) -> Any:
    return nn.unbox(jax.eval_shape(lambda: Model(config, (LM_HEAD,)).init(jax.random.key(0), random_batch())))["params"]


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_parameter_counts_are_the_published_ones(layers: Any) -> None:
    config = distilbert.Config(30_522, **distilbert.SIZES["base"], layers=layers)
    count = {part: sum(leaf.size for leaf in jax.tree.leaves(tree)) for part, tree in shapes(config).items()}
    assert count["encoder"] == 66_362_880
    assert count["encoder"] + count["mlm_head"] == 66_985_530
    assert distilbert.Config(30_522) == distilbert.Config(30_522, **distilbert.SIZES["base"])
    for fields in distilbert.SIZES.values():
        build(distilbert.Config, {"vocab_size": 10, **fields}, "config.model")


def test_its_parameters_are_those_of_a_bert_without_token_types() -> None:
    """So the layers of a BERT can be taken as they are."""
    of_bert, own = shapes(tiny()), shapes(small())
    del of_bert["encoder"]["embeddings"]["token_type_embeddings"]
    assert jax.tree.map(lambda x: x.shape, own) == jax.tree.map(lambda x: x.shape, of_bert)
    kernels = [x for path, x in jax.tree_util.tree_leaves_with_path(own["encoder"]) if path[-1].key == "kernel"]
    tables = [x for name, x in own["encoder"]["embeddings"].items() if name != "layer_norm"]
    assert small().num_parameters == sum(x.size for x in kernels + tables)


def test_it_computes_what_a_bert_with_token_types_of_zero_does() -> None:
    """Unrolled and scanned, and with two sequences in a row."""
    rng, params = np.random.default_rng(0), random_params(tiny())["encoder"]
    types = params["embeddings"].pop("token_type_embeddings")
    zero = {**params, "embeddings": {**params["embeddings"], "token_type_embeddings": np.zeros_like(types)}}
    row = {
        "input_ids": rng.integers(5, 64, (1, 10)).astype(np.int32),
        "attention_mask": np.array([[1] * 9 + [0]], np.int32),
        "sequence_ids": np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]], np.int32),
        "position_ids": np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]], np.int32),
    }
    second = {name: row[name][:, 4:9] for name in ("input_ids", "attention_mask")}

    @jax.jit
    def read(params: Any, zero: Any) -> Any:
        own, scanned = (distilbert.Encoder(small(layers=layers)) for layers in ("unrolled", "scanned"))
        wanted = bert.Encoder(tiny()).apply({"params": zero}, {**row, "token_type_ids": row["sequence_ids"] % 2})
        every = (own.apply({"params": params}, row), scanned.apply({"params": stack_layers(params)}, row))
        alone = own.apply({"params": params}, second)
        return wanted.sequence, [one.sequence for one in every], alone.sequence

    wanted, found, alone = read(as_jax(params), as_jax(zero))
    for sequence in found:
        np.testing.assert_allclose(sequence[:, :9], wanted[:, :9], atol=1e-5)
    np.testing.assert_allclose(found[0][:, 4:9], alone, atol=1e-5)


def test_what_torch_gave() -> None:
    """Logits, loss and gradients that tests/parity/test_distilbert.py has stored."""
    stored = np.load(GOLDEN)
    params = tree_of(stored, "params")
    config = distilbert.Config(V, **SIZES)
    parts = {"masked_lm": ("encoder", "mlm_head"), "classification": ("encoder", "pooler", "classifier")}

    @jax.jit
    def run(params: Any) -> Any:
        return {
            kind: jax.value_and_grad(lambda p, kind=kind: loss_of(kind, config, p, batch_of(kind)), has_aux=True)(
                {part: params[part] for part in parts[kind]}
            )
            for kind in STORED
        }

    for kind, ((loss, outputs), grads) in run(params).items():
        assert abs(float(loss) - float(stored[f"{kind}/loss"])) <= 2e-5
        np.testing.assert_allclose(outputs["logits"], stored[f"{kind}/outputs/logits"], atol=2e-5, rtol=0)
        compared = [name for name in stored.files if name.startswith(f"{kind}/gradients/")]
        assert len(compared) >= 3
        for name in compared:
            found = np.asarray(leaf(grads, name.removeprefix(f"{kind}/gradients/")))
            assert np.abs(found - stored[name]).max() <= 1e-5 * np.abs(stored[name]).max(), name


# The end of a class name -> the dropout rates before the last layer, in DistilBERT and in BERT; else 0.1 in both.
RATES = {"ForSequenceClassification": (0.2, 0.1), "ForMultipleChoice": (0.2, 0.1), "ForQuestionAnswering": (0.1, 0.0)}


def test_a_task_has_the_dropout_of_the_class_that_it_is_exported_as() -> None:
    tasks = [catalogue.find("tasks", name, having="Task").Task for name in catalogue.parts("tasks", having="Task")]
    exported = [(task.exported_as[0], task) for task in tasks if task.exported_as]
    assert {ending for ending, _ in exported} >= set(RATES)
    for ending, task in exported:
        rates = tuple(getattr(model, task.head_dropout) for model in (small(), tiny()))
        assert rates == RATES.get(ending, (0.1, 0.1)), task


def test_the_dropout_before_the_last_layer() -> None:
    asked = [questions.question("ann was here. bob met cy there.", "bob")]
    spans = questions.make_task({"train": asked, "dev": asked}, max_length=72)
    texts = toy_tasks.make_task("classification", {"train": toy_tasks.examples("classification", 4)})
    for task, wanted in ((spans, (0.1, 0.0)), (texts, (0.2, 0.1))):
        heads = [task.with_model(model).model.parts[-1] for model in (small(), tiny())]
        assert tuple(dict(head.options)["dropout_rate"] for head in heads) == wanted


def test_a_rate_of_the_task_takes_the_place_of_the_models() -> None:
    examples = {"train": toy_tasks.examples("classification", 4)}
    task = toy_tasks.make_task("classification", examples, config={"dropout_rate": 0.4})
    assert dict(task.with_model(small()).model.parts[-1].options)["dropout_rate"] == 0.4


def test_an_epsilon_that_transformers_cannot_name_is_refused() -> None:
    with pytest.raises(UserError, match=r"^config.model.layer_norm_eps is 1e-05; leave it out: a DistilBERT has 1e-12"):
        small(layer_norm_eps=1e-5)
