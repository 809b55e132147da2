"""The search: tensors. Knows nodes and probabilities; no model, no text, no requests."""
