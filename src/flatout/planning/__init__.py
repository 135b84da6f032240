"""The cost model of a run."""
