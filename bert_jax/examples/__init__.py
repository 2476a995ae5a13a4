"""Reads labelled data: files of many formats become examples with the roles of a task. Nothing here imports jax."""
