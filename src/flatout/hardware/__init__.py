"""What this machine has, and how JAX starts on it."""
