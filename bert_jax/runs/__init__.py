"""Leads a run from its settings to its end.

``prepare`` checks all that needs no text and no examples, ``run`` has the chapters of every run, and ``pretraining``
and ``finetuning`` fill in what differs (``prepared.Prepared``).
"""
