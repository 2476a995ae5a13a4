"""Which text makes a sequence: arrangements, one a file, found by its name (``rows.features.Arrangement``)."""
