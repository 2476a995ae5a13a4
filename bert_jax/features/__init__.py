"""Vectors of texts out of a trained encoder, without training it (Devlin et al. 2019, section 5.3)."""
