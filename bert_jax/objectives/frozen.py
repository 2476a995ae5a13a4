"""Arrays that an objective reads and does not train, such as a teacher's; equal ones are kept once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.losses.teacher import digest as digest_of
from bert_jax.task import Variables


class Frozen:
    """The arrays that an objective reads and does not train.

    Attributes:
      digests: the name that the objective gives a tree of arrays -> the first 16 hex digits of its sha256, which counts
        names, shapes, dtypes and values of all arrays in it.
      arrays: digest -> tree of numpy arrays. By digest, because objectives that read the same tree share one copy.
    """

    def __init__(self, trees: Mapping[str, Any], heads: Collection[str], objective: str):
        """Take what ``PretrainingObjective.frozen`` has returned.

        Args:
          heads: the names of the heads that are trained, with the part "encoder".
          objective: what messages call the objective.

        Raises:
          UserError: ``trees`` is no mapping of trees of arrays, or has the name of a part that is trained.
        """
        if not isinstance(trees, Mapping):
            raise UserError(f"{objective}: frozen returned a {type(trees).__name__}; a dict name -> arrays is needed")
        if both := [name for name in trees if name in ("encoder", *heads)]:
            raise UserError(
                f"{objective}: frozen names {', '.join(both)}, which this run trains; a part is trained or frozen, so"
                " put what is frozen under another name, such as {'teacher': model.params}"
            )
        self.digests: dict[str, str] = {}
        self.arrays: dict[str, Any] = {}
        for name, tree in trees.items():
            arrays = jax.tree.map(np.asarray, tree)
            if wrong := [leaf for leaf in jax.tree.leaves(arrays) if leaf.dtype.kind in "OSU"]:
                kind = type(wrong[0].flat[0]).__name__
                raise UserError(f"{objective}: frozen names {name!r}, in which there is a {kind}; only arrays go there")
            self.digests[name] = digest = digest_of(arrays)
            self.arrays[digest] = arrays

    def by_name(self, variables: Variables) -> Variables:
        """Return ``variables`` whose frozen trees have the names that the objective gives them."""
        return Variables(variables.params, {name: variables.frozen[one] for name, one in self.digests.items()})
