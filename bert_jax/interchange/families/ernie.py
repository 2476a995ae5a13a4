"""ERNIE 1.0 in transformers: BERT's classes and names under another prefix."""

from __future__ import annotations

from bert_jax.interchange.families import bert


class Family(bert.Family):
    name, title, model_type, prefix = "Ernie", "ERNIE", "ernie", "ernie."
