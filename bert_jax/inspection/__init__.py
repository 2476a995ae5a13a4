"""Judging a corpus: what is in the store, what rows it makes, and whether it fits its vocabulary."""
