"""Samplers whose environments step in actor processes."""
