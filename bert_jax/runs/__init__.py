"""Runs a command from its recipe to its result.

``recipes`` reads ``--config`` and flags into a tree, ``settings`` has all keys and their defaults, ``preparation``
checks them and makes what a run needs, and ``pretraining`` and ``finetuning`` do the run.
"""
