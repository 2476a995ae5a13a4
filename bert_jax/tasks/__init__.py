"""Has the downstream tasks and their metrics. Each task is one file, which implements ``bert_jax.task.Task``.

``base`` has what tasks share, and says how to add a metric; ``metrics`` computes the scores.
"""
