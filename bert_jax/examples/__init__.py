"""Reads labelled data: turns files of many formats into examples with the roles of a task. No module imports jax."""
