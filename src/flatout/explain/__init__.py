"""Diagnosis of Flatout's runs: recording, and rules."""
