"""The command line: flags in, words, tables and pictures out."""
