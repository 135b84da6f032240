"""An update in several shards, and in pieces."""
