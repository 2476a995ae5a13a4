"""Encoders, one architecture a file, found by its name: ``Config``, ``SIZES``, ``Encoder``, ``Pooler``, ``LmHead``."""
