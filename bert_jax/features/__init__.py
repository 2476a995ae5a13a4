"""Computes vectors of texts with a trained encoder, without training it (Devlin et al. 2019, section 5.3)."""
