"""The hardware that a placement names, and JAX's start on it."""
