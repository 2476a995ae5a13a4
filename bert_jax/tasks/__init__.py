"""Downstream tasks on the contract of ``bert_jax.task``, one file each, and their metrics."""
