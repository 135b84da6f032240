"""Comparisons of devices, placements and remedies by training in child processes."""
