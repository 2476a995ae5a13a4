"""Reads a saved tree into a state and matches the leaves by name."""

from __future__ import annotations

from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath


def leaf_name(path: tuple[Any, ...]) -> str:
    """Return the name of the leaf at ``path`` of a tree, such as ``params/pooler/dense/bias``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of ``tree`` by name, in the tree's order."""
    return {leaf_name(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def listed(names: list[str]) -> str:
    """Return a phrase that lists the first three of ``names`` and the number of the rest."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def read_tree(folder: epath.Path, shapes: Any, options: ocp.options.MultiprocessingOptions) -> Any:
    """Return the tree that was saved in ``folder``, placed as ``shapes`` says.

    Args:
      shapes: the wanted tree, whose leaves are ``jax.ShapeDtypeStruct``.

    Raises:
      ValueError: the saved tree has other leaves than ``shapes``, or a leaf of another shape. Orbax's own errors for a
        damaged file are not changed.
    """
    checkpointer = ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(multiprocessing_options=options), multiprocessing_options=options
    )
    saved = checkpointer.metadata(folder).item_metadata.tree
    wanted, there = named_leaves(shapes), named_leaves(saved)
    if unknown := [name for name in there if name not in wanted]:
        raise ValueError(f"it holds {listed(unknown)}, which this run does not have")
    if absent := [name for name in wanted if name not in there]:
        raise ValueError(f"it lacks {listed(absent)}")
    item = jax.tree.map_with_path(lambda path, _: wanted[leaf_name(path)], saved)
    arguments = ocp.args.PyTreeRestore(item, ocp.checkpoint_utils.construct_restore_args(item))
    leaves = named_leaves(checkpointer.restore(folder, args=arguments))
    return jax.tree.unflatten(jax.tree.structure(shapes), [leaves[name] for name in wanted])
