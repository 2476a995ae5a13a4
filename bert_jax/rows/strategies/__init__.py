"""Which positions are predicted: masking strategies, one a file, found by its name (``rows.features.Strategy``)."""
