"""The families of encoders in transformers, one per file; each defines ``Family`` (see ``interchange.family``)."""
