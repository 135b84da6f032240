"""The version of Flatout."""

__version__ = "0.1.0"
