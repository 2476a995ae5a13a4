"""Turns documents into training rows: plans, arrangements, masking, packing. Only ``loader`` needs more than numpy.

On the way from text to a batch, ``chunks`` or another arrangement decides which sentences make a sequence, ``packing``
which sequences share a row, ``masking`` which positions are masked, ``rows_config`` the shapes, ``sequence_rows`` the
order of rows, and ``phases`` which rows a step reads. ``example_rows`` has the rows of labelled data.
"""
