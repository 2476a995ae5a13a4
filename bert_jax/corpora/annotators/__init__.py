"""Annotators make the columns of a corpus (see ``corpora.columns.Annotator``); each is found by its file's name."""
