"""Traces that profilers recorded, as evidence: PyTorch's, JAX's and TensorFlow's."""
