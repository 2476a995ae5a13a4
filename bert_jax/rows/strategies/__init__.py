"""Masking strategies, one per file, found by the file's name.

Each selects positions to predict (see ``rows.interfaces.Strategy``).
"""
