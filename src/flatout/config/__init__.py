"""Settings: names, values, layers, presets."""
