"""Raw text to a sharded store of tokenized documents: sources, the build, the store that reads it. No jax here."""
