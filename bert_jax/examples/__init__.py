"""Reads labelled data: turns files of many formats into the examples of a task. No module here imports jax."""
