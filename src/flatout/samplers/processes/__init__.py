"""Environments in actor processes."""
