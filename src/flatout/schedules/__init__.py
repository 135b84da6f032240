"""The data flow: sampler -> buffer -> learner -> params -> sampler."""
