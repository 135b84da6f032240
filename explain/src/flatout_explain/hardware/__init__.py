"""The machine's use by a program and others: cores, memory, GPUs."""
