"""Neutral names for what a program defines itself: `renamed.py` is its command."""
