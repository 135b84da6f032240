"""Samplers: they step environments and collect trajectories."""
