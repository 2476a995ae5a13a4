"""Documents -> rows: chunk plan, pairing, masking, loader. Numpy; Grain in ``loader`` alone."""
