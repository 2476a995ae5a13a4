"""ERNIE 1.0 in transformers: the same as BERT, except for the prefix of class and tensor names."""

from __future__ import annotations

from bert_jax.interchange.families import bert


class Family(bert.Family):
    name, title, model_type, prefix = "Ernie", "ERNIE", "ernie", "ernie."
