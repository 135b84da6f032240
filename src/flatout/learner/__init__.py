"""The learner makes compiled updates on its devices; policies act with the
parameters that it publishes."""
