"""Supervised classification, in which a dataset takes the place of environments."""
