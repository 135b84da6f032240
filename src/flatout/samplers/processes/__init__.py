"""Environments in actor processes, through shared memory."""
