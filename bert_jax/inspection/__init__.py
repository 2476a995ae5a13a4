"""Inspects a corpus: what text its store has, how well it fills training rows, and whether it fits its vocabulary."""
