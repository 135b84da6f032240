"""Buffers hold collected experience and turn it into the inputs of the learner's program."""
