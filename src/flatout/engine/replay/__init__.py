"""Replay of experience, in host memory or on the learning devices."""
