"""The command line: reads flags, and prints text, tables and pictures."""
