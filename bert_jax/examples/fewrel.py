"""The reader ``fewrel``: reads sentences with two entities and the relation between them, in the format of FewRel."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.examples.jsonl import parse
from bert_jax.examples.reading import BadRecord, DataRecord, whole_text


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads ``{relation: [{"tokens", "h": [name, id, [places, ...]], "t": ...}, ...]}`` (Han et al. 2018).

    A record has the ``text``, which is the tokens with spaces between; ``head`` and ``tail``, the characters [start,
    end) of the first mention of each entity; their ids, ``head_entity`` and ``tail_entity``; and the ``label``.
    """

    named_splits = False

    def read(self, path: str) -> Iterator[DataRecord | BadRecord]:
        """Yield the sentences of ``path``, relation after relation."""
        relations = parse(whole_text(path), path)
        if not isinstance(relations, Mapping) or not all(isinstance(one, list) for one in relations.values()):
            raise UserError(f"{path} is no object of relations with a list of sentences each; set config.data.format")
        for label, sentences in relations.items():
            for number, sentence in enumerate(sentences):
                where = f"{path}, {label}[{number}]"
                try:
                    yield DataRecord(_record(sentence) | {"label": label}, where)
                except (LookupError, TypeError, ValueError):
                    yield BadRecord(where, "needs tokens, and h and t as [name, id, [places of tokens, ...]]")


def _record(sentence: Mapping[str, Any]) -> dict[str, Any]:
    tokens, record = list(map(str, sentence["tokens"])), dict[str, Any]()
    for role, key in (("head", "h"), ("tail", "t")):
        _, entity, (places, *_) = sentence[key]
        first, last = places[0], places[-1]
        if not 0 <= first <= last < len(tokens):
            raise ValueError(key)
        start = len(" ".join([*tokens[:first], ""]))
        record |= {role: [start, start + len(" ".join(tokens[first : last + 1]))], f"{role}_entity": str(entity)}
    return {"text": " ".join(tokens), **record}
