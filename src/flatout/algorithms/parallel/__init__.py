"""Parts of the algorithms for updates in several shards or micro-batches, and for packed arrays."""
