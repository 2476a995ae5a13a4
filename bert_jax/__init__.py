"""Pretraining of BERT-family encoders with JAX: text in, checkpoints and Hugging Face models out.

The packages can each be imported by themselves; README.md has the map of them. This module imports none, so that
``import bert_jax`` stays instant.
"""

__version__ = "0.1.0"
