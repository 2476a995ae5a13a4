"""Makes rows of documents: plans, arrangements, masking, packing, loader. Numpy alone, but for Grain in ``loader``."""
