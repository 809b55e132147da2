"""Who runs, and what goes through the model: requests, batches, and the one loop."""
