"""Layers of models run as a few kernels each."""
