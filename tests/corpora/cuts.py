"""Pieces of a file at every place, for the sources that cut files."""

from bert_jax.corpora.source import Piece


def every_cut(source, path, size):
    """What two pieces that meet at each byte of the only file give, in order."""
    [whole] = source.pieces()
    for cut in range(1, size):
        first, second = (list(source.read(Piece(whole.name, *ends, size))) for ends in ((0, cut), (cut, -1)))
        yield cut, first, second
