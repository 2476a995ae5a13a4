"""Labelled data: files of many formats to examples with the roles of a task. No jax here."""
