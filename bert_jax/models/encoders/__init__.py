"""Encoders, found by the name of their file; each has ``Config``, ``SIZES``, ``Encoder``, ``Pooler``, ``LmHead``."""
