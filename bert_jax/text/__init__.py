"""Text to token ids: WordPiece, sentencepiece, byte-level BPE, learning a vocabulary, sentences. No jax here."""
