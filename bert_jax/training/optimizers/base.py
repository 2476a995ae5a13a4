"""The base class of optimizers, and what optimizers share: clipping, which weights decay, what one parameter is."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import jax
import numpy as np
import optax

from bert_jax.errors import UserError, first_line
from bert_jax.parts.catalogue import place_in_own


class Rule(abc.ABC):
    """An optimizer. It is a frozen dataclass, whose fields are keys of ``config.optimizer``.

    whole_matrices: whether an update reads matrices in a way that XLA cannot split over devices, such as a user's
      kernel. Code in ``jax.numpy`` (LAMB's norms, products, decompositions) reads whole matrices anyway.
    """

    whole_matrices: ClassVar[bool] = False

    @abc.abstractmethod
    def make(self) -> optax.GradientTransformation:
        """Return the optimizer without its learning rate, with steps along the gradient, as ``optax.scale_by_adam``.

        The train step multiplies its output by minus the learning rate. So the schedule follows the step number of
        this run, even if the moments come from another run.
        """

    def check(self, params: Any, file: str) -> None:
        """Trace ``init`` and ``update`` on the shapes of ``params``; nothing is computed.

        Raises ``UserError``, which begins with ``file``, unless the state is made of arrays and an update keeps the
        shapes and dtypes of state and parameters.
        """
        made = self.make()
        if not isinstance(made, optax.GradientTransformation):
            raise UserError(f"{file}: make returns {type(made).__name__}; an optax.GradientTransformation is needed")
        try:
            state = jax.eval_shape(made.init, params)
            direction, after = jax.eval_shape(made.update, params, state, params)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, UserError) or place_in_own(error):
                raise
            raise UserError(
                f"{file}: the transformation cannot be used on the parameters, or its state is not of arrays alone "
                f"({type(error).__name__}: {first_line(error)})"
            ) from error
        for what, old, new in (("state", state, after), ("parameters", params, direction)):
            if differs := changed_leaf(old, new):
                raise UserError(
                    f"{file}: an update changes shape or dtype of the {what} ({differs}), which have to stay"
                )


def changed_leaf(old: Any, new: Any) -> str:
    """Return the first leaf that differs between two trees of shapes, or ""."""
    trees = ({jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(tree)} for tree in (old, new))
    before, after = ({path: f"{np.dtype(x.dtype)}{list(x.shape)}" for path, x in tree.items()} for tree in trees)
    paths = (path for path in {**before, **after} if before.get(path) != after.get(path))
    return next((f"{path}: {before.get(path)} -> {after.get(path)}" for path in paths), "")


def clip(norm: float | None) -> optax.GradientTransformation:
    """Return a transformation that scales gradients of a larger global norm to ``norm``; None: nothing is scaled."""
    return optax.identity() if norm is None else optax.clip_by_global_norm(norm)


def decay(rate: float) -> optax.GradientTransformation:
    """Return a transformation that adds ``rate`` times the weights to a step (AdamW), where ``decay_mask`` says."""
    return optax.add_decayed_weights(rate, mask=decay_mask)


def decay_mask(params: Any) -> Any:
    """Return a tree that is True where weight decay applies: except in leaves whose names end in "bias" or "scale"."""

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        return not any(name.endswith(("bias", "scale")) for name in _names(path)[-1:])

    return jax.tree_util.tree_map_with_path(decays, params)


def own_axes(path: tuple[Any, ...], weight: jax.Array) -> tuple[int, ...]:
    """Return the axes of one parameter in the leaf ``weight``: all; where layers are stacked, all after the first."""
    return tuple(range(1 if "layers" in _names(path) else 0, weight.ndim))


def _names(path: tuple[Any, ...]) -> list[str]:
    """Return the keys of dictionaries on the path to a leaf."""
    return [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
