"""Turns raw text into a sharded store of tokenized documents, and reads the store. No module here imports jax."""
