"""Flax modules: encoders, attention, heads, and models made of these.

This package does not use data, losses or a mesh.
"""
