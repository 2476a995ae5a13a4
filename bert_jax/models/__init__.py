"""Flax modules: encoders, attention, heads, and models made of them. This package knows no data, loss or mesh."""
