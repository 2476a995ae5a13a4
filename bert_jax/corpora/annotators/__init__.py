"""Annotators make the columns of a corpus, one a file. ``corpora.columns.Annotator`` says what a file has to define."""
