"""Pretraining of BERT-family encoders with JAX: text in, checkpoints and Hugging Face models out.

Each package can be imported by itself; README.md has a map of the packages. This module imports none of them, so that
``import bert_jax`` takes no time.
"""

__version__ = "0.1.0"
