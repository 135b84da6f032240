"""Why other people's programs leave the hardware idle."""
