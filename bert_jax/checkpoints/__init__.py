"""Saved steps: the one package that knows Orbax."""
