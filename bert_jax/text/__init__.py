"""Turns text into token ids (WordPiece, sentencepiece, byte-level BPE), learns vocabularies and splits sentences."""
