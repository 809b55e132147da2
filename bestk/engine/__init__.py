"""Who runs, and what goes through the model."""
