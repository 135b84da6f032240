"""Supervised classification: a dataset takes the place of environments."""
