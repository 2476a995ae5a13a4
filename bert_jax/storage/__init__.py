"""Paths, local or on an object store, and writes that are whole or not there."""
