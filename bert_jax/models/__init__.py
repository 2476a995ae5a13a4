"""Flax modules: encoders, attention, heads, and a model of an encoder under heads. Knows no data, loss or mesh."""
