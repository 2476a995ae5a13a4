"""The encoder families of transformers, one per file. Each file defines a ``Family`` (see ``interchange.family``)."""
