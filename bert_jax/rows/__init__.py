"""Turns documents into training rows: plans, arrangements, masking, packing. Only ``loader`` needs more than numpy."""
