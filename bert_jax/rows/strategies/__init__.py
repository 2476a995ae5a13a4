"""Masking strategies, each in a file, found by the file's name.

A strategy selects positions to predict (see ``rows.interfaces.Strategy``).
"""
