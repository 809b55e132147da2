"""GPU kernels in Triton around a model's products."""
