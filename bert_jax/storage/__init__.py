"""Reads and writes files, local or on an object store, so that a file or folder is written whole or not at all."""
