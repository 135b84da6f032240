"""The version of flatout-explain, which Flatout has, too."""

__version__ = "0.1.0"
