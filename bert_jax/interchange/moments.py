"""The optimizer's state of another run's step, with which a run begins (``--init_optimizer=kept``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax.checkpoints.restoring import named_leaves, read_params, saved_steps
from bert_jax.errors import UserError
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import ModelConfig, TransformerConfig
from bert_jax.models.model import config_of
from bert_jax.models.transformer import scanned_from, stack_layers, unstack_layers
from bert_jax.task import Task
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training import trained
from bert_jax.training.mesh import unbox
from bert_jax.training.optimizers.base import Rule
from bert_jax.training.state import TrainState
from bert_jax.workdir.run_record import read_run

FLAG = "--init_optimizer=kept"
ADVICE = "leave --init_optimizer out to begin with fresh moments"


def read_moments(
    initial: TrainedModel | None,
    task: Task,
    model: ModelConfig,
    optimizer: Rule,
    name: str,
    tokenizer: Tokenizer | None,
) -> Any:
    """Return the optimizer's state at the step of ``initial``, as the state of a new run has it, but as numpy.

    It is read before anything slow, so that the other run may drop the step later.

    Args:
      task, model, optimizer: the task, the architecture and the optimizer of the new run.
      name: the name of the optimizer in the run's identity.
      tokenizer: None if the run learns a vocabulary.

    Raises:
      UserError: ``initial`` is no step of a run of ours with an optimizer's state, or the state belongs to another
        optimizer, other parts or another vocabulary.
    """
    if initial is None:
        raise UserError(f"{FLAG} needs --init=WORKDIR@STEP, a step of a run; {ADVICE}")
    held = _state_of(initial)
    if (other := read_run(str(initial.workdir))["identity"]["optimizer"]["name"]) != name:
        raise UserError(f"{FLAG}: {initial.source} was trained with {other}, this run has {name}; {ADVICE}")
    if tokenizer is None or tokenizer.vocab != initial.tokenizer.vocab:
        raise UserError(
            f"{FLAG} needs the vocabulary of {initial.source}, in its order; leave --vocab and config.vocab out, or "
            "--init_optimizer"
        )
    before, tx = config_of(initial.facts["model"]), trained.transformation(task, optimizer)
    params = unbox(jax.eval_shape(task.init, jax.random.key(0)).params)
    if initial.params.keys() != params.keys():
        theirs, ours = (", ".join(sorted(parts)) for parts in (initial.params, params))
        raise UserError(f"{FLAG} needs the same parts: {initial.source} has {theirs}; this run {ours}; {ADVICE}")
    form = jax.eval_shape(lambda tree: tx.init(_in_layers_of(before, model, tree)), params)
    wanted, found = ({leaf: x.shape for leaf, x in tree.items()} for tree in (named_leaves(form), held))
    differing = [leaf for leaf in {**found, **wanted} if found.get(leaf) != wanted.get(leaf)]
    if differing:
        shapes = f"{found.get(differing[0])} there, {wanted.get(differing[0])} here"
        raise UserError(
            f"{FLAG}: the optimizer of {initial.source} has another state ({differing[0]}: {shapes}); {ADVICE}"
        )
    moments = jax.tree.unflatten(jax.tree.structure(form), [held[leaf] for leaf in wanted])

    def is_like(node: Any) -> bool:
        return isinstance(node, dict) and node.keys() == params.keys()

    return jax.tree.map(
        lambda node: _in_layers_of(model, before, node) if is_like(node) else node, moments, is_leaf=is_like
    )


def with_moments(start: Callable[[TrainState], TrainState], moments: Any) -> Callable[[TrainState], TrainState]:
    """Return a function that does the same as ``start``, and places ``moments`` as the fresh moments were placed."""

    def place(given: np.ndarray, fresh: jax.Array) -> jax.Array:
        return jax.device_put(np.asarray(given, fresh.dtype), fresh.sharding)

    def start_with(state: TrainState) -> TrainState:
        return dataclasses.replace(start(state), opt_state=jax.tree.map(place, moments, state.opt_state))

    return start_with


def _state_of(initial: TrainedModel) -> dict[str, np.ndarray]:
    """Return name -> leaf of the optimizer's state at the step of ``initial``. Raises ``UserError`` without it."""
    if initial.workdir is None or initial.run is None:
        raise UserError(f"{FLAG}: {initial.source} is no run of bert-jax and has no optimizer state; {ADVICE}")
    kept = saved_steps(initial.workdir)
    held = read_params(initial.workdir, initial.step, "opt_state")[0] if initial.step in kept else {}
    if not held:
        steps = ", ".join(map(str, kept)) or "none"
        raise UserError(
            f"{FLAG}: the model of {initial.source} (step {initial.step}) has no optimizer state; name one of the "
            f"steps that are kept ({steps}): --init={initial.workdir}@STEP, or {ADVICE}"
        )
    return held


def _in_layers_of(after: ModelConfig, before: ModelConfig, tree: Any) -> Any:
    """Return a tree of parameters of the model ``before``, with its layers stacked if ``after`` stacks its layers."""
    was, now = _stacked(before), _stacked(after)
    if was and not now:
        return unstack_layers(tree, was)
    return stack_layers(tree, now) if now and not was else tree


def _stacked(model: ModelConfig) -> tuple[int, int] | None:
    return scanned_from(model.blocks) if isinstance(model, TransformerConfig) and model.layers == "scanned" else None
