"""Masking strategies select the positions to predict (``rows.features.Strategy``); each is found by its file's name."""
