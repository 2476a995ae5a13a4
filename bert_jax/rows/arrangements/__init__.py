"""Arrangements, each in a file, found by the file's name.

An arrangement decides which text makes a sequence (see ``rows.interfaces.Arrangement``).
"""
