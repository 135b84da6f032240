"""Members of one configuration's shape that train at the same time."""
