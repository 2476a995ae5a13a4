"""Runs variants of a recipe with several seeds, and makes the tables that compare them."""
