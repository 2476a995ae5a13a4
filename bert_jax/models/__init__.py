"""Flax modules: encoders, attention, heads, and models made of these.

This package knows no data and no loss; of a mesh it knows only what ``placement`` says.
"""
