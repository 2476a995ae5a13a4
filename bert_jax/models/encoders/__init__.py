"""Encoders, found by the name of their file.

Each file has ``Config``, ``SIZES``, ``Encoder``, ``Pooler`` and ``LmHead``.
"""
