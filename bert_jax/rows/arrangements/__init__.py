"""Arrangements decide which text makes a sequence (``rows.features.Arrangement``); each is found by its file's name."""
