"""Text to token ids: WordPiece, learning a vocabulary, splitting into sentences. No jax here."""
