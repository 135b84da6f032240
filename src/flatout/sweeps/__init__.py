"""Sweeps: many configurations, each a group of seeds, over what the machine has."""
