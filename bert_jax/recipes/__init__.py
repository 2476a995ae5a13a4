"""Recipes: from what a user types to one checked ``Settings``."""
