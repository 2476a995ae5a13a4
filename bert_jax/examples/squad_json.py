"""The reader ``squad_json``: reads questions about passages, in the format of SQuAD 1.1 and 2.0."""

from __future__ import annotations

import dataclasses
from typing import Any

from bert_jax.examples import jsonl


@dataclasses.dataclass(frozen=True)
class Reader(jsonl.Reader):
    """Reads each question as a record that also has the ``context`` of its paragraph and the ``title`` of its article.

    Character offsets stay as found: the task counts and corrects offsets that do not point at their text.
    """

    field: Any = "data.paragraphs.qas"  # the lists that lead to the questions
