"""ERNIE 2.0: the embedding of a pretraining task at each token, the published size, and what PyTorch gave."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.interchange.conversion import leaf
from bert_jax.models.encoders import ernie, seq2seq
from bert_jax.models.model import POOLER, Model
from bert_jax.task import Variables
from bert_jax.training.mesh import unbox
from tests.models.golden import GOLDEN, loss_of, tree_of
from tests.models.helpers import TINY, as_jax, random_batch, random_params
from tests.tasks import toy_tasks


def small(**fields: Any) -> ernie.Config:
    return ernie.Config(**(TINY | fields))


def test_the_base_model_of_english_has_the_published_number_of_parameters() -> None:
    """Of ernie-2.0-base-en: 4 token types, 16 tasks, 512 positions; encoder and pooler."""
    sizes: dict[str, Any] = {"type_vocab_size": 4, "task_type_vocab_size": 16, "activation": "gelu"}
    config = ernie.Config(30_522, **ernie.SIZES["base"], **sizes)
    batch = random_batch()
    shapes = nn.unbox(jax.eval_shape(lambda: Model(config, (POOLER,)).init(jax.random.key(0), batch)))["params"]
    assert sum(x.size for x in jax.tree.leaves(shapes)) == 109_496_064
    without = ernie.Config(30_522, **ernie.SIZES["base"], **sizes | {"task_type_vocab_size": 0})
    assert config.num_parameters - without.num_parameters == 16 * 768


def test_a_batch_that_does_not_say_its_task_is_of_task_0() -> None:
    """And a token reads its own task alone: the embedding of task 2 moves the tokens of task 2, in their layer 0."""
    config = small(task_type_vocab_size=3)
    params, batch = random_params(config)["encoder"], as_jax(random_batch())
    tasks = np.zeros(batch["input_ids"].shape, np.int32)
    tasks[:, ::2] = 2

    @jax.jit
    def embedded(params: Any, batch: Any) -> Any:
        return ernie.Encoder(config).apply({"params": params}, batch, hidden_states="all").hidden[0]

    absent, zero, mixed = (
        embedded(params, batch | of) for of in ({}, {"task_type_ids": 0 * tasks}, {"task_type_ids": tasks})
    )
    np.testing.assert_array_equal(absent, zero)
    np.testing.assert_array_equal(mixed[:, 1::2], zero[:, 1::2])
    assert (np.abs(mixed - zero)[:, ::2].max(axis=-1) > 0.01).all()


def test_fine_tuning_reads_task_0() -> None:
    """The embedding of task 0 learns from labelled texts; the embeddings of other tasks get no gradient."""
    task = toy_tasks.make_task("classification", {"train": toy_tasks.examples("classification", 8)})
    task = task.with_model(small(vocab_size=task.model.config.vocab_size, task_type_vocab_size=3))
    rows = task.source("train", "train", 0).rows(np.zeros(4, np.int64), np.arange(4))

    @jax.jit
    def gradient(rng: Any, rows: Any) -> Any:
        params = unbox(task.init(rng)).params
        found = jax.grad(lambda p: task.loss(Variables(p, {}), rows, None).terms[""].value)(params)
        return found["encoder"]["embeddings"]["task_type_embeddings"]

    found = np.asarray(gradient(jax.random.key(0), rows))
    assert np.abs(found[0]).max() > 1e-4
    assert not found[1:].any()


def test_an_encoder_with_a_decoder_begins_as_an_ernie_of_task_0() -> None:
    of_ernie, batch = small(task_type_vocab_size=3), as_jax(random_batch())
    params, batch = random_params(of_ernie)["encoder"], batch | {"token_type_ids": 0 * batch["input_ids"]}
    own = seq2seq.Config(of_ernie.vocab_size, init_parts="encoder", num_decoder_layers=1)
    config = seq2seq.fitted(own, of_ernie)
    taken, _ = seq2seq.begun(params, config)

    @jax.jit
    def both(*trees: Any) -> Any:
        pairs = zip((of_ernie, config), trees, strict=True)
        return [Model(one).apply({"params": {"encoder": tree}}, batch)["sequence"] for one, tree in pairs]  # type: ignore[index]

    np.testing.assert_allclose(*both(params, taken), atol=2e-5)


@pytest.mark.parametrize("size", [-1, 2**16 + 1])
def test_a_number_of_tasks_that_cannot_be_is_one_line(size: int) -> None:
    with pytest.raises(UserError, match=f"^config.model.task_type_vocab_size is {size:,}; 0 to 65,536 are allowed$"):
        small(task_type_vocab_size=size)


def test_what_torch_gave() -> None:
    """Logits, loss and gradients for random ``task_type_ids``, which tests/parity/test_ernie.py has stored."""
    stored = np.load(GOLDEN.with_name("golden_ernie.npz"))
    params, batch = (tree_of(stored, kind) for kind in ("params", "batch"))
    config = ernie.Config(64, 16, 2, 2, 32, max_length=16, task_type_vocab_size=5)
    (loss, outputs), grads = jax.jit(jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True))(params)
    np.testing.assert_allclose(outputs["mlm_logits"], stored["mlm_logits"], atol=2e-5, rtol=0)
    np.testing.assert_allclose(outputs["nsp_logits"][:, 0], stored["nsp_logits"], atol=2e-5, rtol=0)
    assert abs(float(loss) - float(stored["loss"])) <= 2e-5
    compared = [name for name in stored.files if name.startswith("gradients/")]
    assert "gradients/encoder/embeddings/task_type_embeddings" in compared
    for name in compared:
        found, wanted = np.asarray(leaf(grads, name.removeprefix("gradients/"))), stored[name]
        assert np.abs(found - wanted).max() <= 1e-5 * max(1.0, np.abs(wanted).max()), name
