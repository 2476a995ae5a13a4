"""Downstream tasks and their metrics. Each task is one file, which implements ``bert_jax.task.Task``."""
