"""The machine's inventory and use, and JAX's start."""
