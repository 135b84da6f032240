"""Updates in several shards and in micro-batches, and packed arrays."""
