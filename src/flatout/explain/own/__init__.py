"""Explaining Flatout's own runs: what a run records, and the rules that read it."""
