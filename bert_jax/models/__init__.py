"""Flax modules: encoders, attention, heads, and models made of these.

This package uses no data and no losses; of a mesh it knows only what ``placement`` says.
"""
