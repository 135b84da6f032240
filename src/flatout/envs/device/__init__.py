"""Environments written in JAX, whose steps are compiled: twins, gymnax, envelope and users' own."""
