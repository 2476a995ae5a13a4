"""Recipes: from what a user types to one typed ``Settings``."""
