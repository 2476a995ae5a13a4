"""Inspects a corpus: what is in the store, which rows it makes, and whether it fits its vocabulary."""
