"""Pretraining objectives, one per file, found by the file's name; ``base`` has what they share. README.md shows how."""
