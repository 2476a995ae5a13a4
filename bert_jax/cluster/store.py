"""Holds keys and texts that all processes of a job share, by which the processes agree on values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax

from bert_jax.errors import few
from bert_jax.storage import reading

_FOR_EVER_MS = 10**9  # eleven days, after which the wait for a key is repeated


class Store:
    """The key-value store of JAX's coordination service; JAX keeps its client for the store private."""

    def __init__(self) -> None:
        from jax._src.distributed import global_state

        self._client: Any = global_state.client

    def set(self, key: str, value: str) -> None:
        """Set a key that nobody has set."""
        self._client.key_value_set(key, value)

    def wait_for(self, key: str) -> str:
        """Return the value of a key, after waiting until it is set."""
        while True:
            try:
                return str(self._client.blocking_key_value_get(key, _FOR_EVER_MS))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise


class Exchange:
    """The values that the processes of a job tell each other. All must make the same calls of a name.

    ``Exchange.open`` is the exchange of this process, or None before all processes are connected.

    Args:
      number: the number of this process.
      hosts: the host of each process.
    """

    open: ClassVar[Exchange | None] = None

    def __init__(self, store: Store, number: int, hosts: Sequence[str]):
        self._store, self._number, self._hosts = store, number, hosts
        self._calls: Counter[str] = Counter()  # name of an exchange -> how often it was called

    def all_say(self, name: str, value: str) -> list[str]:
        """Return the ``value`` of every process, by number."""
        return list(json.loads(self.first_says(name, json.dumps(self._gather(name, value)))))

    def first_says(self, name: str, value: str) -> str:
        """Return the ``value`` of process 0, which waits for no other."""
        call = self._call(name)
        if self._number == 0:
            self._store.set(f"said/{call}", value)
        return self._store.wait_for(f"said/{call}")

    def difference(self, name: str, value: str) -> str | None:
        """Return a line that says which processes have another ``value`` than process 0; None if all have the same.

        If the value is a JSON object, the keys that differ are named.
        """
        return self.first_says(name, self._difference(name, self._gather(name, value))) or None

    def _difference(self, name: str, values: Sequence[str]) -> str:
        others = [number for number, value in enumerate(values) if value != values[0]]
        if not others:
            return ""
        called = [f"process {number} on {host}" for number, host in enumerate(self._hosts)]
        theirs, wanted = _leaves(values[others[0]]), _leaves(values[0])
        keys = [key for key in sorted({*theirs, *wanted}) if theirs.get(key, "absent") != wanted.get(key, "absent")]
        if keys:
            found = [f"{key} is {theirs.get(key, 'absent')}, not {wanted.get(key, 'absent')}" for key in keys]
            return f"{name} on {called[others[0]]} is not that on {called[0]}: {few(found, 3)}; make them the same"
        theirs_on = few([f"{values[number]} on {called[number]}" for number in others], 3)
        return f"{name} is {theirs_on}, but {values[0]} on {called[0]}; make them the same"

    def _gather(self, name: str, value: str) -> list[str]:
        """Return the ``value`` of every process to process 0, and [] to the others."""
        call = self._call(name)
        self._store.set(f"says/{call}/{self._number}", value)
        numbers = range(len(self._hosts)) if self._number == 0 else ()
        return [self._store.wait_for(f"says/{call}/{number}") for number in numbers]

    def _call(self, name: str) -> str:
        """Return the key of the next call of ``name``, which is the same on every process."""
        self._calls[name] += 1
        return f"{name}/{self._calls[name]}"


def _leaves(text: str) -> Mapping[str, str]:
    """Return the values of a JSON object as text, by their dotted keys; {} if ``text`` is not a JSON object."""
    if (tree := reading.parse_object(text)) is None:
        return {}
    leaves = jax.tree.leaves_with_path(tree, is_leaf=lambda node: not isinstance(node, dict))
    return {jax.tree_util.keystr(path, simple=True, separator="."): json.dumps(leaf) for path, leaf in leaves}
