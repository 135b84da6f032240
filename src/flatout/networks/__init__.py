"""Torsos and their layers, from which algorithms build their networks."""
