"""Pretraining of BERT-family encoders with JAX: text in, checkpoints and Hugging Face models out.

Packages (each importable by itself): ``text``, ``corpora``, ``rows``, ``models``, ``objectives``, ``tasks``,
``training``, ``interchange``, ``cli``. This module imports none of them, so ``import bert_jax`` stays instant.
"""

__version__ = "0.1.0"
