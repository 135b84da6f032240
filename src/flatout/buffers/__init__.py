"""Experience on its way to the learner."""
