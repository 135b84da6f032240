"""Files of a run: written durably, read with suspicion."""
