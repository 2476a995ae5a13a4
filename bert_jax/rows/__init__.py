"""Makes rows of documents: plans, arrangements, masking, packing, loader. Only ``loader`` needs more than numpy."""
