"""Sweeps: many configurations, each with several seeds, trained on all devices of a machine."""
