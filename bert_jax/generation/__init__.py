"""Writes text with a trained model, token by token (Radford et al. 2019, section 2; Sutskever et al. 2014)."""
