"""Reads and writes models of other libraries, and starts runs from models that exist.

``loading`` reads a ``trained_model`` from anywhere, ``initial`` starts a run from it, ``hugging_face`` writes and reads
directories of transformers, ``original`` reads Google's checkpoints, and ``families`` has the names of classes and
tensors.
"""
