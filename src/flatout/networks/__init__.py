"""Torsos and their layers."""
