"""Schedules drive the data flow: sampler -> buffer -> learner -> parameters -> sampler."""
