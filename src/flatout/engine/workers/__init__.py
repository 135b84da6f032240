"""Actor processes, which step environments and may act in them."""
