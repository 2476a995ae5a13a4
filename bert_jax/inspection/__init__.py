"""Inspects a corpus: its text, the rows that are made from it, and whether it fits its vocabulary."""
