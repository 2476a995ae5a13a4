"""Turns text into token ids: WordPiece, sentencepiece, byte-level BPE, learned vocabularies, sentences. Without jax."""
