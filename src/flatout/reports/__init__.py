"""Reports about finished runs: their curves, statistics and rankings."""
