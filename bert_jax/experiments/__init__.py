"""Runs over named variants and seeds, and the tables that compare them."""
