"""Kernels that compute attention on one kind of device each, with the result of plain attention but for rounding."""
