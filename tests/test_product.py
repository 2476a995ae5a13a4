"""Parts combine: every encoder, arrangement, strategy and packing that fit each other train; the others are refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.models.model import encoder_file
from bert_jax.objectives.base import Setting
from bert_jax.parts import catalogue
from bert_jax.rows.lanes import LANE_STARTS
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.rows_config import arrangements_with
from bert_jax.task import Variables
from bert_jax.training.mesh import unbox
from tests import toy
from tests.objectives.texts import Text, make_text

LENGTH, ROWS = 32, 4
PACKINGS = ("none", "packed", "bucketed")
ENCODERS = sorted(catalogue.parts("models.encoders", having="Encoder"))
ARRANGEMENTS = sorted(catalogue.parts("rows.arrangements", having="Arrangement"))
IN_LANES = arrangements_with([LANE_STARTS])
STRATEGIES = sorted(catalogue.parts("rows.strategies", having="select"))
OBJECTIVES = sorted(catalogue.parts("objectives", having="Objective"))
QUICK = [name for name in ("albert", "bert", "roberta") if name in ENCODERS]  # of the encoders; all in the heavy group


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return make_text(tmp_path_factory.mktemp("product"), labelled=True)


def make(text: Text, name: str, encoder: str, **config: Any) -> Any:
    corpus, tokenizer = text
    if config.get("arrangement") in IN_LANES:  # a row goes on where another row ends, so it is not packed
        config["packing"] = "none"
    objective = catalogue.find("objectives", name)
    rates = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    types = {"type_vocab_size": 6} if name == "unilm" else {}
    model = encoder_file(encoder).Config(tokenizer.size, 16, 1, 2, 64, max_length=LENGTH, **rates, **types)
    setting = Setting(model, {"phase1": LENGTH})
    return objective.Objective(objective.Config(**config), setting).with_text(corpus, tokenizer)


def batch_of(task: Any) -> dict[str, np.ndarray]:
    source = task.source("train", "phase1", 0)
    indices = np.arange(ROWS) % (
        next((b.rows_per_epoch for b in source.buckets if b.rows_per_epoch), source.rows_per_epoch)
    )
    return source.rows(np.zeros_like(indices), indices)  # type: ignore[no-any-return]


class Steps:
    """Two steps of gradient descent by a task, compiled once for all tasks whose batches look alike."""

    def __init__(self, task: Any):
        variables = jax.jit(lambda: unbox(task.init(jax.random.key(0))))()
        self.params = variables.params

        @jax.jit
        def step(params: Any, batch: Any) -> Any:
            def loss(params: Any) -> jax.Array:
                terms = task.loss(Variables(params, {}), batch, None).terms
                return sum((term.value / jnp.maximum(term.count, 1) for term in terms.values()), jnp.zeros(()))

            value, gradient = jax.value_and_grad(loss)(params)
            return value, jax.tree.map(lambda p, g: p - 0.02 * g, params, gradient)

        self.step = step

    def __call__(self, batch: Any) -> None:
        first, params = self.step(self.params, batch)
        second, _ = self.step(params, batch)
        assert np.isfinite(first)
        assert second < first, "what a step learns on a batch, it knows on the same batch"


def train_on_every_product(text: Text, encoder: str, packings: tuple[str, ...], arrangements: list[str]) -> None:
    compiled: dict[Any, Steps] = {}
    for packing, arrangement, strategy in itertools.product(packings, arrangements, STRATEGIES):
        masking = MaskingConfig(strategy=strategy, unit="piece" if strategy == "token" else "word")
        task = make(text, "mlm", encoder, packing=packing, arrangement=arrangement, masking=masking)
        batch = batch_of(task)
        shapes = tuple((name, batch[name].shape) for name in sorted(batch))
        if shapes not in compiled:
            compiled[shapes] = Steps(task)
        compiled[shapes](batch)
        assert batch["masked_weights"].sum() > 0


@pytest.mark.parametrize("encoder", QUICK)
def test_masked_language_modelling_on_products(text: Text, encoder: str) -> None:
    arrangements = ARRANGEMENTS if encoder == "bert" else ["sentences"]
    train_on_every_product(text, encoder, ("packed",), arrangements)


@pytest.mark.heavy
@pytest.mark.parametrize("encoder", ENCODERS)
def test_masked_language_modelling_on_every_product(text: Text, encoder: str) -> None:
    if encoder_file(encoder).Config(50).reading(causal=False) is None:
        with pytest.raises(UserError, match="^objective 'mlm' reads both sides, and encoder .* reads what came before"):
            make(text, "mlm", encoder)
        return
    train_on_every_product(text, encoder, PACKINGS, ARRANGEMENTS)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_takes_an_arrangement_or_says_which(text: Text, objective: str, tmp_path: Path) -> None:
    refused, text = [], make_text(tmp_path, objective) if objective in toy.COLUMNS else text
    for arrangement in ARRANGEMENTS:
        try:
            encoder = toy.MODELS.get(objective, {}).get("encoder", "bert")
            make(text, objective, encoder, packing="packed", arrangement=arrangement)
        except UserError as error:
            refused.append(str(error))
    assert len(refused) < len(ARRANGEMENTS)
    for line in refused:
        assert "\n" not in line
        assert f"objective {objective!r} needs " in line
        assert "config.objective.arrangement may be " in line


@pytest.mark.parametrize("objective", ["mlm_sop"])
def test_an_objective_of_several_terms_learns(text: Text, objective: str) -> None:
    task = make(text, objective, "bert", packing="packed")
    Steps(task)(batch_of(task))


def test_what_does_not_fit_is_an_error_of_one_line(text: Text) -> None:
    with pytest.raises(
        UserError, match="^there is no encoder 'robert' in bert_jax.models.encoders; did you mean 'roberta'"
    ):
        make(text, "mlm", "robert")
    with pytest.raises(UserError, match="^there is no arrangement 'sentense' in .*; did you mean 'sentences'"):
        make(text, "mlm", "bert", arrangement="sentense")
    with pytest.raises(UserError, match="^the corpus .* has no column 'words'"):
        make(text, "mlm", "bert", masking=MaskingConfig(strategy="whole_unit", unit="words"))
