"""Arrangements, one per file, found by the file's name.

Each decides which text makes a sequence (see ``rows.interfaces.Arrangement``).
"""
