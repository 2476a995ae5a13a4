"""Leads a run from its settings to its end.

``run`` has the chapters of every run. ``Pretraining`` and ``Finetuning`` first check all that needs no text and no
examples, then fill in the chapters in which they differ (``prepared.Prepared``).
"""
