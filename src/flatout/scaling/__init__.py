"""`flatout scale`: the same work on one device and on several."""
