"""Saves and reads checkpoints. Only this package uses Orbax."""
