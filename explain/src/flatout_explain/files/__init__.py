"""Files in folders that may be a stranger's, locks, and numbers that are kept between uses."""
