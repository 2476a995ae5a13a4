"""Text to token ids: WordPiece, sentencepiece, learning a vocabulary, splitting into sentences. No jax here."""
