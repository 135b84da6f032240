"""The learner makes compiled updates on its devices; policies act with the parameters it gives."""
