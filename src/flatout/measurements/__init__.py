"""Comparisons that train in child processes: devices, placements, remedies."""
