"""The line that says what differs between the processes of a job.

``arrival`` (at the start) and ``job`` (later) compare, and end the job with exit code ``BAD_INPUT`` if a value differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import jax

from bert_jax.errors import few
from bert_jax.storage import reading


def difference(name: str, values: Mapping[int, str], hosts: Mapping[int, str]) -> str | None:
    """Return a line that says which processes have another ``name`` than process 0; None if all have the same.

    Args:
      values: the value of each process, by number. If it is a JSON object, the keys that differ are named.
      hosts: the host of each process.
    """
    others = [number for number, value in values.items() if value != values[0]]
    if not others:
        return None
    called = {number: f"process {number} on {host}" for number, host in hosts.items()}
    theirs, wanted = _leaves(values[others[0]]), _leaves(values[0])
    keys = [key for key in sorted({*theirs, *wanted}) if theirs.get(key, "absent") != wanted.get(key, "absent")]
    if keys:
        differences = [f"{key} is {theirs.get(key, 'absent')}, not {wanted.get(key, 'absent')}" for key in keys]
        return f"{name} on {called[others[0]]} is not that on {called[0]}: {few(differences, 3)}; make them the same"
    theirs_on = few([f"{values[number]} on {called[number]}" for number in others], 3)
    return f"{name} is {theirs_on}, but {values[0]} on {called[0]}; make them the same"


def _leaves(text: str) -> dict[str, str]:
    """Return the values of a JSON object as text, by their dotted keys; {} if ``text`` is not a JSON object."""
    if (tree := reading.parse_object(text)) is None:
        return {}
    leaves = jax.tree.leaves_with_path(tree, is_leaf=lambda node: not isinstance(node, dict))
    return {jax.tree_util.keystr(path, simple=True, separator="."): json.dumps(leaf) for path, leaf in leaves}
