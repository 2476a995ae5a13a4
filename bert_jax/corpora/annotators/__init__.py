"""Annotators compute the columns of a corpus (see ``corpora.columns.Annotator``). An annotator is named by its file."""
