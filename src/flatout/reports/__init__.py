"""What finished runs say: their curves, statistics and rankings."""
