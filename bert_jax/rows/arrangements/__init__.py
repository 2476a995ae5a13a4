"""Arrangements decide which text makes a sequence; each is found by its file's name (``rows.features.Arrangement``)."""
