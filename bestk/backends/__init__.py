"""Language models behind one protocol; each backend knows tokens and probabilities, no search."""
