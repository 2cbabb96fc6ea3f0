"""Whole programs made of these packages, to be run and read."""
