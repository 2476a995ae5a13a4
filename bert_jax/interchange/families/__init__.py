"""What transformers has of each encoder, one family a file (``interchange.family.Family``)."""
