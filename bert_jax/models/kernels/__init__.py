"""Attention by plain jax, and by kernels for one kind of device each, with the same result but for rounding."""
