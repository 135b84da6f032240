"""Two programs measured in turns: how much faster the second one is (`explain --against`)."""
