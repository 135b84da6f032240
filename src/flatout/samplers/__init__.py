"""Where trajectories come from."""
