"""Settings of a run, which `cli` and `api` build: names, limits, layers and presets."""
