"""The checker of host environments: random steps, and what is wrong with what they return."""
