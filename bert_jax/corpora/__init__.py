"""Turns raw text into a sharded store of tokenized documents: sources, the build, the store. Nothing imports jax."""
