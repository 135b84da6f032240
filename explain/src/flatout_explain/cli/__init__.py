"""The command line: flags in, words and files out."""
