"""Updates in several shards or micro-batches, and packed arrays, for all algorithms."""
