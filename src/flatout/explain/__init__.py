"""Why the hardware idles in a run of Flatout: the evidence of its folder, and rules."""
