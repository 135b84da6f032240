"""Compiled updates, the devices that carry them, and the policies that act."""
